/**
 * What the chaos run and its workers agree on.
 *
 * @module
 */
import type { HistoryLine } from "../../src/testing/mod.ts";

/** Length of a lease, in milliseconds. */
export const TTL_MS = 800;

/** The one lock that everybody wants. */
export const LOCK = "chaos";

/** How many workers there are at a time. */
export const WORKERS = 8;

/** What clients show to what stands for Upstash. */
export const UPSTASH_TOKEN = "chaos";

/**
 * How far apart the clocks of two processes may be, in milliseconds: each adds a monotonic clock to the wall
 * clock of the machine as it was when the process started.
 */
export const CLOCK_MARGIN_MS = 1;

/** How the run is broken on purpose: writes without their fence, or everybody with a lock of its own. */
export type Sabotage = "no-fence" | "no-lock";

/** What a worker is told when it is started. */
export interface WorkerOrders {
  /** Its name: another one than that of the process whose place it takes. */
  readonly process: string;
  /** Which storage. */
  readonly storage: string;
  /** Where that is: a URL or a path. */
  readonly at: string;
  /** The file to which it writes its journal. */
  readonly journal: string;
  /** The resource that nobody guards, a file. */
  readonly plain: string;
  /** What is broken on purpose. */
  readonly sabotage?: Sabotage | undefined;
}

/** The two resources: one compares fences, the other one is a file. */
export type Resource = "guarded" | "plain";

/**
 * A line of a journal: the history of the lock, and what else there is to know of a worker. Instants are in
 * milliseconds since the epoch.
 */
export type JournalLine = HistoryLine | Note;

/** What a worker notes besides the history. */
export type Note =
  & { readonly process: string; readonly atMs: number }
  & (
    /** It runs. */
    | { readonly type: "started"; readonly pid: number }
    /** It read the plain resource, and is going to write it without another look at its lease. */
    | { readonly type: "enter"; readonly fence: number }
    /** It is about to replace the value `from` by `id`. */
    | {
      readonly type: "write";
      readonly resource: Resource;
      readonly id: string;
      readonly from: string | null;
      readonly fence: number;
    }
    /** What became of it; `stale`: nothing was written. There is no such note where nobody knows. */
    | {
      readonly type: "wrote";
      readonly resource: Resource;
      readonly id: string;
      readonly how: "applied" | "stale";
    }
    /** Its event loop stood still until now. */
    | { readonly type: "stall"; readonly fromMs: number }
    /** Something of the library or of the product failed. */
    | { readonly type: "fault"; readonly what: string; readonly error: string }
    /** It has no more to do; `driftMs`: how much the wall clock moved against the monotonic one. */
    | { readonly type: "ended"; readonly driftMs: number }
  );

/** What the nemesis did. */
export interface Fault {
  /** What. */
  readonly kind: FaultKind;
  /** To which process, or place; `server` for the server. */
  readonly target: string;
  /** From when. */
  readonly fromMs: number;
  /** Until when. */
  readonly toMs: number;
  /** Whether the server lost its data. */
  readonly losesData?: boolean | undefined;
  /** The fencing token of a holding that was evicted. */
  readonly fence?: number | undefined;
}

/** What can be done to workers, to their connections, to the server and to the lock. */
export type FaultKind =
  | "kill"
  | "freeze"
  | "cut"
  | "refuse"
  | "hang"
  | "delay"
  | "lose request"
  | "lose reply"
  | "server kill"
  | "server freeze"
  | "evict";

/** A line that a worker says aloud, for the nemesis: it is between its reads and its writes. */
export const IN_SECTION = "in section";

/** A line that workers obey: go once more through everything, and end. */
export const FINISH = "finish";

/** The exit status of a worker that did not get the lock in the end. */
export const UNSERVED = 3;

/** The instant, by a clock that is the same in all processes to within {@linkcode CLOCK_MARGIN_MS}. */
export function nowMs(): number {
  return performance.timeOrigin + performance.now();
}

/** Waits, or until the signal aborts. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const settle = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", settle);
      resolve();
    };
    const timer = setTimeout(settle, Math.max(0, ms));
    signal?.addEventListener("abort", settle);
    if (signal?.aborted) settle();
  });
}
