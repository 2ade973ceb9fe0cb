/**
 * Numbers and tables of the benchmarks.
 *
 * @module
 */

/** The value below which a part of all values lies. */
export function quantile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(Math.floor(sorted.length * part), sorted.length - 1)] ?? NaN;
}

/** The value in the middle. */
export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

/** Does something so many times, one after the other, and says how long the one in the middle took. */
export async function medianMs(count: number, work: () => Promise<unknown>): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < count; i++) {
    const startMs = performance.now();
    await work();
    times.push(performance.now() - startMs);
  }
  return median(times);
}

/** One line of a table. */
export type Row = readonly (string | number)[];

/** A table in Markdown. */
export function tableOf(title: string, head: readonly string[], rows: readonly Row[]): string {
  const lines = [head, head.map(() => "---"), ...rows].map((cells) => `| ${cells.join(" | ")} |`);
  return `\n### ${title}\n\n${lines.join("\n")}`;
}

/** Prints a table in Markdown. */
export function printTable(title: string, head: readonly string[], rows: readonly Row[]): void {
  console.log(tableOf(title, head, rows));
}
