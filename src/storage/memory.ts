/**
 * Leases in the memory of one process: for tests, for one server, and as the smallest storage to read.
 *
 * @example
 * ```ts
 * import { Lock, MemoryStorage } from "@holdfast/lock";
 * import { assertEquals } from "@std/assert";
 *
 * const storage = new MemoryStorage();
 * const lock = new Lock({ storage, name: "cache:warm" });
 * await using lease = await lock.acquire();
 * assertEquals(await new Lock({ storage, name: "cache:warm" }).tryAcquire(), null);
 * assertEquals(lease.status, "held");
 * ```
 *
 * @module
 */
import { type Clock, systemClock } from "../core/clock.ts";
import { dispose } from "../core/disposable.ts";
import {
  type Command,
  EMPTY_RECORD,
  type LeaseRecord,
  type Outcome,
  type OutcomeOf,
  step,
} from "../core/record.ts";
import {
  type Entry,
  type ExecuteOptions,
  type LeaseStorage,
  type PollMs,
  waiterMark,
  type Watch,
} from "../core/storage.ts";

/** Options of a {@linkcode MemoryStorage}. */
export interface MemoryStorageOptions {
  /** Says the time. */
  readonly clock?: Clock | undefined;
}

/** From this many records on the dead ones are looked for, each time their number has doubled. */
const SWEEP_FROM = 1024;

/** Keeps records in a map, by the time of its clock. Releases wake waiters directly. */
export class MemoryStorage implements LeaseStorage {
  /** How often waiters may ask. */
  readonly pollMs: PollMs = { min: 5, max: 50 };
  /** The storage says the time. */
  readonly maxClockSkewMs = 0;
  /** A release wakes the first who left a ticket. */
  readonly wakesTickets = true;

  readonly #clock: Clock;
  readonly #records = new Map<string, LeaseRecord>();
  readonly #watchers = new Map<string, Set<(next?: string) => void>>();
  #sweepAt = SWEEP_FROM;

  /**
   * Makes an empty storage.
   *
   * @param options `clock`: says the time
   */
  constructor(options: MemoryStorageOptions = {}) {
    this.#clock = options.clock ?? systemClock;
  }

  /**
   * Applies one command, at once.
   *
   * @param name the lock
   * @param command what to do
   * @param options `signal`: nothing is done if it is aborted
   * @returns the outcome
   */
  // deno-lint-ignore require-await -- an abort rejects, and never throws
  async execute<C extends Command>(
    name: string,
    command: C,
    options: ExecuteOptions = {},
  ): Promise<OutcomeOf<C>> {
    options.signal?.throwIfAborted();
    const record = this.#records.get(name) ?? EMPTY_RECORD;
    const next = step(record, command, this.#nowUs());
    if (next.record !== record) {
      this.#records.set(name, next.record);
      if (this.#records.size >= this.#sweepAt) this.#sweep();
    }
    if (next.wake !== undefined) this.#wake(name, waiterMark(next.wake));
    return next.outcome;
  }

  /**
   * Applies many commands, at once.
   *
   * @param entries locks and what to do to them
   * @returns an outcome for each
   */
  executeAll(entries: readonly Entry[]): Promise<PromiseSettledResult<Outcome>[]> {
    return Promise.allSettled(entries.map(({ name, command }) => this.execute(name, command)));
  }

  /**
   * Subscribes to hints; live at once.
   *
   * @param name the lock
   * @param wake called when the lock may be free
   * @returns the subscription
   */
  watch(name: string, wake: (next?: string) => void): Watch {
    let watchers = this.#watchers.get(name);
    if (!watchers) this.#watchers.set(name, watchers = new Set());
    // A function of our own: the same `wake` may be here twice.
    const own = (next?: string): void => wake(next);
    watchers.add(own);
    wake();
    return {
      live: true,
      [dispose]: () => {
        watchers.delete(own);
        const isLast = watchers.size === 0 && this.#watchers.get(name) === watchers;
        if (isLast) this.#watchers.delete(name);
      },
    };
  }

  #nowUs(): number {
    return Math.floor(this.#clock.read().wallMs * 1000);
  }

  #wake(name: string, next: string): void {
    for (const wake of [...this.#watchers.get(name) ?? []]) wake(next);
  }

  /** A record is dead when all in it is, and its fence is in the past. */
  #sweep(): void {
    const nowUs = this.#nowUs();
    for (const [name, { fence, holders, tickets, spent }] of this.#records) {
      const live = [...holders, ...tickets, ...spent].some((e) => nowUs < e.expiresAtMs * 1000);
      if (!live && fence < nowUs) this.#records.delete(name);
    }
    this.#sweepAt = Math.max(SWEEP_FROM, 2 * this.#records.size);
  }
}
