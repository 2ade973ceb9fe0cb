/**
 * What a client has itself seen of holdings: where the storage has no clock of its own, one that was watched
 * unchanged for longer than it can live is dead, whatever the wall clocks say.
 *
 * @module
 */
import { type Clock, elapsedForObserverMs, type Stamp } from "./clock.ts";
import type { Beat, Command, LeaseRecord } from "./record.ts";

/** Client clocks run within 1 % of each other. */
export const OBSERVER_MARGIN = 1.01;

/** How many names a storage remembers, for records and for sightings. */
const MAX_REMEMBERED = 1000;

/** Since when a holding has been seen without a change. */
interface Sighting extends Beat {
  readonly ttlMs: number;
  readonly since: Stamp;
}

/** The sightings of one storage. */
export class Sightings {
  readonly #clock: Clock;
  readonly #maxClockSkewMs: number;
  readonly #byName = new Map<string, readonly Sighting[]>();

  /**
   * Has seen nothing yet.
   *
   * @param clock measures for how long
   * @param maxClockSkewMs the bound between the wall clocks of any two clients, in milliseconds
   */
  constructor(clock: Clock, maxClockSkewMs: number) {
    this.#clock = clock;
    this.#maxClockSkewMs = maxClockSkewMs;
  }

  /**
   * Notes since when each holding has been unchanged.
   *
   * @param name the lock
   * @param record what was read, just now
   */
  see(name: string, record: LeaseRecord): void {
    const before = this.#byName.get(name);
    this.#byName.delete(name);
    if (record.holders.length === 0) return;
    const since = this.#clock.read();
    const sightings = record.holders.map(({ fence, beats, ttlMs }) =>
      before?.find((s) => s.fence === fence && s.beats === beats) ?? { fence, beats, ttlMs, since }
    );
    putBounded(this.#byName, name, sightings);
  }

  /**
   * Adds to an acquire which holdings were watched for longer than they can live.
   *
   * @param name the lock
   * @param command what is about to be done
   * @returns the command
   */
  complete<C extends Command>(name: string, command: C): C {
    const sightings = this.#byName.get(name);
    if (command.type !== "acquire" || !sightings) return command;
    const now = this.#clock.read();
    const dead = sightings.filter((s) =>
      elapsedForObserverMs(s.since, now) >= (s.ttlMs + this.#maxClockSkewMs) * OBSERVER_MARGIN
    );
    return dead.length === 0
      ? command
      : { ...command, presumedDead: [...command.presumedDead, ...dead] };
  }
}

/**
 * Sets an entry of a map that forgets its oldest beyond {@linkcode MAX_REMEMBERED}.
 *
 * @param map the map
 * @param name the key
 * @param value the value
 */
export function putBounded<T>(map: Map<string, T>, name: string, value: T): void {
  map.delete(name);
  map.set(name, value);
  if (map.size > MAX_REMEMBERED) map.delete(map.keys().next().value!);
}
