/**
 * The in-process queue in front of a storage: of many waiters in one process, one talks to the storage.
 *
 * Nobody here depends on somebody else's promise or timer, because on some platforms these die with the
 * request that made them (Cloudflare Workers). Everyone in a line says until when it can be trusted to
 * act, sleeps on a timer of its own until then, and passes whoever has not acted.
 *
 * @module
 */
import { elapsedForHolderMs, type Stamp } from "./clock.ts";
import type { Span } from "./lifecycle.ts";
import type { LeaseStorage } from "./storage.ts";

/** Who stands in a line: a waiter, or a holder that is not out of the way yet. */
interface Place {
  /** Who came first has the smaller number. */
  readonly order: number;
  readonly permits: number;
  wake: () => void;
  /** For how long the others have to believe that it is alive. */
  trustedMs: (now: Stamp) => number;
}

/** Those of one process who want, or have, the same lock. */
interface Line {
  holders: readonly Place[];
  /** A new list once it is empty: one that was longer keeps its memory. */
  waiters: Place[];
}

/** For how long those behind believe in one who has not promised anything yet, in milliseconds. */
const UNTIL_PROMISED_MS = 1;

const gates = new WeakMap<LeaseStorage, Gate>();

/** The lines of one process in front of one storage. */
export class Gate {
  readonly #lines = new Map<string, Line>();
  #joined = 0;

  /** The gate of a storage. */
  static of(storage: LeaseStorage): Gate {
    let gate = gates.get(storage);
    if (!gate) gates.set(storage, gate = new Gate());
    return gate;
  }

  /**
   * For how long a newcomer is kept out by holders of this process, in milliseconds.
   *
   * @returns 0 if it is not
   */
  blockedByHoldersMs(name: string, permits: number, capacity: number, now: Stamp): number {
    let taken = permits;
    let blockedMs = Infinity;
    for (const holder of this.#lines.get(name)?.holders ?? []) {
      const trustedMs = holder.trustedMs(now);
      if (trustedMs <= 0) continue;
      taken += holder.permits;
      blockedMs = Math.min(blockedMs, trustedMs);
    }
    return taken > capacity ? blockedMs : 0;
  }

  /** Takes the last place in the line of a lock. `wake` is called when it is worth looking again. */
  join(name: string, permits: number, capacity: number, wake: () => void): Turn {
    const order = this.#joined++;
    const place: Place = { order, permits, wake, trustedMs: () => UNTIL_PROMISED_MS };
    const line = this.line(name);
    line.waiters.push(place);
    return new Turn(this, name, capacity, line, place);
  }

  /** The line of a lock; a new one if nobody stands there. */
  line(name: string): Line {
    let line = this.#lines.get(name);
    if (!line) this.#lines.set(name, line = { holders: [], waiters: [] });
    return line;
  }

  /** Forgets a line that nobody stands in. */
  tidy(name: string, line: Line): void {
    const empty = line.holders.length + line.waiters.length === 0;
    if (empty && this.#lines.get(name) === line) this.#lines.delete(name);
  }
}

/** One place in a line. */
export class Turn {
  readonly #gate: Gate;
  readonly #name: string;
  readonly #capacity: number;
  readonly #place: Place;
  #line: Line;

  /** Made by {@linkcode Gate.join}. */
  constructor(gate: Gate, name: string, capacity: number, line: Line, place: Place) {
    this.#gate = gate;
    this.#name = name;
    this.#capacity = capacity;
    this.#line = line;
    this.#place = place;
  }

  /**
   * For how long this place has to wait for whoever is in front, in milliseconds. Whoever did not act in
   * time loses its place, so that no hint goes to the dead; one that comes back has it again, because its
   * ticket in the storage, if it is still there, is in front of those of whoever passed it.
   *
   * @returns 0 if it may talk to the storage
   */
  blockedMs(now: Stamp): number {
    let at = this.#line.waiters.indexOf(this.#place);
    if (at < 0) {
      this.#line = this.#gate.line(this.#name);
      const { waiters } = this.#line;
      at = waiters.filter(({ order }) => order < this.#place.order).length;
      waiters.splice(at, 0, this.#place);
    }
    const { waiters } = this.#line;
    while (at > 0) {
      const trustedMs = waiters[--at]!.trustedMs(now);
      if (trustedMs > 0) return trustedMs;
      waiters.splice(at, 1);
    }
    return this.#gate.blockedByHoldersMs(this.#name, this.#place.permits, this.#capacity, now);
  }

  /** Promises those behind to act within the span. */
  promise(span: Span): void {
    this.#place.trustedMs = (now) => span.ms - elapsedForHolderMs(span.since, now);
  }

  /** From waiter to holder: in the way for as long as `trustedMs` says. */
  hold(trustedMs: (now: Stamp) => number): void {
    this.#place.trustedMs = trustedMs;
    // Nobody wakes a holder, and what waited for the lock can be collected.
    this.#place.wake = () => {};
    this.#remove();
    this.#line = this.#gate.line(this.#name);
    this.#line.holders = this.#line.holders.concat(this.#place);
    this.#wakeFirst();
  }

  /** Goes, from wherever it stands. */
  leave(): void {
    this.#remove();
    this.#wakeFirst();
    this.#gate.tidy(this.#name, this.#line);
  }

  #remove(): void {
    const line = this.#line;
    line.holders = line.holders.filter((place) => place !== this.#place);
    const at = line.waiters.indexOf(this.#place);
    if (at >= 0) line.waiters.splice(at, 1);
    if (line.waiters.length === 0) line.waiters = [];
  }

  #wakeFirst(): void {
    this.#line.waiters[0]?.wake();
  }
}
