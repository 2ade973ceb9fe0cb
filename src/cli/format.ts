/**
 * Durations and holders, for people.
 *
 * @module
 */
import type { HolderView } from "../core/record.ts";

/**
 * A duration, short.
 *
 * @param ms milliseconds
 * @returns such as `850 ms`, `12.3 s`, `4 min 5 s`, `2 h 13 min`
 */
export function duration(ms: number): string {
  const rounded = Math.max(0, Math.round(ms));
  if (rounded < 1000) return `${rounded} ms`;
  if (rounded < 60_000) return `${(Math.floor(rounded / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor(rounded / 1000);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/**
 * What a holder calls itself.
 *
 * @param holder the holding
 * @returns its label, or a word for one without
 */
export function nameOf(holder: Pick<HolderView, "label">): string {
  return holder.label === "" ? "(no label)" : holder.label;
}

/**
 * A holding in one clause.
 *
 * @param holder the holding
 * @returns such as `web-1:4711 (fence 1763650000000000, 18.2 s left)`
 */
export function clauseOf(holder: HolderView): string {
  const permits = holder.permits === 1 ? "" : `${holder.permits} permits, `;
  return `${nameOf(holder)} (${permits}fence ${holder.fence}, ${
    duration(holder.remainingMs)
  } left)`;
}

/**
 * Holdings in columns.
 *
 * @param holders the holdings
 * @param max how many at most
 * @returns a line each, and one for what is left out
 */
export function tableOf(holders: readonly HolderView[], max: number): string[] {
  const shown = holders.slice(0, max);
  const names = Math.max(0, ...shown.map((holder) => nameOf(holder).length));
  const longest = Math.max(0, ...shown.map((holder) => duration(holder.remainingMs).length));
  const lines = shown.map((holder) => {
    const permits = holder.permits === 1 ? "" : `   ${holder.permits} permits`;
    const left = duration(holder.remainingMs).padStart(longest);
    return `  ${nameOf(holder).padEnd(names)}   fence ${holder.fence}   ${left} left${permits}`;
  });
  if (holders.length > max) lines.push(`  and ${holders.length - max} more`);
  return lines;
}

/**
 * Holdings in one sentence.
 *
 * @param holders the holdings
 * @returns such as `held by a (fence 1, 2.0 s left) and 3 more`, or `free`
 */
export function holdersOf(holders: readonly HolderView[]): string {
  const [first, ...others] = holders;
  if (!first) return "free";
  return `held by ${clauseOf(first)}${others.length > 0 ? ` and ${others.length} more` : ""}`;
}
