import type { DynamoDB } from "@aws-sdk/client-dynamodb";
import { assert, assertEquals, assertObjectMatch, assertRejects } from "@std/assert";
import { withService } from "../../scripts/services.ts";
import { StaleFenceError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import { Lock } from "../../src/core/lock.ts";
import { createTable, DynamoDbStorage, fenceCheck, fenced } from "../../src/storage/dynamodb.ts";
import { ManualClock } from "../../src/testing/manual_clock.ts";
import {
  acquire,
  adopt,
  evict,
  grant,
  inspect,
  release,
  renew,
  token,
  TTL_MS,
  uniqueName,
} from "../support/commands.ts";
import { connect, record, TABLE } from "../support/dynamodb.ts";
import { raceAtExpiry } from "../support/expiry_race.ts";
import { ShiftedClock } from "../support/shifted_clock.ts";
import { contend } from "../support/storage_cases.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

await withService("dynamodb", ({ test, service }) => {
  /** Runs a test with `count` clients of the same table. */
  async function withClients(
    count: number,
    run: (clients: DynamoDB[]) => Promise<void>,
  ): Promise<void> {
    const clients = Array.from({ length: count }, () => connect(service().url));
    try {
      await createTable(clients[0]!, TABLE);
      await run(clients);
    } finally {
      for (const client of clients) client.destroy();
    }
  }

  test("acquire, renew and release take one request each, inspect one read", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    using client = connect(`http://127.0.0.1:${proxy.port}`);
    await createTable(client, TABLE);
    const operations = record(proxy);
    const storage = new DynamoDbStorage(client, { table: TABLE });
    const name = uniqueName("count");
    const lease = await grant(storage, name);
    assertEquals(operations.splice(0), ["PutItem"], "acquire");
    await storage.execute(name, renew(lease.token, lease.fencingToken));
    assertEquals(operations.splice(0), ["PutItem"], "renew");
    await storage.execute(name, inspect);
    assertEquals(operations.splice(0), ["GetItem"], "inspect");
    await storage.execute(name, release(lease.token));
    assertEquals(operations.splice(0), ["PutItem"], "release");
    await grant(storage, name);
    assertEquals(operations.splice(0), ["PutItem"], "acquire again");
    const other = new DynamoDbStorage(client, { table: TABLE });
    assertEquals((await other.execute(name, acquire(token()))).type, "held");
    assertEquals(operations.splice(0), ["PutItem"], "a refusal takes no second read");
  });

  test("the item has the record in one string, and attributes for people and the reaper", async () => {
    await withClients(1, async ([client]) => {
      // The reaper of DynamoDB Local is at work.
      const clock = new ManualClock(Date.now());
      const storage = new DynamoDbStorage(client!, { table: TABLE, clock, retentionMs: 120_000 });
      const lease = await grant(storage, "item/ü", { label: "worker 7" });
      const { Item } = await client!.getItem({
        TableName: TABLE,
        Key: { key: { S: "holdfast:item%2F%C3%BC" } },
      });
      const expiresAtMs = clock.read().wallMs + TTL_MS + 1000;
      assertObjectMatch(Item!, {
        record: {
          S: `holdfast 1 ${lease.fencingToken}\n` +
            `h ${lease.token} ${lease.fencingToken} 1 1 ${TTL_MS} 0 ${expiresAtMs} worker 7\n.\n`,
        },
        fence: { N: String(lease.fencingToken) },
        holdings: { M: { [String(lease.fencingToken)]: { S: lease.token } } },
        ttl: { N: String(Math.ceil((expiresAtMs + 120_000) / 1000)) },
      });
      const versions = new Set([Item!["version"]!.S]);
      for (let i = 0; i < 3; i++) {
        await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
        const after = await client!.getItem({ TableName: TABLE, Key: { key: Item!["key"]! } });
        assertEquals(after.Item!["holdings"], Item!["holdings"], "a renewal keeps the guard");
        versions.add(after.Item!["version"]!.S);
      }
      assertEquals(versions.size, 4, "versions never repeat");
    });
  });

  // covers: G4 G11 S1.4 S1.8
  test("a late copy of a request changes nothing: every write is conditional on a version that is over", async () => {
    await withClients(1, async ([client]) => {
      const sent: Parameters<DynamoDB["putItem"]>[0][] = [];
      const storage = new DynamoDbStorage({
        getItem: (input, options) => client!.getItem(input, options),
        putItem: (input, options) => {
          sent.push(structuredClone(input));
          return client!.putItem(input, options);
        },
      }, { table: TABLE });
      const lease = await grant(storage, uniqueName("late"));
      await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
      await storage.execute(lease.name, renew(lease.token, lease.fencingToken, 2 * TTL_MS));
      await storage.execute(lease.name, release(lease.token));
      const Key = { key: { S: storage.key(lease.name) } };
      const { Item } = await client!.getItem({ TableName: TABLE, Key });
      assertEquals(sent.length, 4);
      for (const input of sent) {
        const error = await assertRejects(() => client!.putItem(input));
        assertEquals((error as Error).name, "ConditionalCheckFailedException");
      }
      assertEquals((await client!.getItem({ TableName: TABLE, Key })).Item, Item);
    });
  });

  // covers: S1.6 S1.23
  test("a lease ends by its deadline when its table was deleted", async () => {
    using client = connect(service().url);
    const table = `deleted-${crypto.randomUUID()}`;
    await createTable(client, table);
    const storage = new DynamoDbStorage(client, { table });
    const lease = await new Lock({ storage, name: "job", ttlMs: 2000 }).acquire();
    assert(lease.isHeld());
    await client.deleteTable({ TableName: table });
    const { signal } = lease;
    const startMs = Date.now();
    await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
    assert(Date.now() - startMs < 4000, `${Date.now() - startMs} ms`);
    assertEquals([lease.isHeld(), lease.status], [false, "lost"]);
  });

  // covers: G1
  test("of 20 concurrent first acquires one is granted", async () => {
    await withClients(4, async (clients) => {
      for (let round = 0; round < 3; round++) {
        const storageOf = (i: number) => new DynamoDbStorage(clients[i % 4]!, { table: TABLE });
        await contend(uniqueName("first"), storageOf);
      }
    });
  });

  // covers: G1 G2 S1.20
  test("of 20 who take over an expired holder one is granted, without waiting for the reaper", async () => {
    await withClients(4, async (clients) => {
      for (let round = 0; round < 3; round++) {
        const name = uniqueName("takeover");
        const clock = new ShiftedClock();
        const options = { table: TABLE, clock, maxClockSkewMs: 0 };
        const dead = await grant(new DynamoDbStorage(clients[0]!, options), name);
        clock.pass(TTL_MS);
        const next = await contend(name, (i) => new DynamoDbStorage(clients[i % 4]!, options));
        assert(next.fence > dead.fencingToken);
      }
    });
  });

  // covers: G1 G5
  test("a renewal that races a takeover at the instant of expiry never leaves two holders", async () => {
    await withClients(2, async ([one, two]) => {
      const a = new DynamoDbStorage(one!, { table: TABLE, maxClockSkewMs: 0 });
      const b = new DynamoDbStorage(two!, { table: TABLE, maxClockSkewMs: 0 });
      await raceAtExpiry(a, b, { tries: 300, together: 10, ttlMs: 80 });
    });
  });

  // covers: G3
  test("a fenced transaction is applied while the lease is held, also after renewals", async () => {
    await withClients(1, async ([client]) => {
      const storage = new DynamoDbStorage(client!, { table: TABLE });
      const lease = await grant(storage, uniqueName("fence"));
      await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
      const id = token();
      await client!.transactWriteItems({
        TransactItems: [fenceCheck(storage, lease), put(id, "written")],
      });
      assertEquals(await read(client!, id), "written");
    });
  });

  const ends: Record<
    string,
    (s: DynamoDbStorage, l: Fenced, c: ShiftedClock) => Promise<unknown>
  > = {
    "was released": (s, l) => s.execute(l.name, release(l.token)),
    "was released and keeps its permits for a while": (s, l) =>
      s.execute(l.name, release(l.token, TTL_MS)),
    "was evicted": (s, l) => s.execute(l.name, evict()),
    "was handed over": (s, l) => s.execute(l.name, adopt(l.token, l.fencingToken, token())),
    "expired and was replaced": (s, l, clock) => {
      clock.pass(TTL_MS + 1000);
      return grant(s, l.name);
    },
  };
  for (const [how, end] of Object.entries(ends)) {
    // covers: G3
    test(`a fenced transaction of a holder that ${how} changes nothing`, async () => {
      await withClients(2, async ([one, two]) => {
        const clock = new ShiftedClock();
        const storage = new DynamoDbStorage(one!, { table: TABLE, clock });
        const lease = await grant(storage, uniqueName("stale"));
        await end(new DynamoDbStorage(two!, { table: TABLE, clock }), lease, clock);
        await assertCancelled(one!, storage, lease);
      });
    });
  }

  // covers: G3
  test("a fenced transaction with the right token and another fence changes nothing", async () => {
    await withClients(1, async ([client]) => {
      const storage = new DynamoDbStorage(client!, { table: TABLE });
      const lease = await grant(storage, uniqueName("fence"));
      const other = { ...lease, fencingToken: lease.fencingToken - 1 };
      await assertCancelled(client!, storage, other);
    });
  });

  // covers: G3
  test("fenced() says that the lease is stale, and leaves other refusals as they are", async () => {
    await withClients(1, async ([client]) => {
      const storage = new DynamoDbStorage(client!, { table: TABLE });
      const lease = await grant(storage, uniqueName("fenced"));
      const id = token();
      const write = (condition?: string) =>
        fenced(storage, lease, (check) => {
          const { Put } = put(id, "written");
          const Conditional = condition ? { ...Put, ConditionExpression: condition } : Put;
          return client!.transactWriteItems({ TransactItems: [check, { Put: Conditional }] });
        });
      await write();
      const own = await assertRejects(() => write("attribute_not_exists(#none) AND false = true"));
      assertEquals((own as Error).name, "ValidationException");
      const refused = await assertRejects(() => write("attribute_exists(another)"));
      assertEquals((refused as Error).name, "TransactionCanceledException");
      await storage.execute(lease.name, release(lease.token));
      const stale = await assertRejects(() => write(), StaleFenceError);
      assertEquals(
        stale.message,
        `Cannot write under lock "${lease.name}" as fence ${lease.fencingToken} is not held any more`,
      );
      assertEquals(stale.fence, lease.fencingToken);
      assertEquals((stale.cause as Error).name, "TransactionCanceledException");
    });
  });

  // covers: G3
  test("each holder of a semaphore has a guard of its own", async () => {
    await withClients(1, async ([client]) => {
      const storage = new DynamoDbStorage(client!, { table: TABLE });
      const name = uniqueName("semaphore");
      const first = await grant(storage, name, { capacity: 2 });
      const second = await grant(storage, name, { capacity: 2 });
      await storage.execute(name, release(second.token));
      const id = token();
      await client!.transactWriteItems({
        TransactItems: [fenceCheck(storage, first), put(id, "first")],
      });
      assertEquals(await read(client!, id), "first");
      await assertCancelled(client!, storage, second);
    });
  });
});

function put(id: string, value: string) {
  return { Put: { TableName: TABLE, Item: { key: { S: id }, value: { S: value } } } };
}

async function read(client: DynamoDB, id: string): Promise<string | undefined> {
  const { Item } = await client.getItem({ TableName: TABLE, Key: { key: { S: id } } });
  return Item?.["value"]?.S;
}

async function assertCancelled(
  client: DynamoDB,
  storage: DynamoDbStorage,
  lease: Fenced,
): Promise<void> {
  const id = token();
  const error = await assertRejects(() =>
    client.transactWriteItems({ TransactItems: [fenceCheck(storage, lease), put(id, "stale")] })
  );
  assertObjectMatch(error as object, {
    name: "TransactionCanceledException",
    CancellationReasons: [{ Code: "ConditionalCheckFailed" }, { Code: "None" }],
  });
  assertEquals(await read(client, id), undefined);
}
