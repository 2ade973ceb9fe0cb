/**
 * Time, as the library sees it. A clock is read as a {@linkcode Stamp}, monotonic and wall together,
 * because each of them fails alone: the monotonic clock of a suspended machine stands still, the wall
 * clock steps. Who asks decides which to believe ({@linkcode elapsedForHolderMs},
 * {@linkcode elapsedForObserverMs}).
 *
 * @module
 */
import { dispose } from "./disposable.ts";

/** One reading of both clocks. */
export interface Stamp {
  /** Milliseconds since some fixed instant; never goes back, may stand still while suspended. */
  readonly monotonicMs: number;
  /** Milliseconds since the epoch; may step either way. */
  readonly wallMs: number;
}

/** Where the library gets the time and its timers. */
export interface Clock {
  /** Reads both clocks. */
  read(): Stamp;
  /**
   * Calls `callback` once, no earlier than `ms` from now by the monotonic clock.
   *
   * @param ms milliseconds; any non-negative number
   * @param callback what to call
   * @param options `keepAlive`: whether the pending timer keeps the process alive
   * @returns disposing it cancels the call
   */
  setTimer(ms: number, callback: () => void, options: { readonly keepAlive: boolean }): Disposable;
}

/**
 * How long ago `since` was, for one who holds: the larger of the two differences, so that a suspended
 * machine or a wall clock step can only end our own lease early.
 *
 * @param since the earlier stamp
 * @param now the later stamp
 * @returns milliseconds, at least 0
 */
export function elapsedForHolderMs(since: Stamp, now: Stamp): number {
  return Math.max(now.monotonicMs - since.monotonicMs, now.wallMs - since.wallMs, 0);
}

/**
 * How long ago `since` was, for one who watches: the smaller of the two differences, so that a
 * suspended machine or a wall clock step can never end somebody else's lease.
 *
 * @param since the earlier stamp
 * @param now the later stamp
 * @returns milliseconds, at least 0
 */
export function elapsedForObserverMs(since: Stamp, now: Stamp): number {
  return Math.max(Math.min(now.monotonicMs - since.monotonicMs, now.wallMs - since.wallMs), 0);
}

/** A timer above this wraps around and fires at once in every JavaScript runtime. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/**
 * The clock of the machine: `performance.now()` and `Date.now()`. Timers beyond 2^31-1 ms are split.
 *
 * @example
 * ```ts
 * import { systemClock } from "@holdfast/lock";
 * import { assert } from "@std/assert";
 *
 * assert(systemClock.read().wallMs > 0);
 * ```
 */
export const systemClock: Clock = {
  read: () => ({ monotonicMs: performance.now(), wallMs: Date.now() }),
  setTimer(ms, callback, { keepAlive }) {
    let handle: unknown;
    const arm = (leftMs: number): void => {
      const partMs = Math.min(Math.max(Math.ceil(leftMs), 0), MAX_TIMER_MS);
      const next = leftMs > partMs ? () => arm(leftMs - partMs) : callback;
      handle = setTimeout(next, partMs);
      if (!keepAlive) unref(handle);
    };
    arm(ms);
    return { [dispose]: () => clear(handle) };
  },
};

/** Node, Deno and Bun have `unref` on the timer; elsewhere a timer keeps nothing alive. */
function unref(timer: unknown): void {
  (timer as { unref?: () => void }).unref?.();
}

/** A Worker may not touch timers outside a request, where leases are collected; that request's are dead. */
function clear(timer: unknown): void {
  try {
    clearTimeout(timer as number);
  } catch {
    // The callback finds nothing to do.
  }
}

/**
 * Waits.
 *
 * @param clock whose time
 * @param ms milliseconds
 * @param options `keepAlive`: whether the wait keeps the process alive; `signal`: ends it early
 * @throws the signal's reason, if it aborts first
 */
export function sleep(
  clock: Clock,
  ms: number,
  options: { readonly keepAlive: boolean; readonly signal?: AbortSignal | undefined },
): Promise<void> {
  const { keepAlive, signal } = options;
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const onAbort = (): void => {
      timer[dispose]();
      reject(signal!.reason);
    };
    const timer = clock.setTimer(ms, () => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, { keepAlive });
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
