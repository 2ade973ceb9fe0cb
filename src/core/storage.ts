/**
 * The one statement of a storage's duty. Two ways to do it: run `step` of `record.ts` inside the product
 * (as the Redis script does), or give the product as a {@linkcode Register} to `RegisterStorage`.
 *
 * A storage applies each command atomically, asks no questions about who may hold (that is `step`), and
 * never guesses: it answers with an outcome only if it knows it.
 *
 * @module
 */
import type { Command, Outcome, OutcomeOf } from "./record.ts";

/** Options of one request. */
export interface ExecuteOptions {
  /** Tells the storage that nobody waits for the answer any more. */
  readonly signal?: AbortSignal | undefined;
}

/** One entry of {@linkcode LeaseStorage.executeAll}. */
export interface Entry {
  /** The name of the lock. */
  readonly name: string;
  /** What to do to its record. */
  readonly command: Command;
}

/** How often to ask again, in milliseconds; a waiter backs off from `min` to `max`. */
export interface PollMs {
  /** The first sleep. */
  readonly min: number;
  /** The longest sleep. */
  readonly max: number;
}

/** A subscription to hints that a lock may be free. */
export interface Watch extends Disposable {
  /** Whether hints can be expected now; while it is false, a waiter polls. */
  readonly live: boolean;
}

/** What a product has to do to keep leases. */
export interface LeaseStorage {
  /**
   * Applies one command to the record of `name`, atomically.
   *
   * @throws {StorageError} only if the outcome is unknown or the product refused; contention is an
   *   outcome
   */
  execute<C extends Command>(
    name: string,
    command: C,
    options?: ExecuteOptions,
  ): Promise<OutcomeOf<C>>;
  /** The same for many locks in as few requests as the product allows; each entry stands alone. */
  executeAll?(
    entries: readonly Entry[],
    options?: ExecuteOptions,
  ): Promise<PromiseSettledResult<Outcome>[]>;
  /**
   * Calls `wake` when the lock may be free, and once when the subscription is live (again). A hint: it
   * may come late, twice or never. `next` is the {@linkcode waiterMark} of the waiter that is meant, where
   * the product knows it; `mark` is the watcher's own, and hints for others may be left out.
   */
  watch?(name: string, wake: (next?: string) => void, mark: string): Watch;
  /** Whether a release gives hints only to those who left a ticket. */
  readonly wakesTickets?: boolean | undefined;
  /** How often waiters may ask. */
  readonly pollMs: PollMs;
  /** The bound between the wall clocks of any two clients; 0 where the storage says the time. */
  readonly maxClockSkewMs: number;
}

/**
 * What may be said in public of a waiting token, to tell waiters apart: 32 of its 122 random bits.
 *
 * @param token a holder token
 * @returns its first 8 characters
 */
export function waiterMark(token: string): string {
  return token.slice(0, 8);
}
