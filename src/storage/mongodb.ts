/**
 * Leases in a MongoDB collection, by the server's clock, for the package `mongodb`.
 *
 * A command is a read with the server's time and one conditional write, both acknowledged by the majority.
 * A release is mostly the write alone, and a waiter that asks again is refused by a read that writes nothing.
 * After a failover the new primary's clock says the time. It needs MongoDB 4.4 or later, the role
 * `readWrite`, and a collection for locks alone, not sharded or sharded by `_id`; for
 * {@linkcode fenceCheck} also a replica set or a sharded cluster, as transactions do. FerretDB 1 speaks
 * the protocol and is *not* safe: its updates are not atomic.
 *
 * @example
 * ```ts ignore
 * import { MongoClient } from "mongodb";
 * import { Lock } from "@holdfast/lock";
 * import { fenceCheck, MongoDbStorage } from "@holdfast/lock/mongodb";
 *
 * const client = await new MongoClient("mongodb://localhost").connect();
 * const storage = new MongoDbStorage(client.db("app").collection("locks"));
 * await storage.migrate();
 * await using lease = await new Lock({ storage, name: "invoices" }).acquire();
 * await client.withSession((session) =>
 *   session.withTransaction(async () => {
 *     await fenceCheck(storage, lease, session);
 *     await client.db("app").collection("invoices").insertOne({ number: 42 }, { session });
 *   })
 * );
 * ```
 *
 * @module
 */
import { decodeStored } from "../core/codec.ts";
import { systemEntropy } from "../core/entropy.ts";
import { StaleFenceError } from "../core/errors.ts";
import type { Fenced } from "../core/lease.ts";
import { RegisterStorage, type RegisterStorageOptions } from "../core/register.ts";
import { checkText } from "../core/validate.ts";
import { type MongoCollection, type MongoSession, toStorageError } from "./_mongodb_client.ts";
import { MongoRegister } from "./_mongodb_register.ts";

export type {
  MongoCollection,
  MongoDocument,
  MongoSession,
  MongoUpdate,
} from "./_mongodb_client.ts";

/** Options of a {@linkcode MongoDbStorage}. */
export interface MongoDbStorageOptions extends Omit<RegisterStorageOptions, "maxClockSkewMs"> {
  /**
   * What the ids of documents begin with.
   *
   * @default {"holdfast"}
   */
  readonly prefix?: string | undefined;
}

/** Gives {@linkcode fenceCheck}, and nobody else, a way in. */
let registerOf: (storage: MongoDbStorage) => MongoRegister;

/**
 * Keeps leases in a MongoDB collection. At most two requests for each command.
 *
 * @example
 * ```ts ignore
 * import { MongoClient } from "mongodb";
 * import { MongoDbStorage } from "@holdfast/lock/mongodb";
 *
 * const client = new MongoClient("mongodb://localhost");
 * const storage = new MongoDbStorage(client.db("app").collection("locks"));
 * ```
 */
export class MongoDbStorage extends RegisterStorage<unknown> {
  readonly #collection: MongoCollection;
  readonly #register: MongoRegister;

  static {
    registerOf = (storage) => storage.#register;
  }

  /**
   * Sends nothing.
   *
   * @param collection the driver's `Collection`, for locks alone
   * @param options `prefix`, `retentionMs`, `pollMs`
   * @throws {RangeError} if an option is out of range
   */
  constructor(collection: MongoCollection, options: MongoDbStorageOptions = {}) {
    const { entropy = systemEntropy, pollMs = { min: 50, max: 1000 } } = options;
    const prefix = checkText("prefix", options.prefix ?? "holdfast", 1, 64);
    const register = new MongoRegister(collection, prefix, entropy);
    super(register, { serverTime: true, checksText: true }, { ...options, pollMs });
    this.#collection = collection;
    this.#register = register;
  }

  /**
   * Creates the index by which MongoDB deletes what is long over. May be run again. Leases do not depend on
   * it; without it a document stays for each name that was ever used, and for each lease that ended of those
   * that are used with {@linkcode fenceCheck}.
   *
   * @throws {StorageError} if the server refuses it
   */
  async migrate(): Promise<void> {
    try {
      await this.#collection.createIndex({ expireAt: 1 }, { expireAfterSeconds: 0 });
    } catch (error) {
      const { namespace } = this.#collection;
      throw toStorageError(error, `Cannot migrate collection "${namespace}"`, namespace);
    }
  }
}

/**
 * Checks, in your own transaction, that the lease is held by the server's clock, and keeps it so: until the
 * transaction ends, whoever would take over, evict, adopt or release the lease waits for it, and if they
 * were first, the transaction fails and is tried again by the driver. Renewals do not wait. Await it before
 * the transaction writes, and do not release the lease within.
 *
 * Two transactions of one lease at the same time conflict with each other, and the driver tries one again.
 * What is *not* guaranteed: that the lease is still unexpired when the transaction commits; but nobody else
 * has had the lock by then.
 *
 * @example
 * ```ts ignore
 * await client.withSession((session) =>
 *   session.withTransaction(async () => {
 *     await fenceCheck(storage, lease, session);
 *     await invoices.insertOne({ number: 42 }, { session });
 *   })
 * );
 * ```
 *
 * @param storage where the lease is
 * @param lease the lease, or its name, token and fencing token
 * @param session a session of the same client, in a transaction
 * @throws {StaleFenceError} if the lease is not held any more; let it end the transaction
 * @throws {StorageError} if that cannot be found out
 * @throws {TypeError} if the session is not in a transaction
 * @throws the driver's own errors of the transaction, which `withTransaction` needs for its retries
 */
export async function fenceCheck(
  storage: MongoDbStorage,
  lease: Fenced,
  session: MongoSession,
): Promise<void> {
  const { name, token, fencingToken: fence } = lease;
  if (!session.inTransaction()) {
    throw new TypeError(`Cannot check lock "${name}" as the session must be in a transaction`);
  }
  const register = registerOf(storage);
  const { value, nowUs } = await register.enter(lease, session);
  const { holders } = decodeStored(register.key(name), value);
  const isHeld = holders.some((h) =>
    h.token === token && h.fence === fence && nowUs < h.expiresAtMs * 1000
  );
  if (isHeld) return;
  throw new StaleFenceError(
    `Cannot write under lock "${name}" as fence ${fence} is not held any more`,
    { fence },
  );
}
