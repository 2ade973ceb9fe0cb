import { type DynamoDB, TransactionConflictException } from "@aws-sdk/client-dynamodb";
import { assert, assertEquals, assertRejects } from "@std/assert";
import { startDynamoDb, withService } from "../../scripts/services.ts";
import { createTable, DynamoDbStorage, fenceCheck } from "../../src/storage/dynamodb.ts";
import { acquire, grant, release, renew, token, TTL_MS, uniqueName } from "../support/commands.ts";
import { connect, operationOf, record, TABLE } from "../support/dynamodb.ts";
import { ShiftedClock } from "../support/shifted_clock.ts";
import {
  checkDamaged,
  checkLoss,
  checkLostRequest,
  checkRestart,
  damagedTexts,
  losses,
} from "../support/storage_cases.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

await withService("dynamodb", ({ test, service }) => {
  async function withClient(run: (client: DynamoDB) => Promise<void>): Promise<void> {
    using client = connect(service().url);
    await createTable(client, TABLE);
    await run(client);
  }

  for (const what of Object.keys(losses)) {
    for (const times of [1, Infinity]) {
      const how = times === 1 ? "of the first request" : "of every write";
      // covers: G4 G11
      test(`${what} is answered right when the reply ${how} is lost and the SDK resends`, async () => {
        await using proxy = await startTcpProxy({ targetPort: service().port });
        using client = connect(`http://127.0.0.1:${proxy.port}`);
        await createTable(client, TABLE);
        const operations = record(proxy);
        const storage = new DynamoDbStorage(client, { table: TABLE });
        await checkLoss(storage, what, {
          lose() {
            operations.splice(0);
            proxy.dropReplyIf((request) => operationOf(request) === "PutItem", times);
          },
          async heal() {
            const puts = operations.filter((o) => o === "PutItem").length;
            assert(times === 1 ? puts === 2 : puts >= 4, `sent: ${operations}`);
            await proxy.heal();
          },
        });
      });
    }
  }

  // covers: G4 G11
  test("a renewal that never arrived is not confirmed, and is sent again", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    using client = connect(`http://127.0.0.1:${proxy.port}`, { maxAttempts: 1 });
    await createTable(client, TABLE);
    const storage = new DynamoDbStorage(client, { table: TABLE });
    // Deno's own HTTP client sends a request a second time, too.
    await checkLostRequest(
      storage,
      () => proxy.dropRequestIf((request) => operationOf(request) === "PutItem", 2),
    );
  });

  // covers: G11
  test("a heartbeat that meets a fenced transaction is sent again", async () => {
    await withClient(async (client) => {
      // DynamoDB Local has no TransactionConflictException; the service documents it.
      let conflicts = 1;
      const storage = new DynamoDbStorage({
        getItem: (input, options) => client.getItem(input, options),
        putItem: (input, options) =>
          conflicts-- === 0
            ? Promise.reject(new TransactionConflictException({ message: "", $metadata: {} }))
            : client.putItem(input, options),
      }, { table: TABLE });
      const lease = await grant(storage, uniqueName("conflict"));
      const outcome = await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
      assertEquals(outcome, { type: "renewed" });
      assertEquals(conflicts, -2);
    });
  });

  test("a server that was killed is an error while it is down, and nothing is lost after it", async () => {
    await using server = await startDynamoDb({ persist: true });
    using client = connect(server.url, { maxAttempts: 1 });
    await createTable(client, TABLE);
    const storage = new DynamoDbStorage(client, { table: TABLE });
    await checkRestart(server, storage, new DynamoDbStorage(client, { table: TABLE }));
  });

  for (const wrongMs of [-120_000, 120_000]) {
    // covers: G1 G5
    test(`wall clocks ${wrongMs} ms apart, within maxClockSkewMs: nobody takes over before the holder's deadline`, async () => {
      await withClient(async (client) => {
        const mine = new ShiftedClock();
        const theirs = new ShiftedClock(wrongMs);
        const options = { table: TABLE, maxClockSkewMs: 150_000 };
        const holder = new DynamoDbStorage(client, { ...options, clock: mine });
        const name = uniqueName("skew");
        const lease = await grant(holder, name);
        const pass = (ms: number): void => [mine, theirs].forEach((clock) => clock.pass(ms));
        pass(TTL_MS - 1);
        const early = new DynamoDbStorage(client, { ...options, clock: theirs });
        assertEquals((await early.execute(name, acquire(token()))).type, "held");
        pass(2 * 150_000 + 1);
        const late = new DynamoDbStorage(client, { ...options, clock: theirs });
        const next = await grant(late, name);
        assert(next.fencingToken > lease.fencingToken, "fences rise");
      });
    });
  }

  // covers: G2 G3
  test("a wall clock ahead by more than maxClockSkewMs takes over early, and the fence refuses the old holder", async () => {
    await withClient(async (client) => {
      const holder = new DynamoDbStorage(client, { table: TABLE });
      const ahead = new DynamoDbStorage(client, { table: TABLE, clock: new ShiftedClock(600_000) });
      const behind = new DynamoDbStorage(client, {
        table: TABLE,
        clock: new ShiftedClock(-600_000),
      });
      const old = await grant(holder, uniqueName("beyond"));
      const next = await grant(ahead, old.name);
      assert(next.fencingToken > old.fencingToken);
      const id = token();
      const write = { Put: { TableName: TABLE, Item: { key: { S: id } } } };
      const error = await assertRejects(() =>
        client.transactWriteItems({ TransactItems: [fenceCheck(holder, old), write] })
      );
      assertEquals((error as Error).name, "TransactionCanceledException");
      assertEquals(
        (await client.getItem({ TableName: TABLE, Key: { key: { S: id } } })).Item,
        undefined,
      );
      assertEquals(await holder.execute(old.name, renew(old.token, old.fencingToken)), {
        type: "refused",
        reason: "superseded",
      });
      await ahead.execute(old.name, release(next.token));
      const last = await grant(behind, old.name);
      assert(last.fencingToken > next.fencingToken, "fences rise although the clock is behind");
    });
  });

  // covers: G1 S5.8
  test("a holder that renews is not taken for dead, however long it is watched", async () => {
    await withClient(async (client) => {
      const holder = new DynamoDbStorage(client, { table: TABLE });
      const lease = await grant(holder, uniqueName("alive"));
      const clock = new ShiftedClock(-600_000);
      const behind = new DynamoDbStorage(client, { table: TABLE, clock });
      for (let i = 0; i < 5; i++) {
        assertEquals((await behind.execute(lease.name, acquire(token()))).type, "held");
        clock.pass(TTL_MS / 2);
        await holder.execute(lease.name, renew(lease.token, lease.fencingToken));
      }
      assertEquals((await behind.execute(lease.name, acquire(token()))).type, "held");
    });
  });

  // covers: G8 S5.7
  test("a wall clock behind by more than maxClockSkewMs takes over a holder that it has watched die", async () => {
    await withClient(async (client) => {
      const dead = await grant(new DynamoDbStorage(client, { table: TABLE }), uniqueName("watch"));
      const clock = new ShiftedClock(-600_000);
      const behind = new DynamoDbStorage(client, { table: TABLE, clock });
      assertEquals((await behind.execute(dead.name, acquire(token()))).type, "held");
      clock.pass((TTL_MS + 1000) * 1.01 - 1000);
      assertEquals((await behind.execute(dead.name, acquire(token()))).type, "held");
      clock.pass(1000);
      const next = await grant(behind, dead.name);
      assert(next.fencingToken > dead.fencingToken);
    });
  });

  const damages: Record<string, { set: string; value: unknown }> = {
    ...Object.fromEntries(
      Object.entries(damagedTexts).map(([how, value]) => [how, { set: "record", value }]),
    ),
    "without a version": { set: "version", value: undefined },
    "not a string": { set: "record", value: 5 },
  };
  for (const [how, { set, value }] of Object.entries(damages)) {
    // covers: G12
    test(`a record that is ${how} is an error for everyone, and stays as it is`, async () => {
      await withClient(async (client) => {
        const storage = new DynamoDbStorage(client, { table: TABLE });
        const lease = await grant(storage, uniqueName("damaged"));
        const Key = { key: { S: storage.key(lease.name) } };
        const attribute = typeof value === "string" ? { S: value } : { N: String(value) };
        await client.updateItem({
          TableName: TABLE,
          Key,
          UpdateExpression: value === undefined ? "REMOVE #a" : "SET #a = :v",
          ExpressionAttributeNames: { "#a": set },
          ...(value === undefined ? {} : { ExpressionAttributeValues: { ":v": attribute } }),
        });
        const before = (await client.getItem({ TableName: TABLE, Key })).Item;
        const stranger = new DynamoDbStorage(client, { table: TABLE });
        // The holder remembers the version, and an edit by hand does not change that.
        await checkDamaged(storage, stranger, lease, storage.key(lease.name));
        assertEquals((await client.getItem({ TableName: TABLE, Key })).Item, before);
      });
    });
  }

  test("an abort rejects with its reason", async () => {
    await withClient(async (client) => {
      const storage = new DynamoDbStorage(client, { table: TABLE });
      const stop = new AbortController();
      const work = storage.execute("abort", acquire(token()), { signal: stop.signal });
      const reason = new Error("enough");
      stop.abort(reason);
      assertEquals(await work.catch((error) => error), reason);
    });
  });
});
