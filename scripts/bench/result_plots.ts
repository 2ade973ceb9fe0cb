/**
 * The plots of the benchmarks whose figures are tables.
 *
 * @module
 */
import { type Bar, bars } from "./plot.ts";
import type { Row } from "./report.ts";

/** The tables of `redis.ts`. */
export type PeerTables = Readonly<
  Record<"cycle" | "handover" | "waiter" | "contention" | "loss", readonly Row[]>
>;

/** The tables of `registers.ts`. */
export type RegisterTables = Readonly<Record<"cycle" | "hot", readonly Row[]>>;

/** A bar per row: its first cells are the label, one of the others the length. */
function barsOf(rows: readonly Row[], column: number, label = (row: Row) => `${row[0]}`): Bar[] {
  return rows.map((row) => {
    const cell = row[column]!;
    const value = Number.isNaN(Number(cell)) ? `${cell}` : Number(cell);
    return { label: label(row), value, isOurs: row.some((one) => /^holdfast/.test(`${one}`)) };
  });
}

/** The plots of Holdfast beside its peers, by file name. */
export function peerPlots(tables: PeerTables): Record<string, string> {
  return {
    "cycle.svg": bars(
      "Uncontended cycle, ratio to two bare EVAL",
      barsOf(tables.cycle, 3),
      1,
    ),
    "handover.svg": bars("Release to the next grant, ms (median)", barsOf(tables.handover, 1)),
    "waiter.svg": bars("Commands of one waiter in 10 s", barsOf(tables.waiter, 2)),
    "contention.svg": bars(
      "Eight processes on one key, sections per second",
      barsOf(tables.contention, 1),
    ),
    "fairness.svg": bars(
      "Eight processes on one key, longest wait, ms",
      barsOf(tables.contention, 4),
    ),
    "loss.svg": bars(
      "Told of a loss after the server stalled, ms (ttl 1000)",
      barsOf(tables.loss, 1),
    ),
  };
}

/** The plots of the products with compare-and-swap, by file name. */
export function registerPlots(tables: RegisterTables): Record<string, string> {
  const label = (row: Row): string => `${row[0]}: ${row[1]}`;
  // A peer that cannot run has the reason instead of a ratio.
  const compared = tables.cycle.filter(([, what, , ratio]) =>
    what !== "two conditional writes" && !Number.isNaN(Number(ratio))
  );
  const hot = tables.hot.filter(([, what]) => what === "holdfast");
  return {
    "registers_cycle.svg": bars(
      "Uncontended cycle, ratio to the product's two conditional writes",
      barsOf(compared, 3, label),
      1,
    ),
    "registers_hot.svg": bars(
      "Eight processes on one lock, ratio to a bare lock",
      barsOf(hot, 4, label),
      1,
    ),
  };
}
