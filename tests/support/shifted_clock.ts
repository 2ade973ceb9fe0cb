/**
 * The clock of a machine whose wall clock is wrong, or that has been running for longer.
 *
 * @module
 */
import { type Clock, type Stamp, systemClock } from "../../src/core/clock.ts";

/** The system's clock, moved; its timers are the system's. */
export class ShiftedClock implements Clock {
  readonly setTimer = systemClock.setTimer;
  #passedMs = 0;
  readonly #wrongMs: number;

  /** @param wrongMs how far the wall clock is ahead of the right time, in milliseconds */
  constructor(wrongMs = 0) {
    this.#wrongMs = wrongMs;
  }

  read(): Stamp {
    const { monotonicMs, wallMs } = systemClock.read();
    return {
      monotonicMs: monotonicMs + this.#passedMs,
      wallMs: wallMs + this.#passedMs + this.#wrongMs,
    };
  }

  /** Lets time pass on both clocks at once. */
  pass(ms: number): void {
    this.#passedMs += ms;
  }
}
