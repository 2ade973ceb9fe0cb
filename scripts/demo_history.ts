/**
 * What happened in the demo, and what follows from it: the numbers that it is judged by.
 *
 * @module
 */

/** How the demo is broken on purpose. */
export type Sabotage = "no-lock" | "no-fence";

/** What a worker reports, or the demo did to it. */
export type DemoEvent =
  & {
    /** Which worker. */
    readonly worker: number;
    /** When, in milliseconds since the epoch: all processes are on one machine. */
    readonly at: number;
  }
  & (
    | { readonly type: "started"; readonly pid: number }
    | {
      readonly type: "granted";
      readonly fence: number;
      readonly waitedMs: number;
      /** Until when the worker trusts its lease; absent where there is no lock. */
      readonly deadlineAt?: number | undefined;
    }
    | { readonly type: "renewed"; readonly fence: number; readonly deadlineAt: number }
    | { readonly type: "lingering"; readonly fence: number }
    | {
      readonly type: "wrote";
      readonly fence: number;
      readonly account: Account;
      readonly balance: number;
    }
    | { readonly type: "refused"; readonly fence: number }
    | { readonly type: "lost"; readonly fence: number; readonly reason: string }
    | { readonly type: "releasing"; readonly fence: number }
    | { readonly type: "failed"; readonly message: string }
    | { readonly type: "killed" | "frozen" | "continued" | "ended" }
  );

/** The two balances: one is written with `fencedCommit`, the other is not. */
export type Account = "fenced" | "unfenced";

/** One holding, as its holder saw it. */
export interface Holding {
  /** Whose. */
  readonly worker: number;
  /** Its fencing token. */
  readonly fence: number;
  /** From when. */
  readonly fromMs: number;
  /** Until when it was valid: its release or its local deadline, whichever was first. */
  readonly toMs: number;
}

/** What the demo prints with `--json`. */
export interface Summary {
  /** Critical sections that were entered. */
  readonly sections: number;
  /** Valid holdings that began before another one was over; must be 0. */
  readonly overlaps: number;
  /** Updates of the fenced balance that were overwritten; must be 0. */
  readonly lostFencedUpdates: number;
  /** The same of the balance that is written without a fence: why fencing exists. */
  readonly lostUnfencedUpdates: number;
  /** From the kill of a holder to the next grant, in milliseconds; at most ttl and one poll. */
  readonly takeoverMs: number | null;
  /** Writes of a zombie that were refused; at least 1. */
  readonly staleWritesRefused: number;
  /** Whether fences rise in the order of grants. */
  readonly fencesIncreasing: boolean;
}

/** The valid holdings in a history. */
export function holdingsOf(events: readonly DemoEvent[]): Holding[] {
  const holdings: Holding[] = [];
  const open = new Map<
    number,
    { worker: number; fence: number; fromMs: number; deadlineAt: number }
  >();
  const end = (worker: number, at: number): void => {
    const holding = open.get(worker);
    if (!holding) return;
    const { fence, fromMs, deadlineAt } = holding;
    holdings.push({ worker, fence, fromMs, toMs: Math.min(at, deadlineAt) });
    open.delete(worker);
  };
  for (const event of events) {
    const { worker, at } = event;
    const holding = open.get(worker);
    if (event.type === "granted") {
      end(worker, at);
      const { fence, deadlineAt = Infinity } = event;
      open.set(worker, { worker, fence, fromMs: at, deadlineAt });
    } else if (event.type === "renewed" && holding?.fence === event.fence) {
      holding.deadlineAt = Math.max(holding.deadlineAt, event.deadlineAt);
    } else if (event.type === "releasing") {
      end(worker, at);
    } else if (event.type === "killed" || event.type === "ended") {
      // The dead hold until their deadline, as far as the others know.
      end(worker, holding?.deadlineAt === Infinity ? at : Infinity);
    }
  }
  const lastMs = events.at(-1)?.at ?? 0;
  for (const worker of [...open.keys()]) end(worker, lastMs);
  return holdings.sort((a, b) => a.fromMs - b.fromMs || a.fence - b.fence);
}

/** How many holdings began while an earlier one was valid. */
export function countOverlaps(holdings: readonly Holding[]): number {
  let overlaps = 0;
  let untilMs = -Infinity;
  for (const { fromMs, toMs } of [...holdings].sort((a, b) => a.fromMs - b.fromMs)) {
    if (fromMs < untilMs) overlaps++;
    untilMs = Math.max(untilMs, toMs);
  }
  return overlaps;
}

/** Whether fences rise in the order of grants; false where there are none. */
export function areFencesIncreasing(holdings: readonly Holding[]): boolean {
  const byFence = [...holdings].sort((a, b) => a.fence - b.fence);
  return holdings.length > 0 && byFence.every((holding, i) => {
    const before = byFence[i - 1];
    return !before || (before.fence < holding.fence && before.fromMs <= holding.fromMs);
  });
}

/** From the kill of a holder to the next grant, in milliseconds. */
export function takeoverMs(events: readonly DemoEvent[]): number | null {
  const killed = events.find((e) => e.type === "killed");
  if (!killed) return null;
  const next = events.filter((e) => e.type === "granted" && e.at >= killed.at)
    .sort((a, b) => a.at - b.at)[0];
  return next ? next.at - killed.at : null;
}

/** Everything that does not hold, in words; empty if all is well. */
export function problemsOf(summary: Summary, limits: { readonly takeoverMs: number }): string[] {
  const { sections, overlaps, lostFencedUpdates, staleWritesRefused } = summary;
  const problems: string[] = [];
  if (sections === 0) problems.push("there was no critical section");
  if (overlaps > 0) problems.push(`${overlaps} valid holdings overlapped`);
  if (lostFencedUpdates !== 0) problems.push(`${lostFencedUpdates} fenced updates were lost`);
  if (summary.takeoverMs === null) problems.push("nobody took over from the killed holder");
  else if (summary.takeoverMs > limits.takeoverMs) {
    problems.push(
      `the takeover took ${summary.takeoverMs} ms, more than ${limits.takeoverMs} ms`,
    );
  }
  if (staleWritesRefused < 1) problems.push("no stale write was refused");
  if (!summary.fencesIncreasing) problems.push("fences did not rise in the order of grants");
  return problems;
}
