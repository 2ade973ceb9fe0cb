/**
 * Whether everybody who waits is served once the faults have stopped (G8).
 *
 * @module
 */
import { holdingsOf, type Trace } from "./trace.ts";

/** How the lock was handed on after the faults. */
export interface Liveness {
  /** The longest time that the lock was free, or held by nobody alive, while the next holder waited. */
  readonly longestGapMs: number;
  /** Processes that were served. */
  readonly served: number;
}

/** Measures. */
export function measureLiveness({ history, healedMs }: Trace): Liveness {
  let longestGapMs = 0;
  const served = new Set<string>();
  const holdings = holdingsOf(history);
  for (const [i, { process, askedMs, fromMs }] of holdings.entries()) {
    if (fromMs < healedMs) continue;
    served.add(process);
    // It is free when the release of the one before has returned; that of a dead process never does.
    const before = holdings[i - 1];
    const release = history.find(({ call }) =>
      call.type === "release" && call.fence === before?.fence
    );
    const freeMs = release?.returned?.atMs ?? before?.fromMs ?? healedMs;
    const gapMs = fromMs - Math.max(healedMs, askedMs, freeMs);
    longestGapMs = Math.max(longestGapMs, gapMs);
  }
  return { longestGapMs, served: served.size };
}
