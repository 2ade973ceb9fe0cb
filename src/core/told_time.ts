/**
 * What time a server said it was, to do without asking it again where a time that is surely not ahead suffices.
 *
 * @module
 */
import { type Clock, elapsedForHolderMs, type Stamp } from "./clock.ts";
import { OBSERVER_MARGIN, putBounded } from "./sightings.ts";

/** After how long the server has to be asked again, in milliseconds: its clock, or the server, may be another. */
export const MAX_AGE_MS = 5000;

interface Told {
  readonly nowUs: number;
  readonly since: Stamp;
  readonly askedAt: Stamp;
}

/** The server's time, as it was told with the record of each lock. */
export class ToldTime {
  readonly #clock: Clock;
  readonly #byName = new Map<string, Told>();

  /**
   * Was told nothing yet.
   *
   * @param clock measures the time since
   */
  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Notes what the server said, just now.
   *
   * @param name the lock
   * @param nowUs the server's time, in microseconds since the epoch
   * @param askedAt taken before it was asked for: what it says may be as old as that
   */
  tell(name: string, nowUs: number, askedAt: Stamp): void {
    putBounded(this.#byName, name, { nowUs, since: this.#clock.read(), askedAt });
  }

  /**
   * Makes the next command ask the server.
   *
   * @param name the lock
   */
  forget(name: string): void {
    this.#byName.delete(name);
  }

  /**
   * A time that the server's clock has reached.
   *
   * @param name the lock
   * @returns microseconds since the epoch; `undefined` where the server has to be asked
   */
  atLeastUs(name: string): number | undefined {
    const told = this.#byName.get(name);
    if (!told) return undefined;
    const now = this.#clock.read();
    if (elapsedForHolderMs(told.askedAt, now) > MAX_AGE_MS) return undefined;
    const elapsedMs = (now.monotonicMs - told.since.monotonicMs) / OBSERVER_MARGIN;
    return told.nowUs + Math.floor(elapsedMs * 1000);
  }
}
