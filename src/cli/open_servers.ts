/**
 * Storages that are servers.
 *
 * @module
 */
import { keyOf } from "../storage/_redis_command.ts";
import { type DynamoDbClient, DynamoDbStorage } from "../storage/dynamodb.ts";
import { type MongoCollection, MongoDbStorage } from "../storage/mongodb.ts";
import { type PostgresJs, postgresJs, PostgresStorage } from "../storage/postgres.ts";
import { ioredis, type IoredisClient, RedisStorage } from "../storage/redis.ts";
import { type UpstashRedis, UpstashStorage } from "../storage/upstash.ts";
import { usage } from "./failure.ts";
import { CONNECT_MS, namesOf, type Opened, PREFIX, variable } from "./opened.ts";
import { load } from "./packages.ts";

/** `Redis` of `ioredis`. */
interface Ioredis extends IoredisClient {
  connect(): Promise<unknown>;
  on(event: "error", listener: (error: unknown) => void): unknown;
  disconnect(): void;
}

export async function openRedis(url: string): Promise<Opened> {
  const { Redis } = await load("ioredis") as { Redis: new (url: string, o: object) => Ioredis };
  const client = new Redis(url, {
    lazyConnect: true,
    connectTimeout: CONNECT_MS,
    maxRetriesPerRequest: 0,
  });
  // Each request says what became of it, but not why a connection could not be made.
  let reason: unknown;
  client.on("error", (error) => reason = error);
  await client.connect().catch((error) => {
    client.disconnect();
    throw reason ?? error;
  });
  return {
    storage: new RedisStorage(ioredis(client, { subscriber: "duplicate" })),
    list: () => scan((...words) => client.call("SCAN", ...words)),
    close: () => client.disconnect(),
  };
}

/** `Redis` of `@upstash/redis`. */
interface Upstash extends UpstashRedis {
  scan(cursor: string, options: { match: string; count: number }): Promise<[string, string[]]>;
}

export async function openUpstash(url: string): Promise<Opened> {
  const { Redis } = await load("@upstash/redis") as { Redis: new (options: object) => Upstash };
  const client = new Redis({
    url: url.slice("upstash+".length),
    token: variable("UPSTASH_REDIS_REST_TOKEN"),
    retry: { retries: 0 },
    signal: () => AbortSignal.timeout(CONNECT_MS),
  });
  return {
    storage: new UpstashStorage(client),
    list: () =>
      scan((cursor, _, match, __, count) => client.scan(cursor, { match, count: +count })),
    close: () => {},
  };
}

/** Finds the keys of locks, a thousand at a time and never all at once. */
async function scan(
  send: (cursor: string, ...rest: [string, string, string, string]) => Promise<unknown>,
): Promise<string[]> {
  const [start, end] = keyOf(PREFIX, "").split("}") as [string, string];
  const names = new Set<string>();
  let cursor = "0";
  do {
    const [next, keys] = await send(cursor, "MATCH", `${start}*}${end}`, "COUNT", "1000") as [
      string,
      string[],
    ];
    for (const key of keys) names.add(decodeURIComponent(key.slice(start.length, -1)));
    cursor = `${next}`;
  } while (cursor !== "0");
  return [...names];
}

/** `sql` of `postgres`. */
interface Postgres extends PostgresJs {
  end(options: { timeout: number }): Promise<void>;
}

export async function openPostgres(url: string): Promise<Opened> {
  const { default: postgres } = await load("postgres") as {
    default: (url: string, options: object) => Postgres;
  };
  const sql = postgres(url, {
    max: 2,
    connect_timeout: CONNECT_MS / 1000,
    onnotice: () => {},
  });
  const close = (): Promise<void> => sql.end({ timeout: 1 });
  const storage = new PostgresStorage(postgresJs(sql));
  try {
    await storage.migrate();
  } catch (error) {
    await close();
    throw error;
  }
  const list = async (): Promise<string[]> =>
    namesOf(await sql.unsafe(`SELECT name FROM public."${PREFIX}"`, [], { prepare: true }));
  return { storage, list, close };
}

/** `MongoClient` of `mongodb`. */
interface Mongo {
  connect(): Promise<unknown>;
  db(name?: string): { collection(name: string): MongoCollection & MongoListing };
  close(): Promise<void>;
}

interface MongoListing {
  find(filter: object, options: object): { toArray(): Promise<{ _id: string }[]> };
}

export async function openMongoDb(url: string): Promise<Opened> {
  const { MongoClient } = await load("mongodb") as {
    MongoClient: new (u: string, o: object) => Mongo;
  };
  const client = new MongoClient(url, { serverSelectionTimeoutMS: CONNECT_MS });
  const database = /^[^/]+\/\/[^/]+\/([^?]+)/.exec(url)?.[1];
  const collection = client.db(database ?? PREFIX).collection(PREFIX);
  const storage = new MongoDbStorage(collection);
  try {
    await client.connect();
  } catch (error) {
    await client.close();
    throw error;
  }
  // Without the index what is long over stays, and all else works.
  await storage.migrate().catch(() => {});
  return {
    storage,
    async list() {
      // What has a "#" is the guard of a holding.
      const filter = { _id: { $regex: `^${PREFIX}:[^#]*$` } };
      const ids = await collection.find(filter, { projection: { _id: 1 } }).toArray();
      return ids.map(({ _id }) => decodeURIComponent(_id.slice(PREFIX.length + 1)));
    },
    close: () => client.close(),
  };
}

export async function openDynamoDb(url: string): Promise<Opened> {
  const [, table, query] = /^dynamodb:\/\/([\w.-]+)\/?(?:\?(.*))?$/i.exec(url) ?? [];
  if (!table) throw usage(`Cannot use "${url}" as it must be dynamodb://TABLE?region=REGION`);
  const { DynamoDB } = await load("@aws-sdk/client-dynamodb") as {
    DynamoDB: new (options: object) => DynamoDbClient & { destroy(): void };
  };
  const parameters = new URLSearchParams(query);
  const region = parameters.get("region");
  const endpoint = parameters.get("endpoint");
  const client = new DynamoDB({ ...(region && { region }), ...(endpoint && { endpoint }) });
  return { storage: new DynamoDbStorage(client, { table }), close: () => client.destroy() };
}
