/**
 * Leases in a SQLite file, between the processes of one machine, for `node:sqlite` (Deno, Node from 22.16
 * on) and `bun:sqlite`: the storage that needs nothing installed.
 *
 * All clients share the machine's clock, so expiries carry no margin for skew. SQLite has one writer: what
 * writes to the file for long, in whatever table, keeps renewals waiting; such transactions have to be much
 * shorter than the leases, or the leases need a file of their own. Write-ahead logging (`PRAGMA journal_mode
 * = WAL`) is recommended, a network file system is not.
 *
 * @example
 * ```ts
 * import { DatabaseSync } from "node:sqlite";
 * import { Lock } from "@holdfast/lock";
 * import { SqliteStorage } from "@holdfast/lock/sqlite";
 * import { assertEquals } from "@std/assert";
 *
 * const db = new DatabaseSync(":memory:");
 * const lock = new Lock({ storage: new SqliteStorage(db), name: "nightly-report" });
 * assertEquals(await lock.with(() => "done"), "done");
 * db.close();
 * ```
 *
 * @module
 */
import { backoffMs } from "../core/backoff.ts";
import { type Clock, sleep, systemClock } from "../core/clock.ts";
import { decodeStored, encodeRecord, lastExpiryMs } from "../core/codec.ts";
import { type Entropy, systemEntropy } from "../core/entropy.ts";
import { StaleFenceError, StorageError } from "../core/errors.ts";
import type { Fenced } from "../core/lease.ts";
import {
  type Command,
  type LeaseRecord,
  type Outcome,
  type OutcomeOf,
  type Step,
  step,
} from "../core/record.ts";
import { DEFAULT_RETENTION_MS } from "../core/register.ts";
import { Sightings } from "../core/sightings.ts";
import type { Entry, ExecuteOptions, LeaseStorage, PollMs } from "../core/storage.ts";
import { checkMs, checkPollMs, checkText } from "../core/validate.ts";
import { isBusy, isInTransaction, type SqliteDatabase, storageError } from "./_sqlite_database.ts";
import { SqliteTable } from "./_sqlite_table.ts";

export type { SqliteDatabase, SqliteStatement } from "./_sqlite_database.ts";

/** Options of a {@linkcode SqliteStorage}. */
export interface SqliteStorageOptions {
  /**
   * The table of the records, made by the first command.
   *
   * @default {"holdfast"}
   */
  readonly table?: string | undefined;
  /**
   * For how long a record outlives its last expiry, in milliseconds.
   *
   * @default {3600000}
   */
  readonly retentionMs?: number | undefined;
  /**
   * How often waiters may ask, in milliseconds.
   *
   * @default {{ min: 5, max: 50 }}
   */
  readonly pollMs?: PollMs | undefined;
  /** Where the time comes from. */
  readonly clock?: Clock | undefined;
  /** Where jitter comes from. */
  readonly entropy?: Entropy | undefined;
}

/** For how long a command waits for other writers of the file, in milliseconds. */
const BUSY_LIMIT_MS = 5000;

const BUSY_BACKOFF_MS: PollMs = { min: 1, max: 25 };

/** A record, and what a command would make of it. */
interface Look<C extends Command> {
  readonly record: LeaseRecord;
  readonly next: Step<OutcomeOf<C>>;
}

/** Gives {@linkcode fenceCheck}, and nobody else, a way in. */
let checkFence: (storage: SqliteStorage, lease: Fenced, db: SqliteDatabase | undefined) => void;

/**
 * Keeps leases in a SQLite file: one immediate transaction for each command that changes something, none for
 * one that does not. A file that somebody else is writing to is tried again, for at most five seconds and
 * without blocking the event loop. Deletes records of locks that were out of use for `retentionMs`, two for
 * each new name.
 *
 * @example
 * ```ts
 * import { DatabaseSync } from "node:sqlite";
 * import { Lock } from "@holdfast/lock";
 * import { SqliteStorage } from "@holdfast/lock/sqlite";
 * import { assertEquals } from "@std/assert";
 *
 * const db = new DatabaseSync(":memory:");
 * const storage = new SqliteStorage(db);
 * const lease = await new Lock({ storage, name: "nightly-report" }).acquire();
 * assertEquals(await new Lock({ storage, name: "nightly-report" }).tryAcquire(), null);
 * await lease.release();
 * db.close();
 * ```
 */
export class SqliteStorage implements LeaseStorage {
  /** How often waiters may ask. */
  readonly pollMs: PollMs;
  /** All clients share one machine. */
  readonly maxClockSkewMs = 0;

  readonly #db: SqliteDatabase;
  readonly #table: SqliteTable;
  readonly #retentionMs: number;
  readonly #clock: Clock;
  readonly #entropy: Entropy;
  readonly #sightings: Sightings;

  static {
    checkFence = (storage, lease, db) => storage.#checkFence(lease, db ?? storage.#db);
  }

  /**
   * Takes a database.
   *
   * @param db the user's database; not one whose transactions stay open over an `await`
   * @param options `table`, `retentionMs`, `pollMs`
   * @throws {TypeError} if the runtime is too old to say whether a transaction is open
   */
  constructor(db: SqliteDatabase, options: SqliteStorageOptions = {}) {
    if (typeof (db.isTransaction ?? db.inTransaction) !== "boolean") {
      throw new TypeError(
        "Cannot use db as it must be a DatabaseSync with isTransaction (Node 22.16) or a Database " +
          "of bun:sqlite",
      );
    }
    this.#db = db;
    this.#table = new SqliteTable(db, checkText("table", options.table ?? "holdfast", 1, 63));
    this.#retentionMs = checkMs("retentionMs", options.retentionMs ?? DEFAULT_RETENTION_MS);
    this.pollMs = checkPollMs(options.pollMs ?? { min: 5, max: 50 });
    this.#clock = options.clock ?? systemClock;
    this.#entropy = options.entropy ?? systemEntropy;
    this.#sightings = new Sightings(this.#clock, this.maxClockSkewMs);
  }

  /**
   * Applies one command: looks first, and writes only if something changes.
   *
   * @param name the lock
   * @param command what to do
   * @param options `signal`: ends the wait for other writers
   * @returns the outcome
   * @throws {StorageError} if the file is busy for too long, cannot be used, or has something else in it
   */
  execute<C extends Command>(
    name: string,
    command: C,
    options: ExecuteOptions = {},
  ): Promise<OutcomeOf<C>> {
    return this.#patiently(`${command.type} lock "${name}"`, options, () => {
      const seen = this.#look(name, command);
      if (seen.next.record === seen.record) return seen.next.outcome;
      return this.#transact(() => this.#apply(name, command));
    });
  }

  /**
   * Applies many commands in one transaction.
   *
   * @param entries locks and what to do to them
   * @param options `signal`: ends the wait for other writers
   * @returns an outcome for each, or the `StorageError` of what is not a record
   * @throws {StorageError} if the file is busy for too long, or cannot be used
   */
  executeAll(
    entries: readonly Entry[],
    options: ExecuteOptions = {},
  ): Promise<PromiseSettledResult<Outcome>[]> {
    return this.#patiently(
      `execute ${entries.length} commands`,
      options,
      () => this.#transact(() => entries.map((entry) => this.#applyAlone(entry))),
    );
  }

  /** Runs synchronous work again while others write to the file. */
  async #patiently<T>(what: string, { signal }: ExecuteOptions, work: () => T): Promise<T> {
    const since = this.#clock.read();
    for (let tries = 0;; tries++) {
      signal?.throwIfAborted();
      try {
        // What a transaction of the user's sees may be old, and what it writes may be rolled back.
        if (!isInTransaction(this.#db)) return work();
      } catch (error) {
        if (error instanceof StorageError) throw error;
        if (!isBusy(error)) throw storageError(what, this.#table.quoted, error);
      }
      const waitedMs = this.#clock.read().monotonicMs - since.monotonicMs;
      if (waitedMs >= BUSY_LIMIT_MS) {
        throw new StorageError(
          `Cannot ${what} as another transaction is open on the database: keep transactions shorter ` +
            `than ${BUSY_LIMIT_MS} ms, and those with an await on a connection of their own`,
          { transient: true },
        );
      }
      const ms = backoffMs(tries, BUSY_BACKOFF_MS, this.#entropy.random());
      await sleep(this.#clock, ms, { keepAlive: true, signal });
    }
  }

  /** Runs work in an immediate transaction, which keeps all other writers out. */
  #transact<T>(work: () => T): T {
    // Deno gives the result code of prepared statements only.
    this.#db.prepare("BEGIN IMMEDIATE").run();
    try {
      const result = work();
      this.#db.prepare("COMMIT").run();
      return result;
    } catch (error) {
      // SQLite itself rolls back after some errors (sqlite.org/lang_transaction.html, 3).
      if (isInTransaction(this.#db)) this.#db.prepare("ROLLBACK").run();
      throw error;
    }
  }

  /** Reads, and steps without writing. */
  #look<C extends Command>(name: string, command: C): Look<C> {
    const record = decodeStored(name, this.#table.read(name));
    this.#sightings.see(name, record);
    return { record, next: step(record, this.#sightings.complete(name, command), this.#nowUs()) };
  }

  /** Reads, steps and writes; within a transaction. */
  #apply<C extends Command>(name: string, command: C): OutcomeOf<C> {
    const { record, next } = this.#look(name, command);
    if (next.record !== record) this.#store(name, next.record);
    return next.outcome;
  }

  #applyAlone({ name, command }: Entry): PromiseSettledResult<Outcome> {
    try {
      return { status: "fulfilled", value: this.#apply(name, command) };
    } catch (reason) {
      if (reason instanceof StorageError) return { status: "rejected", reason };
      throw reason;
    }
  }

  #store(name: string, record: LeaseRecord): void {
    const retainUntilMs = lastExpiryMs(record) + this.#retentionMs;
    this.#table.write(name, encodeRecord(record), retainUntilMs, this.#clock.read().wallMs);
  }

  #checkFence(lease: Fenced, db: SqliteDatabase): void {
    const { name, token, fencingToken: fence } = lease;
    if (!isInTransaction(db)) {
      throw new TypeError(`Cannot check lock "${name}" as it must be done within a transaction`);
    }
    const nowUs = this.#nowUs();
    const isHeld = decodeStored(name, this.#table.readOn(db, name)).holders.some((h) =>
      h.token === token && h.fence === fence && nowUs < h.expiresAtMs * 1000
    );
    if (isHeld) return;
    throw new StaleFenceError(
      `Cannot write under lock "${name}" as fence ${fence} is not held any more`,
      { fence },
    );
  }

  #nowUs(): number {
    return Math.floor(this.#clock.read().wallMs * 1000);
  }
}

/**
 * Passes if the lease is held, in your own transaction in the same file, before it writes: nobody can take
 * the lock over until it has ended. Begin it with `BEGIN IMMEDIATE`; one that only reads before its first
 * write fails with `SQLITE_BUSY_SNAPSHOT` there if anything changed. Renewals wait for it too.
 *
 * @example
 * ```ts
 * import { DatabaseSync } from "node:sqlite";
 * import { Lock } from "@holdfast/lock";
 * import { fenceCheck, SqliteStorage } from "@holdfast/lock/sqlite";
 *
 * const db = new DatabaseSync(":memory:");
 * db.exec("CREATE TABLE invoice (id INTEGER PRIMARY KEY, sent INTEGER)");
 * const storage = new SqliteStorage(db);
 * await using lease = await new Lock({ storage, name: "invoice:42" }).acquire();
 * db.exec("BEGIN IMMEDIATE");
 * try {
 *   fenceCheck(storage, lease);
 *   db.prepare("INSERT INTO invoice VALUES (42, 1)").run();
 *   db.exec("COMMIT");
 * } catch (error) {
 *   db.exec("ROLLBACK");
 *   throw error;
 * }
 * ```
 *
 * @param storage where the lease is
 * @param lease the lease
 * @param db the connection that the transaction is open on, if it is not the storage's own
 * @throws {StaleFenceError} if the lease is not held any more; roll back
 * @throws {StorageError} if what is stored is not a record
 * @throws {TypeError} if no transaction is open
 */
export function fenceCheck(storage: SqliteStorage, lease: Fenced, db?: SqliteDatabase): void {
  checkFence(storage, lease, db);
}
