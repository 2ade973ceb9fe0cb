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

/** Prints a table in Markdown. */
export function printTable(
  title: string,
  head: readonly string[],
  rows: readonly (readonly (string | number)[])[],
): void {
  console.log(`\n### ${title}\n`);
  console.log(`| ${head.join(" | ")} |`);
  console.log(`| ${head.map(() => "---").join(" | ")} |`);
  for (const row of rows) console.log(`| ${row.join(" | ")} |`);
}
