/**
 * Sees to it that a command does not work on without its lease.
 *
 * @module
 */
import type { LeaseLostError, LossReason } from "../core/errors.ts";
import type { Lease } from "../core/lease.ts";

/** What the guard needs of a lease. */
export type Guarded = Pick<Lease, "remainingMs" | "signal">;

/** Why a command was told to end. */
export type Cause = LossReason | "renewals-failed";

/** What the guard does. */
export interface Means {
  /** Sends a signal to the command. */
  strike(signal: "SIGTERM" | "SIGKILL", cause: Cause): void;
  /** The lease lasts for `leftMs` from now. */
  extend(leftMs: number): void;
}

/** The clock is looked at this often, because a suspended machine's timers are late; in milliseconds. */
const LOOK_EVERY_MS = 200;

/**
 * Watches the local deadline of a lease with a timer of its own, whatever the storage does:
 *
 * - When renewals have failed until no more than `graceMs` is left, SIGTERM; at the deadline, SIGKILL. As
 *   long as renewals succeed, more than that is always left.
 * - When the lease is gone at once (evicted, superseded), SIGTERM, and SIGKILL after `graceMs`.
 */
export class Guard {
  readonly #lease: Guarded;
  readonly #graceMs: number;
  readonly #means: Means;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #cause: Cause | undefined;
  #killAtMs: number | undefined;
  #isOver = false;

  /**
   * @param lease the lease
   * @param graceMs what the command gets between SIGTERM and SIGKILL, in milliseconds
   * @param means sends the signals
   */
  constructor(lease: Guarded, graceMs: number, means: Means) {
    this.#lease = lease;
    this.#graceMs = graceMs;
    this.#means = means;
    lease.signal.addEventListener("abort", this.#onAbort);
    this.look();
  }

  /** Why the command was told to end; `undefined` if it was not. */
  get cause(): Cause | undefined {
    return this.#cause;
  }

  /** How long the command may go on after it was told to end, in milliseconds. */
  get patienceMs(): number {
    return this.#patienceMs(this.#lease.remainingMs());
  }

  /** Looks at the clock, and does what is due. */
  look(): void {
    clearTimeout(this.#timer);
    // First, because it is what declares a loss.
    const leftMs = this.#lease.remainingMs();
    const { aborted, reason } = this.#lease.signal;
    const lost: LeaseLostError | undefined = aborted ? reason : undefined;
    if (this.#isOver) return;
    if (!lost) this.#means.extend(leftMs);
    // Often enough for whoever else was told of the deadline to hear in time that it has moved.
    if (!lost && leftMs > this.#graceMs) {
      return this.#again(Math.min(leftMs - this.#graceMs, leftMs / 2));
    }
    const cause = lost?.reason ?? "renewals-failed";
    if (cause === "evicted" || cause === "superseded") {
      this.#killAtMs ??= performance.now() + this.#graceMs;
    } else if (lost || leftMs <= 0) {
      this.#killAtMs = -Infinity;
    }
    const patienceMs = this.#patienceMs(leftMs);
    if (patienceMs <= 0) {
      this.#isOver = true;
      this.#cause ??= cause;
      return this.#means.strike("SIGKILL", cause);
    }
    if (!this.#cause) {
      this.#cause = cause;
      this.#means.strike("SIGTERM", cause);
    }
    this.#again(patienceMs);
  }

  /** The command has ended. */
  stop(): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
    this.#lease.signal.removeEventListener("abort", this.#onAbort);
  }

  #patienceMs(leftMs: number): number {
    return Math.max(0, this.#killAtMs === undefined ? leftMs : this.#killAtMs - performance.now());
  }

  readonly #onAbort = (): void => this.look();

  #again(inMs: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.look(), Math.min(Math.max(inMs, 1), LOOK_EVERY_MS));
  }
}
