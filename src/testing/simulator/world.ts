/**
 * Virtual time: events in the order of their instants, and a trace of what happened.
 *
 * @module
 */
import { turn } from "../manual_clock.ts";
import { hash32 } from "./random.ts";

/** Something that will happen. */
interface Event {
  readonly atMs: number;
  readonly order: number;
  run: (() => void) | undefined;
}

/** When every run begins, in milliseconds since the epoch. */
export const EPOCH_MS = 1_700_000_000_000;

/** This many events at one instant are a loop that burns a processor. */
const MAX_EVENTS_AT_ONCE = 2000;

/** A guarantee that did not hold. */
export class Violation extends Error {
  /** The name of the class. */
  override readonly name = "Violation";
  /** Which one: `G1` to `G12`, or what else went wrong. */
  readonly guarantee: string;
  /** When, in virtual milliseconds. */
  readonly atMs: number;

  /**
   * A guarantee did not hold.
   *
   * @param guarantee which one
   * @param message what happened
   * @param atMs when
   */
  constructor(guarantee: string, message: string, atMs: number) {
    super(`${guarantee}: ${message} (at ${atMs.toFixed(3)} ms)`);
    this.guarantee = guarantee;
    this.atMs = atMs;
  }
}

/** The time, what happens in it, and what has happened. */
export class World {
  /** True time, in milliseconds from the start of the run. */
  nowMs = 0;
  /** Events that ran. */
  events = 0;
  /** How often things happened that are worth counting. */
  readonly counts = new Map<string, number>();
  /** The lines of the trace, if it is kept. */
  readonly trace: string[] | undefined;
  /** The first guarantee that did not hold. */
  violation: Violation | undefined;
  /** Whether a check made the library do something, which has to be done before time goes on. */
  isStirred = false;

  readonly #queue = new Queue();
  #order = 0;
  #hash = 0x811c9dc5;
  #atOnce = 0;

  /** @param options `trace`: whether to keep the lines */
  constructor(options: { readonly trace: boolean }) {
    this.trace = options.trace ? [] : undefined;
  }

  /** The hash of all lines of the trace: equal for two runs that did the same. */
  get traceHash(): string {
    return (this.#hash >>> 0).toString(16).padStart(8, "0");
  }

  /**
   * Lets something happen later.
   *
   * @returns calling it prevents the event
   */
  at(atMs: number, run: () => void): () => void {
    const event: Event = { atMs: Math.max(atMs, this.nowMs), order: this.#order++, run };
    this.#queue.push(event);
    return () => {
      event.run = undefined;
    };
  }

  /** True wall clock time, in milliseconds since the epoch. */
  wallMs(): number {
    return EPOCH_MS + this.nowMs;
  }

  /** Notes a line of the trace. */
  log(who: string, what: string): void {
    const line = `${this.nowMs.toFixed(3)} ${who} ${what}`;
    this.#hash = hash32(line, this.#hash);
    this.trace?.push(line);
  }

  /** Counts something. */
  count(what: string, by = 1): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + by);
  }

  /** Reports that a guarantee did not hold; the run ends with the first. */
  fail(guarantee: string, message: string): void {
    if (this.violation) return;
    this.violation = new Violation(guarantee, message, this.nowMs);
    this.log("referee", `VIOLATION ${guarantee}: ${message}`);
  }

  /**
   * Runs events until an instant, or until a guarantee did not hold.
   *
   * @param untilMs the instant
   * @param check called after every event and all that it set off
   * @param isOver ends the run early
   */
  async run(untilMs: number, check: () => void, isOver = () => false): Promise<void> {
    while (!this.violation && !isOver()) {
      const event = this.#queue.peek();
      if (!event || event.atMs > untilMs) break;
      this.#queue.pop();
      if (!event.run) continue;
      this.#atOnce = event.atMs > this.nowMs ? 0 : this.#atOnce + 1;
      if (this.#atOnce > MAX_EVENTS_AT_ONCE) {
        this.fail("busy", "events follow each other in no time");
      }
      this.nowMs = event.atMs;
      this.events++;
      event.run();
      await turn();
      check();
      if (!this.isStirred) continue;
      this.isStirred = false;
      await turn();
    }
    if (!this.violation && !isOver()) this.nowMs = Math.max(this.nowMs, untilMs);
  }
}

/** A binary heap. */
class Queue {
  readonly #heap: Event[] = [];

  peek(): Event | undefined {
    return this.#heap[0];
  }

  push(event: Event): void {
    const heap = this.#heap;
    let at = heap.push(event) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(event, heap[parent]!)) break;
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = event;
  }

  pop(): void {
    const heap = this.#heap;
    const last = heap.pop()!;
    if (heap.length === 0) return;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!isBefore(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
  }
}

function isBefore(a: Event, b: Event): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
}
