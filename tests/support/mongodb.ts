/**
 * Clients of MongoDB for tests. Where there is no `mongod` it is FerretDB behind a
 * {@linkcode MongoProxy}, which has no transactions.
 *
 * @module
 */
import { type ClientSession, type Collection, MongoClient, type MongoClientOptions } from "mongodb";
import type { Fenced } from "../../src/core/lease.ts";
import { fenceCheck, type MongoDbStorage } from "../../src/storage/mongodb.ts";
import { type MongoProxy, startMongoProxy } from "./mongo_proxy.ts";

/** A client with connections of its own to the proxy. */
export function connect(proxy: MongoProxy, options: MongoClientOptions = {}): MongoClient {
  // With an API version the driver speaks OP_MSG from the first message on.
  return new MongoClient(proxy.url, {
    directConnection: true,
    serverApi: "1",
    serverSelectionTimeoutMS: 1000,
    heartbeatFrequencyMS: 500,
    ...options,
  });
}

/**
 * A collection for the locks of one test: FerretDB looks at every document of a collection, unless a filter
 * has nothing but an `_id`.
 */
export function newLocks(): (client: MongoClient) => Collection {
  const name = `locks-${crypto.randomUUID()}`;
  return (client) => client.db("test").collection(name);
}

/** Runs a test with two clients of a collection of its own. */
export async function withMongo(
  service: { readonly port: number },
  run: (
    clients: [MongoClient, MongoClient],
    locksOf: (client: MongoClient) => Collection,
    proxy: MongoProxy,
  ) => Promise<void>,
): Promise<void> {
  await using proxy = await startMongoProxy(service.port);
  const clients: [MongoClient, MongoClient] = [connect(proxy), connect(proxy)];
  try {
    await run(clients, newLocks(), proxy);
  } finally {
    for (const client of clients) await client.close();
  }
}

/** The filter for a document of a lock. */
export function idOf(name: string): { _id: never } {
  return { _id: `holdfast:${encodeURIComponent(name)}` as never };
}

/**
 * Runs work in a transaction, as far as there is one. FerretDB takes the fields of a transaction in its
 * later commands, and applies each of them at once; it does not know the first field of a transaction in
 * an update, and no `commitTransaction`.
 */
export async function inTransaction(
  client: MongoClient,
  work: (session: ClientSession) => Promise<void>,
): Promise<void> {
  await client.withSession(async (session) => {
    session.startTransaction();
    await client.db("test").collection("none").findOne({ _id: "" as never }, { session });
    try {
      await work(session);
    } catch (error) {
      await session.abortTransaction();
      throw error;
    }
    await session.commitTransaction().catch((error) => {
      if (error.codeName !== "CommandNotFound") throw error;
    });
  });
}

/** Uses a lease for a fenced transaction: from the first one on its lock has guards. */
export function useFenced(
  client: MongoClient,
  storage: MongoDbStorage,
  lease: Fenced,
): Promise<void> {
  return inTransaction(client, (session) => fenceCheck(storage, lease, session));
}
