/**
 * Other lock libraries on the products with compare-and-swap: an acquire and a release of each. They are npm
 * packages that Deno fetches at run time, in a process of their own (`register_peer.ts`), so that nobody
 * else has to have them.
 *
 * @module
 */

/** The exact versions. */
const VERSIONS: Readonly<Record<string, string>> = {
  "@aws-sdk/client-dynamodb": "3.1162.0",
  "@verrou/core": "0.5.2",
  "aws-sdk": "2.1692.0",
  "better-sqlite3": "12.5.0",
  "dynamodb-lock-client": "0.7.3",
  "knex": "3.1.0",
  "pg": "8.23.1",
};

/** What Deno needs to fetch packages without a trace in this folder. */
const FLAGS = ["-A", "--no-check", "--no-lock", "--node-modules-dir=none"];

/** Does one acquire and one release. */
type Cycle = () => Promise<unknown>;

/** A library on a product. */
export interface RegisterPeer {
  readonly product: string;
  readonly name: string;
  /** Connects, and makes its table. */
  readonly open: (place: string) => Promise<Cycle>;
}

// deno-lint-ignore no-explicit-any -- the peers' types are not ours
type Untyped = any;

const TTL_MS = 30_000;

async function load(name: string, entry = ""): Promise<Untyped> {
  const module: Untyped = await import(`npm:${name}@${VERSIONS[name]}${entry}`);
  return { ...module.default, ...module };
}

async function verrou(driver: Untyped): Promise<Cycle> {
  const { Verrou } = await load("@verrou/core");
  const locks = new Verrou({ default: "only", stores: { only: { driver } } });
  const name = crypto.randomUUID();
  return async () => {
    const lock = locks.createLock(name, TTL_MS);
    if (!await lock.acquire()) throw new Error("not acquired");
    await lock.release();
  };
}

function hasNoAdapter(): Promise<Cycle> {
  return Promise.reject(new Error("it has no adapter"));
}

const CREDENTIALS = { accessKeyId: "test", secretAccessKey: "test" };

async function lockClient(endpoint: string, kind: string, options: object): Promise<Cycle> {
  const { DynamoDB } = await load("aws-sdk");
  const table = {
    TableName: kind,
    AttributeDefinitions: [{ AttributeName: "key", AttributeType: "S" }],
    KeySchema: [{ AttributeName: "key", KeyType: "HASH" }],
    BillingMode: "PAY_PER_REQUEST",
  };
  const config = { endpoint, region: "us-east-1", ...CREDENTIALS };
  await new DynamoDB(config).createTable(table).promise();
  const clients = await load("dynamodb-lock-client");
  const client = new clients[kind]({
    dynamodb: new DynamoDB.DocumentClient(config),
    lockTable: kind,
    partitionKey: "key",
    ...options,
  });
  const name = crypto.randomUUID();
  return () =>
    new Promise((resolve, reject) =>
      client.acquireLock(name, (error: unknown, lock: Untyped) => {
        if (error) return reject(error);
        lock.release((error: unknown) => error ? reject(error) : resolve(undefined));
      })
    );
}

/** Those that there are. */
export const registerPeers: readonly RegisterPeer[] = [
  {
    product: "DynamoDB",
    name: "@verrou/core",
    async open(endpoint) {
      const { DynamoDBClient } = await load("@aws-sdk/client-dynamodb");
      const { dynamodbStore } = await load("@verrou/core", "/drivers/dynamodb");
      const connection = new DynamoDBClient({
        endpoint,
        region: "us-east-1",
        credentials: CREDENTIALS,
      });
      return verrou(dynamodbStore({ connection, table: { name: "verrou" } }));
    },
  },
  {
    product: "DynamoDB",
    name: "dynamodb-lock-client, FailOpen",
    open: (endpoint) =>
      lockClient(endpoint, "FailOpen", {
        leaseDurationMs: TTL_MS,
        heartbeatPeriodMs: TTL_MS / 3,
        trustLocalTime: true,
      }),
  },
  {
    product: "DynamoDB",
    name: "dynamodb-lock-client, FailClosed (no ttl)",
    open: (endpoint) => lockClient(endpoint, "FailClosed", { acquirePeriodMs: 100 }),
  },
  {
    product: "Postgres",
    name: "@verrou/core (knex)",
    async open(connection) {
      await load("pg");
      const { knex } = await load("knex");
      const { knexStore } = await load("@verrou/core", "/drivers/knex");
      return verrou(knexStore({ connection: knex({ client: "pg", connection }) }));
    },
  },
  {
    product: "SQLite",
    name: "@verrou/core (knex)",
    async open(filename) {
      const { default: Database } = await load("better-sqlite3");
      try {
        new Database(filename).close();
      } catch (cause) {
        throw new Error("its driver is a native module, which Deno does not build", { cause });
      }
      const { knex } = await load("knex");
      const { knexStore } = await load("@verrou/core", "/drivers/knex");
      const config = { client: "better-sqlite3", connection: { filename }, useNullAsDefault: true };
      return verrou(knexStore({ connection: knex(config) }));
    },
  },
  { product: "MongoDB (FerretDB)", name: "@verrou/core", open: hasNoAdapter },
  { product: "Deno KV (file)", name: "@verrou/core", open: hasNoAdapter },
];

/** A peer in its own process. */
export interface RunningPeer {
  /** Runs so many cycles, and gives their median in milliseconds. */
  cycles(count: number): Promise<number>;
  stop(): Promise<unknown>;
}

/**
 * Starts a peer.
 *
 * @param peer which
 * @param place where the product is
 * @returns the peer, or why it cannot run
 */
export async function startPeer(peer: RegisterPeer, place: string): Promise<RunningPeer | string> {
  const script = new URL("./register_peer.ts", import.meta.url).pathname;
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", ...FLAGS, script, peer.product, peer.name, place],
    stdin: "piped",
    stdout: "piped",
    stderr: "null",
  }).spawn();
  const reader = child.stdout.pipeThrough(new TextDecoderStream()).getReader();
  const writer = child.stdin.getWriter();
  const stop = async (): Promise<unknown> => {
    await writer.close().catch(() => {});
    return child.status;
  };
  const answer = async (): Promise<string> => (await reader.read()).value?.trim() ?? "it ended";
  const first = await answer();
  if (first !== "ready") return stop().then(() => first);
  return {
    async cycles(count) {
      await writer.write(new TextEncoder().encode(`${count}\n`));
      const ms = Number(await answer());
      if (!Number.isFinite(ms)) throw new Error(`${peer.name} on ${peer.product} ended`);
      return ms;
    },
    stop,
  };
}
