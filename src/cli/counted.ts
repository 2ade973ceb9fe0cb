/**
 * Waiters that can be counted. Where a storage has no use for tickets of those who wait out of line, they
 * leave none, and nobody sees how many there are; a person at a terminal wants to.
 *
 * @module
 */
import type { AcquireCommand, Command, OutcomeOf } from "../core/record.ts";
import type { Entry, ExecuteOptions, LeaseStorage, PollMs } from "../core/storage.ts";

/** For how long a ticket stands. */
const TICKET_MS = 10_000;

/** From one refresh of it to the next: refreshing is a write. */
const REFRESH_MS = 6000;

/** Who waits, and when it left its ticket. */
interface Waiting {
  readonly command: AcquireCommand;
  readonly name: string;
  ticketAtMs: number | undefined;
}

/** A storage in which every waiter leaves a ticket, now and then; a ticket that is not fair blocks nobody. */
export class CountedStorage implements LeaseStorage {
  /** As the storage says. */
  readonly pollMs: PollMs;
  /** As the storage says. */
  readonly maxClockSkewMs: number;
  /** As the storage says. */
  readonly wakesTickets: boolean | undefined;
  /** As the storage does. */
  readonly watch?: NonNullable<LeaseStorage["watch"]>;
  /** As the storage does. */
  readonly executeAll?: NonNullable<LeaseStorage["executeAll"]>;

  readonly #storage: LeaseStorage;
  #waiting: Waiting | undefined;

  /** @param storage where the locks are */
  constructor(storage: LeaseStorage) {
    this.#storage = storage;
    this.pollMs = storage.pollMs;
    this.maxClockSkewMs = storage.maxClockSkewMs;
    this.wakesTickets = storage.wakesTickets;
    if (storage.watch) this.watch = storage.watch.bind(storage);
    if (storage.executeAll) {
      this.executeAll = (entries: readonly Entry[], options?: ExecuteOptions) =>
        storage.executeAll!(entries, options);
    }
  }

  /** Applies one command; a second try to acquire leaves a ticket. */
  execute<C extends Command>(
    name: string,
    command: C,
    options?: ExecuteOptions,
  ): Promise<OutcomeOf<C>> {
    return this.#storage.execute(name, this.#ticketed(name, command), options);
  }

  #ticketed<C extends Command>(name: string, command: C): C {
    if (command.type !== "acquire" || command.queueMs > 0) return command;
    const before = this.#waiting;
    if (before?.command.token !== command.token) {
      // Nobody waits who gets the lock at once.
      this.#waiting = { command, name, ticketAtMs: undefined };
      return command;
    }
    const nowMs = performance.now();
    if (before.ticketAtMs !== undefined && nowMs - before.ticketAtMs < REFRESH_MS) return command;
    before.ticketAtMs = nowMs;
    return { ...command, queueMs: TICKET_MS };
  }

  /** Takes the ticket back, of whoever gave up. */
  async leave(): Promise<void> {
    const waiting = this.#waiting;
    if (waiting?.ticketAtMs === undefined) return;
    const { command: { token, ttlMs }, name } = waiting;
    await this.#storage.execute(name, { type: "release", token, keepMs: 0, spentMs: ttlMs });
  }
}
