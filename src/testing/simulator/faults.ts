/**
 * What can go wrong, how likely, and how often it did.
 *
 * @module
 */
import type { Random } from "./random.ts";
import type { World } from "./world.ts";

/** One kind of thing that goes wrong. */
export type SimulatedFault =
  | "request-lost"
  | "request-late"
  | "reply-lost"
  | "reply-late"
  | "failed-before"
  | "failed-after"
  | "duplicate-soon"
  | "duplicate-late"
  | "library-resend"
  | "hint-lost"
  | "hint-late"
  | "hint-twice"
  | "freeze-before-send"
  | "freeze-after-send"
  | "freeze-after-reply"
  | "freeze-before-use"
  | "crash-before-send"
  | "crash-after-send"
  | "crash-after-reply"
  | "crash-before-use"
  | "freeze"
  | "suspend"
  | "crash"
  | "wall-step"
  | "wild-wall-step"
  | "storage-down"
  | "storage-loses-data"
  | "record-evicted"
  | "server-clock-step"
  | "foreign-record"
  | "future-line";

/** Faults of one message, with their probability per message. */
export const MESSAGE_FAULTS: readonly SimulatedFault[] = [
  "request-lost",
  "request-late",
  "reply-lost",
  "reply-late",
  "failed-before",
  "failed-after",
  "duplicate-soon",
  "duplicate-late",
  "library-resend",
];

/** Faults of one hint of a watch, with their probability per hint. */
export const HINT_FAULTS: readonly SimulatedFault[] = ["hint-lost", "hint-late", "hint-twice"];

/** What befalls a process at a message of its own, with its probability per message. */
export const POINT_FAULTS: readonly SimulatedFault[] = [
  "freeze-before-send",
  "freeze-after-send",
  "freeze-after-reply",
  "freeze-before-use",
  "crash-before-send",
  "crash-after-send",
  "crash-after-reply",
  "crash-before-use",
];

/** What befalls a process or the storage at any time, with its probability per second. */
export const TIMED_FAULTS: readonly SimulatedFault[] = [
  "freeze",
  "suspend",
  "crash",
  "wall-step",
  "wild-wall-step",
  "storage-down",
  "storage-loses-data",
  "record-evicted",
  "server-clock-step",
  "foreign-record",
  "future-line",
];

/** The probability of each fault that can occur. */
export type FaultRates = Readonly<Partial<Record<SimulatedFault, number>>>;

/** Draws faults, each kind from a stream of its own, so that leaving one out does not change the others. */
export class Faults {
  /** Whether anything goes wrong at all. */
  areOn = true;
  readonly #world: World;
  readonly #rates: FaultRates;
  readonly #random: Random;
  readonly #streams = new Map<string, Random>();

  constructor(world: World, rates: FaultRates, random: Random) {
    this.#world = world;
    this.#rates = rates;
    this.#random = random;
  }

  /** Whether a fault strikes now. `who` has a stream of its own. */
  strike(fault: SimulatedFault, who: string): boolean {
    const rate = this.#rates[fault] ?? 0;
    if (!this.areOn || rate === 0 || !this.stream(fault, who).chance(rate)) return false;
    this.#world.count(`fault ${fault}`);
    return true;
  }

  /** Where the details of a fault are drawn from. */
  stream(fault: SimulatedFault, who: string): Random {
    const key = `${fault}/${who}`;
    let stream = this.#streams.get(key);
    if (!stream) this.#streams.set(key, stream = this.#random.fork(key));
    return stream;
  }
}
