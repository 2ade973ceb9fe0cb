/**
 * A clock that stands still until it is told to move.
 *
 * @module
 */
import type { Clock, Stamp } from "../core/clock.ts";
import { dispose } from "../core/disposable.ts";

interface Timer {
  readonly atMs: number;
  readonly order: number;
  readonly callback: () => void;
}

/**
 * A {@linkcode Clock} for tests: time passes only in {@linkcode ManualClock.advance}, and the ways in which
 * real clocks fail are methods.
 *
 * @example
 * ```ts
 * import { ManualClock } from "@holdfast/lock/testing";
 * import { Lock, MemoryStorage } from "@holdfast/lock";
 * import { assertEquals } from "@std/assert";
 *
 * const clock = new ManualClock();
 * const storage = new MemoryStorage({ clock });
 * const lease = await new Lock({ storage, clock, name: "job", ttlMs: 1000 }).acquire();
 * clock.freeze(1000);
 * assertEquals(lease.isHeld(), false);
 * ```
 */
export class ManualClock implements Clock {
  #monotonicMs = 0;
  #wallMs: number;
  #order = 0;
  readonly #timers = new Set<Timer>();

  /**
   * Makes a clock that stands still.
   *
   * @param startMs the wall clock's first reading, in milliseconds since the epoch
   */
  constructor(startMs = 1_700_000_000_000) {
    this.#wallMs = startMs;
  }

  /** Timers that have not run yet. */
  get pendingTimers(): number {
    return this.#timers.size;
  }

  /** Reads both clocks. */
  read(): Stamp {
    return { monotonicMs: this.#monotonicMs, wallMs: this.#wallMs };
  }

  /** Calls `callback` once, when {@linkcode ManualClock.advance} has passed `ms` from now. */
  setTimer(ms: number, callback: () => void): Disposable {
    const timer = { atMs: this.#monotonicMs + Math.max(ms, 0), order: this.#order++, callback };
    this.#timers.add(timer);
    return { [dispose]: () => void this.#timers.delete(timer) };
  }

  /**
   * Lets time pass, and runs what falls due in its order, each at its own instant, with everything that it
   * sets off.
   *
   * @param ms milliseconds
   */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#monotonicMs + ms;
    await turn();
    for (let timer = this.#next(untilMs); timer; timer = this.#next(untilMs)) {
      this.#move(Math.max(timer.atMs - this.#monotonicMs, 0));
      this.#timers.delete(timer);
      timer.callback();
      await turn();
    }
    this.#move(Math.max(untilMs - this.#monotonicMs, 0));
  }

  /**
   * Both clocks move and no code runs (SIGSTOP, a frozen function): what is overdue runs on the next
   * {@linkcode ManualClock.advance}, even by 0.
   *
   * @param ms milliseconds
   */
  freeze(ms: number): void {
    this.#move(ms);
  }

  /**
   * Only the wall clock moves (a suspended machine, whose monotonic clock stands still).
   *
   * @param ms milliseconds
   */
  suspend(ms: number): void {
    this.#wallMs += ms;
  }

  /**
   * The wall clock is set.
   *
   * @param ms milliseconds, either way
   */
  stepWall(ms: number): void {
    this.#wallMs += ms;
  }

  #move(ms: number): void {
    this.#monotonicMs += ms;
    this.#wallMs += ms;
  }

  /** The timer that is due first. */
  #next(untilMs: number): Timer | undefined {
    let next: Timer | undefined;
    for (const timer of this.#timers) {
      if (timer.atMs > untilMs) continue;
      if (
        !next || timer.atMs < next.atMs || (timer.atMs === next.atMs && timer.order < next.order)
      ) {
        next = timer;
      }
    }
    return next;
  }
}

/** Lets every promise that can settle do so: one turn of the event loop. */
export function turn(): Promise<void> {
  const { setImmediate } = globalThis as { setImmediate?: (callback: () => void) => unknown };
  return new Promise((resolve) => {
    if (setImmediate) setImmediate(resolve);
    else setTimeout(resolve, 0);
  });
}
