/**
 * Connections to DynamoDB, MongoDB and etcd.
 *
 * @module
 */
import { MongoClient } from "mongodb";
import { EtcdStorage } from "../../docs/examples/etcd_register.ts";
import { type Fenced, StaleFenceError } from "../../mod.ts";
import { createTable, DynamoDbStorage, fenceCheck } from "../../src/storage/dynamodb.ts";
import { MongoDbStorage } from "../../src/storage/mongodb.ts";
import { connect as connectDynamo, TABLE } from "../../tests/support/dynamodb.ts";
import { type Connect, GUARDED } from "./client.ts";

/** DynamoDB, by the SDK with its own retries. */
export const connectDynamoDb: Connect = async (url) => {
  const client = connectDynamo(url);
  // The first one makes it.
  if ((await client.listTables({})).TableNames?.length === 0) await createTable(client, TABLE);
  const options = { table: TABLE, maxClockSkewMs: 0, pollMs: { min: 20, max: 500 } };
  const storage = new DynamoDbStorage(client, options);
  return {
    storage,
    read: async () => {
      const Key = { key: { S: GUARDED } };
      const { Item } = await client.getItem({ TableName: TABLE, Key, ConsistentRead: true });
      return Item?.["id"]?.S ?? null;
    },
    write: async (id, lease) => {
      const Item = { key: { S: GUARDED }, id: { S: id } };
      if (!lease) return void await client.putItem({ TableName: TABLE, Item });
      try {
        const TransactItems = [fenceCheck(storage, lease), { Put: { TableName: TABLE, Item } }];
        await client.transactWriteItems({ TransactItems });
      } catch (cause) {
        const { CancellationReasons } = cause as { CancellationReasons?: { Code?: string }[] };
        if (CancellationReasons?.[0]?.Code !== "ConditionalCheckFailed") throw cause;
        throw stale(lease, cause);
      }
    },
    close: () => Promise.resolve(client.destroy()),
  };
};

/** A document of the resource: whose turn it is, and the id of whoever wrote it last. */
interface Guarded {
  readonly _id: string;
  readonly fence: number;
  readonly id: string | null;
}

/**
 * MongoDB. The server may be one without transactions, so the resource itself compares fences, which takes
 * no more than an atomic update: a holder shows its fence before it reads.
 */
export const connectMongoDb: Connect = async (url) => {
  const client = await new MongoClient(url, {
    directConnection: true,
    serverApi: "1",
    serverSelectionTimeoutMS: 1000,
    heartbeatFrequencyMS: 500,
  }).connect();
  const resources = client.db("test").collection<Guarded>("resources");
  const _id = GUARDED;
  const none: Guarded = { _id, fence: 0, id: null };
  return {
    storage: new MongoDbStorage(client.db("test").collection("locks")),
    enter: async (lease) => {
      const fence = lease.fencingToken;
      await resources.updateOne({ _id }, { $setOnInsert: none }, { upsert: true });
      const { matchedCount } = await resources.updateOne(
        { _id, fence: { $lte: fence } },
        { $set: { fence } },
      );
      if (matchedCount === 0) throw stale(lease);
    },
    read: async () => (await resources.findOne({ _id }))?.id ?? null,
    write: async (id, lease) => {
      const filter = lease ? { _id, fence: lease.fencingToken } : { _id };
      const { matchedCount } = await resources.updateOne(filter, { $set: { id } });
      if (lease && matchedCount === 0) throw stale(lease);
    },
    close: () => client.close(),
  };
};

/**
 * etcd, by the example of the guide. It has no fence of the library's: the resource itself compares, in a
 * transaction of etcd, and a holder shows its fence before it reads.
 */
export const connectEtcd: Connect = (url) => {
  const text = (value: string): string => btoa(value);
  const [mark, key] = [text("guarded-fence"), text(GUARDED)];
  const post = async (what: string, body: object) => {
    const init = { method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(3000) };
    const reply = await fetch(`${url}/v3/kv/${what}`, init);
    if (!reply.ok) throw new Error(`etcd answers with HTTP ${reply.status}: ${await reply.text()}`);
    return await reply.json() as { succeeded?: boolean; kvs?: { value?: string }[] };
  };
  // Compared as text, so all have the same length.
  const fenceOf = (lease: Fenced): string => text(String(lease.fencingToken).padStart(16, "0"));
  const put = (key: string, value: string) => ({ request_put: { key, value } });
  return Promise.resolve({
    storage: new EtcdStorage(url, { maxClockSkewMs: 0 }),
    enter: async (lease) => {
      const value = fenceOf(lease);
      const isSet = { key: mark, target: "CREATE", result: "GREATER", create_revision: "0" };
      const isHigher = { key: mark, target: "VALUE", result: "GREATER", value };
      const { succeeded } = await post("txn", {
        compare: [isSet, isHigher],
        failure: [put(mark, value)],
      });
      if (succeeded) throw stale(lease);
    },
    read: async () => {
      const { kvs } = await post("range", { key });
      return kvs?.[0] ? atob(kvs[0].value ?? "") : null;
    },
    write: async (id, lease) => {
      if (!lease) return void await post("put", { key, value: text(id) });
      const isMine = { key: mark, target: "VALUE", result: "EQUAL", value: fenceOf(lease) };
      const { succeeded } = await post("txn", { compare: [isMine], success: [put(key, text(id))] });
      if (!succeeded) throw stale(lease);
    },
    close: () => Promise.resolve(),
  });
};

function stale({ name, fencingToken: fence }: Fenced, cause?: unknown): StaleFenceError {
  return new StaleFenceError(
    `Cannot write under lock "${name}" as a later holder was here: current value is fence ${fence}`,
    { fence, cause },
  );
}
