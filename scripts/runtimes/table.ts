/**
 * The table of runtimes by suites.
 *
 * @module
 */
import type { Ended } from "../../tests/runtimes/contract_runner.ts";

/** How a suite ended in a runtime. */
export interface Row {
  readonly runtime: string;
  readonly suite: string;
  readonly passed: number;
  readonly failed: number;
  readonly ms: number;
  /** Why the runtime, or what the suite needs, cannot be had here. */
  readonly missing?: string;
}

/** The row of tests that ran without a runner; prints those that failed. */
export function rowOf(
  runtime: string,
  suite: string,
  ended: readonly Ended[],
  startMs: number,
): Row {
  const failures = ended.filter(({ error }) => error !== undefined);
  for (const { name, error } of failures) console.error(`${runtime}, ${suite}: ${name}\n${error}`);
  const [passed, failed] = [ended.length - failures.length, failures.length];
  return { runtime, suite, passed, failed, ms: performance.now() - startMs };
}

/** Whether a row is as it has to be; a suite without a test that ran is not. */
export function isGreen({ passed, failed, missing }: Row, mayMiss: boolean): boolean {
  return missing === undefined ? failed === 0 && passed > 0 : mayMiss;
}

/** Prints all rows, and their sum as Deno's runner would. */
export function printTable(rows: readonly Row[], mayMiss: boolean): void {
  console.log("\nruntime     suite                        passed  failed   seconds");
  for (const row of rows) {
    const { runtime, suite, passed, failed, ms, missing } = row;
    const numbers = missing === undefined
      ? `${String(passed).padStart(6)} ${String(failed).padStart(7)} ` +
        `${(ms / 1000).toFixed(1).padStart(9)}`
      : `missing: ${missing}`;
    const mark = isGreen(row, mayMiss) ? "" : "  not green";
    console.log(`${runtime.padEnd(11)} ${suite.padEnd(28)} ${numbers}${mark}`);
  }
  const sum = (what: "passed" | "failed"): number => rows.reduce((all, row) => all + row[what], 0);
  const bad = rows.filter((row) => !isGreen(row, mayMiss)).length;
  const failed = Math.max(sum("failed"), bad);
  console.log(`\n${failed === 0 ? "ok" : "FAILED"} | ${sum("passed")} passed | ${failed} failed`);
}
