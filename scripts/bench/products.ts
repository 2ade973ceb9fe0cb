/**
 * The products with compare-and-swap behind one small interface, for the benchmarks: the storage with its
 * requests counted, and the product's own conditional write, as bare as it can be.
 *
 * @module
 */
import { createTable, DynamoDbStorage } from "../../src/storage/dynamodb.ts";
import { MongoDbStorage } from "../../src/storage/mongodb.ts";
import { PostgresStorage } from "../../src/storage/postgres.ts";
import { connect as connectDynamoDb } from "../../tests/support/dynamodb.ts";
import { startMongoProxy } from "../../tests/support/mongo_proxy.ts";
import { drivers, observed } from "../../tests/support/postgres.ts";
import { startDynamoDb, startMongo, startPostgres } from "../services.ts";
import { type Collection, MongoClient } from "mongodb";
import { denoKv, sqlite } from "./file_products.ts";
import { ABSENT, type Bare, type Product, type Seen } from "./product.ts";

const dynamoDb: Product = {
  name: "DynamoDB",
  unit: "requests",
  async start() {
    const service = await startDynamoDb();
    using client = connectDynamoDb(service.url);
    for (const table of ["leases", "bare"]) await createTable(client, table);
    return { place: service.url, [Symbol.asyncDispose]: () => service.stop() };
  },
  open(place, pollMs) {
    const client = connectDynamoDb(place);
    let count = 0;
    const counted = {
      getItem: (...args: Parameters<typeof client.getItem>) => (count++, client.getItem(...args)),
      putItem: (...args: Parameters<typeof client.putItem>) => (count++, client.putItem(...args)),
    } as typeof client;
    const write = async (key: string, value: number, condition: object): Promise<Seen> => {
      const Item = { key: { S: key }, v: { N: `${value}` } };
      await client.putItem({ TableName: "bare", Item, ...condition });
      return { value, version: value };
    };
    const bare: Bare = {
      async read(key) {
        const Key = { key: { S: key } };
        const { Item } = await client.getItem({ TableName: "bare", Key, ConsistentRead: true });
        return Item ? { value: Number(Item["v"]!.N), version: Number(Item["v"]!.N) } : ABSENT;
      },
      async swap(key, value, version) {
        const condition = version === undefined
          ? { ConditionExpression: "attribute_not_exists(v)" }
          : {
            ConditionExpression: "v = :v",
            ExpressionAttributeValues: { ":v": { N: `${version}` } },
          };
        try {
          return await write(key, value, condition);
        } catch (error) {
          if ((error as Error).name === "ConditionalCheckFailedException") return undefined;
          throw error;
        }
      },
      put: (key, value) => write(key, value, {}),
    };
    const storage = new DynamoDbStorage(counted, { table: "leases", maxClockSkewMs: 0, pollMs });
    return Promise.resolve({
      storage,
      bare,
      requests: () => count,
      close: () => client.destroy(),
    });
  },
};

const postgres: Product = {
  name: "Postgres",
  unit: "statements",
  async start() {
    // As in production; the tests' server does not wait for its disk.
    const service = await startPostgres({ args: ["-c", "fsync=on"] });
    await using db = drivers[0]!.connect(service.url);
    await new PostgresStorage(db.client).migrate();
    await db.query("CREATE TABLE bare (key text PRIMARY KEY, v bigint NOT NULL)");
    return { place: service.url, [Symbol.asyncDispose]: () => service.stop() };
  },
  open(place, pollMs) {
    const db = drivers[0]!.connect(place);
    const session = drivers[0]!.connect(place, { max: 1, listen: false });
    let count = 0;
    const storage = new PostgresStorage(observed(db.client, () => void count++), { pollMs });
    const run = (text: string, ...values: (string | number)[]) =>
      db.client.query(text, values.map(String));
    const bare: Bare = {
      async read(key) {
        const [row] = await run("SELECT v FROM bare WHERE key = $1", key);
        return row ? { value: Number(row["v"]), version: Number(row["v"]) } : ABSENT;
      },
      async swap(key, value, version) {
        const rows = version === undefined
          ? await run(
            "INSERT INTO bare VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING v",
            key,
            value,
          )
          : await run(
            "UPDATE bare SET v = $2 WHERE key = $1 AND v = $3 RETURNING v",
            key,
            value,
            Number(version),
          );
        return rows.length > 0 ? { value, version: value } : undefined;
      },
      put: (key, value) =>
        run(
          "INSERT INTO bare VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET v = excluded.v",
          key,
          value,
        ),
    };
    return Promise.resolve({
      storage,
      bare,
      requests: () => count,
      others: {
        async "pg_advisory_lock and unlock"() {
          await session.client.query("SELECT pg_advisory_lock($1::bigint)", ["42"]);
          await session.client.query("SELECT pg_advisory_unlock($1::bigint)", ["42"]);
        },
      },
      close: () => Promise.all([db, session].map((one) => one[Symbol.asyncDispose]())),
    });
  },
};

/** What the driver of MongoDB sends on its own account. */
const CHATTER = ["hello", "isMaster", "ismaster", "ping", "endSessions", "buildInfo"];

interface Numbered {
  readonly _id: string;
  readonly v: number;
}

function bareMongo(numbers: Collection<Numbered>): Bare {
  const writeConcern = { w: "majority" } as const;
  return {
    async read(key) {
      const found = await numbers.findOne({ _id: key });
      return found ? { value: found.v, version: found.v } : ABSENT;
    },
    async swap(key, value, version) {
      try {
        const $set = { v: value };
        const { matchedCount } = version === undefined
          ? (await numbers.insertOne({ _id: key, v: value }, { writeConcern }), { matchedCount: 1 })
          : await numbers.updateOne({ _id: key, v: Number(version) }, { $set }, { writeConcern });
        return matchedCount === 1 ? { value, version: value } : undefined;
      } catch (error) {
        if ((error as { code?: unknown }).code === 11000) return undefined;
        throw error;
      }
    },
    put: (key, value) =>
      numbers.updateOne({ _id: key }, { $set: { v: value } }, { upsert: true, writeConcern }),
  };
}

const mongoDb: Product = {
  name: "MongoDB (FerretDB)",
  unit: "requests",
  async start() {
    const service = await startMongo();
    const proxy = await startMongoProxy(service.port);
    // It keeps all that it sees, which is too much here.
    const timer = setInterval(() => proxy.sent.length = 0, 1000);
    return {
      place: proxy.url,
      async [Symbol.asyncDispose]() {
        clearInterval(timer);
        await proxy[Symbol.asyncDispose]();
        await service.stop();
      },
    };
  },
  open(place, pollMs) {
    const client = new MongoClient(place, {
      directConnection: true,
      serverApi: "1",
      monitorCommands: true,
    });
    let count = 0;
    client.on("commandStarted", ({ commandName, databaseName }) => {
      if (databaseName === "leases" && !CHATTER.includes(commandName)) count++;
    });
    const storage = new MongoDbStorage(client.db("leases").collection("locks"), { pollMs });
    const bare = bareMongo(client.db("bare").collection("numbers"));
    return Promise.resolve({ storage, bare, requests: () => count, close: () => client.close() });
  },
};

/** Those that there are. */
export const products: readonly Product[] = [dynamoDb, postgres, mongoDb, sqlite, denoKv];
