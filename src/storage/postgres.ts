/**
 * Leases in Postgres 13 or later, by the server's clock, for the packages `postgres` and `pg`, and for
 * PGlite.
 *
 * One table has a row with the record of each lock, another one a guard row for each holding, which
 * {@linkcode fenceCheck} locks within a transaction of yours: until that ends, nobody can take the lock
 * over, and your heartbeat goes on, because a renewal does not touch the guard.
 *
 * A command is a read and one conditional write, each a statement of its own: there is no session state, so
 * it works through a transaction pooler. Give it the primary, not a replica, and a connection beside those
 * of your fenced transactions. The role needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on both tables.
 * Give the client `postgres` (3.4.9) the option `fetch_types: false`: otherwise it asks for array types when
 * it connects, and a server that dies meanwhile ends your process by a rejection that nobody can handle.
 *
 * @example
 * ```ts ignore
 * import postgres from "postgres";
 * import { Lock } from "@holdfast/lock";
 * import { fenced, postgresJs, PostgresStorage } from "@holdfast/lock/postgres";
 *
 * const sql = postgres("postgres://localhost/app", { fetch_types: false });
 * const storage = new PostgresStorage(postgresJs(sql));
 * await storage.migrate();
 * const lock = new Lock({ storage, name: "invoice:42" });
 * await lock.with((lease) =>
 *   fenced(storage, lease, (check) =>
 *     sql.begin(async (tx) => {
 *       await tx.unsafe(check.text, check.values);
 *       await tx`UPDATE invoice SET sent = true WHERE id = 42`;
 *     }))
 * );
 * ```
 *
 * @module
 */
import { sleep, systemClock } from "../core/clock.ts";
import { backoffMs } from "../core/backoff.ts";
import { systemEntropy } from "../core/entropy.ts";
import { StaleFenceError } from "../core/errors.ts";
import type { Fenced } from "../core/lease.ts";
import type { Outcome } from "../core/record.ts";
import {
  DEFAULT_RETENTION_MS,
  RegisterStorage,
  type RegisterStorageOptions,
} from "../core/register.ts";
import type { Entry, ExecuteOptions } from "../core/storage.ts";
import { checkText } from "../core/validate.ts";
import type { PostgresClient } from "./_postgres_clients.ts";
import { SERIALIZATION_FAILURE, sqlState, STALE_FENCE, storageError } from "./_postgres_errors.ts";
import { PostgresRegister, type PostgresVersion } from "./_postgres_register.ts";
import { renewTogether } from "./_postgres_renewals.ts";
import { type Statements, statementsFor } from "./_postgres_sql.ts";

export type { PostgresVersion } from "./_postgres_register.ts";
export {
  type ListenHandlers,
  type ListenOptions,
  nodePg,
  type NodePgClient,
  type NodePgPool,
  pglite,
  type PGliteDatabase,
  type PostgresClient,
  type PostgresJs,
  postgresJs,
  type PostgresRow,
} from "./_postgres_clients.ts";

/** Options of a {@linkcode PostgresStorage}. */
export interface PostgresStorageOptions extends Omit<RegisterStorageOptions, "maxClockSkewMs"> {
  /**
   * The schema of the tables.
   *
   * @default {"public"}
   */
  readonly schema?: string | undefined;
  /**
   * The table of the records, at most 51 bytes; the guards are in a table with `_guard` after its name.
   *
   * @default {"holdfast"}
   */
  readonly table?: string | undefined;
}

/** A statement for a transaction of the user's. */
export interface FenceCheck {
  /** The statement, with `$1` to `$3`. */
  readonly text: string;
  /** Its parameters; the second is the holder token, a credential. */
  readonly values: string[];
}

const LONGEST_TABLE = 63 - "_fence_check".length;

/** How often `migrate()` tries again that met another one. */
const MIGRATE_TRIES = 10;

/** What two migrations at the same time fail with: unique violation, duplicate table, object, function. */
const MIGRATED_BY_OTHERS = /^(23505|42P07|42710|42723|42P06|40001|40P01|XX000)$/;

/** Gives {@linkcode fenceCheck}, and nobody else, a way in. */
let fenceCheckTextOf: (storage: PostgresStorage) => string;

/**
 * Keeps leases in Postgres. At most two statements for each command, and for the renewals of a whole
 * process: a read with the server's clock, and a write if something changes. Deletes records of locks that were out of use for `retentionMs`, two for each
 * new name.
 *
 * @example
 * ```ts
 * import { PGlite } from "@electric-sql/pglite";
 * import { Lock } from "@holdfast/lock";
 * import { pglite, PostgresStorage } from "@holdfast/lock/postgres";
 * import { assertEquals } from "@std/assert";
 *
 * const db = new PGlite();
 * const storage = new PostgresStorage(pglite(db));
 * await storage.migrate();
 * const lock = new Lock({ storage, name: "nightly-report" });
 * assertEquals(await lock.with(() => "done"), "done");
 * await db.close();
 * ```
 */
export class PostgresStorage extends RegisterStorage<PostgresVersion> {
  readonly #register: PostgresRegister;
  readonly #client: PostgresClient;
  readonly #statements: Statements;
  readonly #options: PostgresStorageOptions;

  static {
    fenceCheckTextOf = (storage) => storage.#statements.checkFence;
  }

  /**
   * Takes a client.
   *
   * @param client the user's client, adapted: {@linkcode postgresJs}, {@linkcode nodePg},
   *   {@linkcode pglite}
   * @param options `schema`, `table`, `retentionMs`, `pollMs`
   */
  constructor(client: PostgresClient, options: PostgresStorageOptions = {}) {
    const statements = statementsFor(
      checkText("schema", options.schema ?? "public", 1, 63),
      checkText("table", options.table ?? "holdfast", 1, LONGEST_TABLE),
    );
    const register = new PostgresRegister(client, statements, options);
    super(
      register,
      { serverTime: true, wakesTickets: true },
      { ...options, pollMs: options.pollMs ?? { min: 50, max: 1000 } },
    );
    this.#register = register;
    this.#client = client;
    this.#statements = statements;
    this.#options = options;
  }

  /**
   * Applies many commands: all renewals together, by one read and one write; what else there is, and what
   * meets another write, each for itself.
   *
   * @param entries locks and what to do to them
   * @param options `signal`: stops the work between two requests
   * @returns an outcome or an error for each
   * @throws {StorageError} if the outcome of the renewals is unknown
   */
  async executeAll(
    entries: readonly Entry[],
    options: ExecuteOptions = {},
  ): Promise<PromiseSettledResult<Outcome>[]> {
    const retentionMs = this.#options.retentionMs ?? DEFAULT_RETENTION_MS;
    const renewed = await renewTogether(this.#register, entries, retentionMs);
    return Promise.allSettled(
      entries.map(({ name, command }, i) => renewed[i] ?? this.execute(name, command, options)),
    );
  }

  /**
   * Creates the schema, the two tables and the function where they are missing. May be run again, by many
   * processes at once, and by a role that may not create anything once all is there.
   *
   * @throws {StorageError} if the server refuses it
   */
  async migrate(): Promise<void> {
    const { records, guards, migrate } = this.#statements;
    const clock = this.#options.clock ?? systemClock;
    const entropy = this.#options.entropy ?? systemEntropy;
    for (let tries = 1;; tries++) {
      try {
        await this.#client.query(migrate, []);
        return;
      } catch (error) {
        const isRace = MIGRATED_BY_OTHERS.test(sqlState(error) ?? "");
        if (!isRace || tries === MIGRATE_TRIES) {
          throw storageError(`migrate table ${records}`, `${records} and ${guards}`, error);
        }
        const ms = backoffMs(tries, { min: 10, max: 500 }, entropy.random());
        await sleep(clock, ms, { keepAlive: true });
      }
    }
  }
}

/**
 * The statement to run in your own transaction, as its first: passes if the lease is held, by the server's
 * clock at that moment, and from then until the transaction ends nobody else can get the lock. Otherwise the
 * transaction fails with SQLSTATE `HF001`. Blocks a takeover, an eviction and the lease's own release, not
 * its renewals. Without a transaction around it, it guards nothing.
 *
 * In `REPEATABLE READ` and `SERIALIZABLE` the answer may also be 40001, as with any statement;
 * {@linkcode fenced} tells which one it was.
 *
 * @example
 * ```ts
 * import { PGlite } from "@electric-sql/pglite";
 * import { Lock } from "@holdfast/lock";
 * import { fenceCheck, pglite, PostgresStorage } from "@holdfast/lock/postgres";
 * import { assertRejects } from "@std/assert";
 *
 * const db = new PGlite();
 * const storage = new PostgresStorage(pglite(db));
 * await storage.migrate();
 * const lease = await new Lock({ storage, name: "invoice:42" }).acquire();
 * await lease.release();
 * const { text, values } = fenceCheck(storage, lease);
 * await assertRejects(() => db.transaction((tx) => tx.query(text, values)), Error, "not held");
 * await db.close();
 * ```
 *
 * @param storage where the lease is
 * @param lease the lease
 * @returns the statement; its values are all strings
 */
export function fenceCheck(storage: PostgresStorage, lease: Fenced): FenceCheck {
  const { name, token, fencingToken } = lease;
  return { text: fenceCheckTextOf(storage), values: [name, token, `${fencingToken}`] };
}

/**
 * Runs a transaction of yours that begins with the given check, and says in one way that it came too late.
 * Does not retry: an error with SQLSTATE 40001 of a lease that is still held comes out as it is.
 *
 * @example
 * ```ts
 * import { PGlite } from "@electric-sql/pglite";
 * import { Lock, StaleFenceError } from "@holdfast/lock";
 * import { fenced, pglite, PostgresStorage } from "@holdfast/lock/postgres";
 * import { assertRejects } from "@std/assert";
 *
 * const db = new PGlite();
 * const storage = new PostgresStorage(pglite(db));
 * await storage.migrate();
 * const lease = await new Lock({ storage, name: "invoice:42" }).acquire();
 * await lease.release();
 * await assertRejects(
 *   () =>
 *     fenced(storage, lease, ({ text, values }) => db.transaction((tx) => tx.query(text, values))),
 *   StaleFenceError,
 * );
 * await db.close();
 * ```
 *
 * @param storage where the lease is
 * @param lease the lease
 * @param work begins a transaction, runs the check in it, and what it guards
 * @returns what `work` returned
 * @throws {StaleFenceError} if the lease is not held any more; nothing was written
 * @throws {StorageError} if that cannot be found out
 * @throws whatever else `work` rejected with
 */
export async function fenced<T>(
  storage: PostgresStorage,
  lease: Fenced,
  work: (check: FenceCheck) => PromiseLike<T>,
): Promise<T> {
  try {
    return await work(fenceCheck(storage, lease));
  } catch (error) {
    const state = sqlState(error);
    const isStale = state === STALE_FENCE ||
      (state === SERIALIZATION_FAILURE && !(await isHeld(storage, lease)));
    if (!isStale) throw error;
    const { name, fencingToken: fence } = lease;
    throw new StaleFenceError(
      `Cannot write under lock "${name}" as fence ${fence} is not held any more`,
      { fence, cause: error },
    );
  }
}

async function isHeld(storage: PostgresStorage, lease: Fenced): Promise<boolean> {
  const { holders } = await storage.execute(lease.name, { type: "inspect" });
  return holders.some(({ fence }) => fence === lease.fencingToken);
}
