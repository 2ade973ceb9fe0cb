/**
 * Every client that users bring, by its package's own types, given to what takes it: checked by
 * `deno task test:types` as a user's compiler would, and never run.
 */
import { DynamoDB } from "@aws-sdk/client-dynamodb";
import { openKv } from "@deno/kv";
import { PGlite } from "@electric-sql/pglite";
import { Redis as Upstash } from "@upstash/redis";
import { Redis as UpstashWorker } from "@upstash/redis/cloudflare";
import { Cluster, Redis } from "ioredis";
import { MongoClient } from "mongodb";
import { DatabaseSync } from "node:sqlite";
import { Client, Pool } from "pg";
import postgres from "postgres";
import { createClient, createCluster } from "redis";
import { Lock, MemoryStorage } from "@holdfast/lock";
import { DenoKvStorage, fencedCommit } from "@holdfast/lock/deno-kv";
import * as dynamodb from "@holdfast/lock/dynamodb";
import * as mongodb from "@holdfast/lock/mongodb";
import * as pg from "@holdfast/lock/postgres";
import { fencedExec, ioredis, nodeRedis, RedisStorage } from "@holdfast/lock/redis";
import * as sqlite from "@holdfast/lock/sqlite";
import * as upstash from "@holdfast/lock/upstash";

const name = "types";
const lease = await new Lock({ storage: new MemoryStorage(), name }).acquire();

// Upstash, as Node and as Workers import it.
for (const client of [Upstash.fromEnv(), new UpstashWorker({ url: "", token: "" })]) {
  new Lock({ storage: new upstash.UpstashStorage(client), name });
  await upstash.fencedExec(client, lease, [["SET", "a", 1]], { keys: ["a"] });
}

// ioredis.
const redis = new Redis();
const redisStorage = new RedisStorage(ioredis(redis, { subscriber: "duplicate" }));
new Lock({ storage: redisStorage, name });
await fencedExec(redisStorage, lease, [["SET", "a", 1]], { keys: ["a"] });
new RedisStorage(ioredis(redis, { subscriber: redis.duplicate() }));
new RedisStorage(ioredis(new Cluster([]), { subscriber: "duplicate" }));

// node-redis.
const client = await createClient().connect();
new RedisStorage(nodeRedis(client, { subscriber: "duplicate" }));
new RedisStorage(nodeRedis(client, { subscriber: client.duplicate() }));
new RedisStorage(nodeRedis(createCluster({ rootNodes: [] })));

// Postgres.
const sql = postgres();
const db = new PGlite();
for (
  const adapted of [
    pg.postgresJs(sql),
    pg.nodePg(new Pool(), { listen: true }),
    pg.nodePg(new Client()),
    pg.pglite(db),
  ]
) {
  const storage = new pg.PostgresStorage(adapted);
  new Lock({ storage, name });
  const check = pg.fenceCheck(storage, lease);
  await pg.fenced(storage, lease, ({ text, values }) => sql.unsafe(text, values));
  await new Pool().query(check.text, check.values);
  await db.query(check.text, check.values);
}

// DynamoDB.
const dynamo = new DynamoDB({});
const dynamoStorage = new dynamodb.DynamoDbStorage(dynamo, { table: "leases" });
new Lock({ storage: dynamoStorage, name });
await dynamodb.createTable(dynamo, "leases");
await dynamodb.checkTable(dynamo, "leases");
await dynamo.transactWriteItems({ TransactItems: [dynamodb.fenceCheck(dynamoStorage, lease)] });

// MongoDB: a collection of any document, and one of a user's own.
const mongo = new MongoClient("");
const mongoStorage = new mongodb.MongoDbStorage(mongo.db("app").collection("locks"));
new Lock({ storage: mongoStorage, name });
await mongo.withSession((session) => mongodb.fenceCheck(mongoStorage, lease, session));

// SQLite of Node.
const file = new DatabaseSync("");
const sqliteStorage = new sqlite.SqliteStorage(file);
new Lock({ storage: sqliteStorage, name });
sqlite.fenceCheck(sqliteStorage, lease, file);

// Deno KV outside of Deno.
const kv = await openKv("");
new Lock({ storage: new DenoKvStorage(kv), name });
await fencedCommit(kv, lease, (op) => op.set(["a"], new Uint8Array()));
