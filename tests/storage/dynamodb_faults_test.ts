import { type DynamoDB, TransactionConflictException } from "@aws-sdk/client-dynamodb";
import { assert, assertEquals, assertObjectMatch, assertRejects } from "@std/assert";
import { startDynamoDb, withService } from "../../scripts/services.ts";
import { StorageError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import type { Command } from "../../src/core/record.ts";
import { createTable, DynamoDbStorage, fenceCheck } from "../../src/storage/dynamodb.ts";
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
import { connect, operationOf, record, TABLE } from "../support/dynamodb.ts";
import { ShiftedClock } from "../support/shifted_clock.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

await withService("dynamodb", ({ test, service }) => {
  async function withClient(run: (client: DynamoDB) => Promise<void>): Promise<void> {
    using client = connect(service().url);
    await createTable(client, TABLE);
    await run(client);
  }

  const commands: Record<string, { command: (lease: Fenced) => Command; outcome: object }> = {
    "a first acquire": { command: () => acquire(token()), outcome: { type: "granted" } },
    "a repeated acquire": { command: (l) => acquire(l.token), outcome: { type: "granted" } },
    "a renewal": {
      command: (l) => renew(l.token, l.fencingToken, 2 * TTL_MS),
      outcome: { type: "renewed" },
    },
    "a hand-over": {
      command: (l) => adopt(l.token, l.fencingToken, token()),
      outcome: { type: "granted" },
    },
    "a release": { command: (l) => release(l.token), outcome: { type: "released", freed: true } },
    "an eviction": { command: () => evict(), outcome: { type: "evicted", count: 1 } },
  };
  for (const [what, { command, outcome }] of Object.entries(commands)) {
    for (const times of [1, Infinity]) {
      const how = times === 1 ? "of the first request" : "of every write";
      // covers: G4 G11
      test(`${what} is answered right when the reply ${how} is lost and the SDK resends`, async () => {
        await using proxy = await startTcpProxy({ targetPort: service().port });
        using client = connect(`http://127.0.0.1:${proxy.port}`);
        await createTable(client, TABLE);
        const operations = record(proxy);
        const storage = new DynamoDbStorage(client, { table: TABLE });
        const name = uniqueName("lost");
        const lease = what === "a first acquire"
          ? { name, token: "", fencingToken: 0 }
          : await grant(storage, name);
        operations.splice(0);
        proxy.dropReplyIf((request) => operationOf(request) === "PutItem", times);
        assertObjectMatch(await storage.execute(name, command(lease)), outcome);
        const puts = operations.filter((o) => o === "PutItem").length;
        assert(times === 1 ? puts === 2 : puts >= 4, `sent: ${operations}`);
        await proxy.heal();
        const { holders } = await storage.execute(name, inspect);
        const isOver = what === "a release" || what === "an eviction";
        assertEquals(holders.length, isOver ? 0 : 1);
        if (what === "a renewal") assert(holders[0]!.remainingMs > TTL_MS * 1.5);
      });
    }
  }

  // covers: G4 G11
  test("a renewal that never arrived is not confirmed, and is sent again", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    using client = connect(`http://127.0.0.1:${proxy.port}`, { maxAttempts: 1 });
    await createTable(client, TABLE);
    const storage = new DynamoDbStorage(client, { table: TABLE });
    const lease = await grant(storage, uniqueName("request"));
    // Deno's own HTTP client sends a request a second time, too.
    proxy.dropRequestIf((request) => operationOf(request) === "PutItem", 2);
    const command = renew(lease.token, lease.fencingToken, 3 * TTL_MS);
    assertEquals(await storage.execute(lease.name, command), { type: "renewed" });
    const { holders } = await storage.execute(lease.name, inspect);
    assert(holders[0]!.remainingMs > TTL_MS * 2.5, `${holders[0]!.remainingMs} ms remain`);
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
    const lease = await grant(storage, "job");
    server.kill();
    const error = await assertRejects(
      () => storage.execute("job", renew(lease.token, lease.fencingToken)),
      StorageError,
    );
    assertEquals(error.transient, true);
    await server.restart();
    const other = new DynamoDbStorage(client, { table: TABLE });
    assertEquals((await other.execute("job", acquire(token()))).type, "held");
    const renewed = await storage.execute("job", renew(lease.token, lease.fencingToken));
    assertEquals(renewed, { type: "renewed" });
    assertEquals(await storage.execute("job", release(lease.token)), {
      type: "released",
      freed: true,
    });
    const next = await grant(other, "job");
    assert(next.fencingToken > lease.fencingToken);
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
    "truncated": { set: "record", value: "holdfast 1 17950000000" },
    "cut in the middle of a line": { set: "record", value: "holdfast 1 5\nh token 5 1\n.\n" },
    "of another major version": { set: "record", value: "holdfast 2 5\n" },
    "empty": { set: "record", value: "" },
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
        for (
          const work of [
            // The holder remembers the version, and an edit by hand does not change that.
            () => storage.execute(lease.name, renew(lease.token, lease.fencingToken)),
            () => storage.execute(lease.name, release(lease.token)),
            () => stranger.execute(lease.name, acquire(token())),
            () => stranger.execute(lease.name, inspect),
            () => stranger.execute(lease.name, evict()),
          ]
        ) {
          const error = await assertRejects(work, StorageError);
          assertEquals(
            error.message,
            `Cannot use key "${storage.key(lease.name)}" as its value is not a Holdfast record`,
          );
          assertEquals(error.transient, false);
        }
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
