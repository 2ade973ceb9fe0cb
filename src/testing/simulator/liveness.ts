/**
 * What has to happen when nothing goes wrong any more.
 *
 * @module
 */
import { isLive, type Ledger } from "./ledger.ts";
import type { Process } from "./process.ts";
import type { World } from "./world.ts";

/** Someone in `acquire()`. */
export interface Waiter {
  readonly process: Process;
  readonly name: string;
  readonly permits: number;
  readonly capacity: number;
}

/** What liveness is measured by. */
export interface LivenessOptions {
  /** The latest and the earliest instant that a clock which decides may show, in microseconds. */
  readonly latestUs: () => number;
  readonly earliestUs: () => number;
  /** How long a lock may stay free under the eyes of a waiter, in milliseconds. */
  readonly boundMs: () => number;
  /**
   * How long a waiter keeps its place, in milliseconds; `undefined` where it may lose it in races with others
   * for the same register.
   */
  readonly queueMs: number | undefined;
  /** What is added to every expiry, in milliseconds. */
  readonly marginMs: number;
}

/** Who waits, and since when in vain. */
export class Liveness {
  readonly #world: World;
  readonly #ledger: Ledger;
  readonly #options: LivenessOptions;
  readonly #waiters = new Set<Waiter>();
  readonly #freeSinceMs = new Map<string, number>();
  #calmSinceUs = Infinity;
  /** Tokens that somebody asked with since then: what a fault left behind asks for nothing. */
  readonly #asked = new Set<string>();

  constructor(world: World, ledger: Ledger, options: LivenessOptions) {
    this.#world = world;
    this.#ledger = ledger;
    this.#options = options;
    ledger.onGrant = (name) => this.#freeSinceMs.delete(name);
  }

  /** From now on nothing goes wrong. */
  calm(): void {
    this.#calmSinceUs = this.#options.latestUs();
  }

  /** Someone asks for a lock. */
  asks(token: string): void {
    if (this.#calmSinceUs < Infinity) this.#asked.add(token);
  }

  /** Someone waits; to be given back when it does not any more. */
  waits(waiter: Waiter): () => void {
    this.#waiters.add(waiter);
    return () => this.#waiters.delete(waiter);
  }

  /** G8 and, for tickets, G10. */
  check(): void {
    if (this.#calmSinceUs === Infinity) return;
    for (const name of this.#ledger.names()) {
      this.#checkFree(name);
      this.#checkTickets(name);
    }
  }

  /** A lock that all who wait could have does not stay free. */
  #checkFree(name: string): void {
    const { nowMs } = this.#world;
    if (!this.#isFree(name)) return void this.#freeSinceMs.delete(name);
    const sinceMs = this.#freeSinceMs.get(name);
    if (sinceMs === undefined) return void this.#freeSinceMs.set(name, nowMs);
    const boundMs = this.#options.boundMs();
    if (nowMs - sinceMs > boundMs) {
      this.#world.fail("G8", `${name} is free for more than ${boundMs} ms, and somebody waits`);
    }
  }

  #isFree(name: string): boolean {
    const waiters = [...this.#waiters].filter((w) => w.name === name && w.process.isRunning);
    if (waiters.length === 0) return false;
    const { holders, tickets } = this.#ledger.record(name);
    const earliestUs = this.#options.earliestUs();
    const live = holders.filter((h) => isLive(h, earliestUs));
    const queued = tickets.filter((t) => t.fair && isLive(t, earliestUs));
    if (!queued.every((t) => this.#asked.has(t.token))) return false;
    const taken = live.reduce((sum, h) => sum + h.permits, 0);
    return waiters.every(({ permits, capacity }) =>
      taken + permits <= capacity && live.every((h) => h.capacity === capacity)
    );
  }

  /** A waiter that runs and is heard refreshes its ticket in time. */
  #checkTickets(name: string): void {
    const { earliestUs, queueMs, marginMs } = this.#options;
    if (queueMs === undefined) return;
    for (const ticket of this.#ledger.record(name).tickets) {
      const askedAtMs = ticket.expiresAtMs - queueMs - 2 * marginMs;
      if (askedAtMs * 1000 > this.#calmSinceUs && !isLive(ticket, earliestUs())) {
        this.#world.fail("G10", `a waiter of ${name} lost its place: ${ticket.token}`);
      }
    }
  }
}
