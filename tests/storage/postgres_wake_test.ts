import { assert, assertEquals } from "@std/assert";
import { startPostgres, withService } from "../../scripts/services.ts";
import { Lock } from "../../src/core/lock.ts";
import type { Watch } from "../../src/core/storage.ts";
import { nodePg, type PostgresClient, PostgresStorage } from "../../src/storage/postgres.ts";
import { acquire, release, token, uniqueName } from "../support/commands.ts";
import { type Connected, connectPgClient, drivers, observed } from "../support/postgres.ts";

const [withPostgres, withPg] = drivers as [typeof drivers[0], typeof drivers[0]];

/** So long that only a notification can be what woke a waiter. */
const NEVER_MS = { min: 20_000, max: 30_000 };

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const giveUpMs = performance.now() + 15_000;
  while (!await condition()) {
    assert(performance.now() < giveUpMs, "it did not come true within 15 s");
    await pause(10);
  }
}

/** How many connections of the server listen. */
async function listeners({ query }: Connected, database = "postgres"): Promise<number> {
  const [row] = await query(
    "SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = $1 AND query ILIKE 'listen %'",
    [database],
  );
  return row!["n"] as number;
}

await withService("postgres", ({ test, service }) => {
  for (const driver of drivers) {
    // covers: G8
    test(`${driver.name}: a release wakes a waiter that does not poll`, async () => {
      await using one = driver.connect(service().url);
      await using two = driver.connect(service().url);
      const a = new PostgresStorage(one.client, { pollMs: NEVER_MS });
      const b = new PostgresStorage(two.client, { pollMs: NEVER_MS });
      await a.migrate();
      const name = uniqueName("woken");
      const lease = await new Lock({ storage: a, name }).acquire();
      const waiting = new Lock({ storage: b, name }).acquire({ timeoutMs: 15_000 });
      await pause(500);
      const startMs = performance.now();
      await lease.release();
      await using next = await waiting;
      assert(performance.now() - startMs < 1000, "the waiter was not woken");
      assert(next.fencingToken > lease.fencingToken);
    });

    // covers: G7
    test(`${driver.name}: nobody listens unless somebody waits`, async () => {
      await using connected = driver.connect(service().url, { max: 2 });
      const storage = new PostgresStorage(connected.client);
      await storage.migrate();
      await until(async () => await listeners(connected) === 0);
      for (let i = 0; i < 2; i++) {
        const woken = { one: 0, two: 0 };
        const one = storage.watch!(uniqueName("one"), () => woken.one++);
        assertEquals(one.live, false);
        await until(() => one.live);
        assertEquals(await listeners(connected), 1);
        const two = storage.watch!(uniqueName("two"), () => woken.two++);
        assertEquals(two.live, true);
        await until(() => woken.two > 0);
        assertEquals(woken, { one: 1, two: 1 });
        one[Symbol.dispose]();
        two[Symbol.dispose]();
        assertEquals(two.live, false);
        await until(async () => await listeners(connected) === 0);
        // Both connections of the pool, at once.
        const channels =
          "SELECT count(c)::int AS n, pg_sleep(0.1) FROM pg_listening_channels() AS c";
        const both = await Promise.all([1, 2].map(() => connected.query(channels)));
        assertEquals(both.map(([row]) => row!["n"]), [0, 0]);
      }
    });

    test(`${driver.name}: a subscription that is cut is live again, and wakes once more`, async () => {
      await using connected = driver.connect(service().url);
      const storage = new PostgresStorage(connected.client);
      await storage.migrate();
      let woken = 0;
      const watch = storage.watch!(uniqueName("cut"), () => woken++);
      await until(() => watch.live);
      const before = woken;
      await connected.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'listen %'",
      );
      await until(() => watch.live && woken > before);
      watch[Symbol.dispose]();
    });
  }

  test("a release notifies once where somebody left a ticket, and not otherwise", async () => {
    await using connected = withPostgres.connect(service().url);
    const heard: string[] = [];
    const { listen, query } = connected.client;
    const storage = new PostgresStorage({
      query,
      listen: (channel, handlers) =>
        listen!(channel, {
          ...handlers,
          notified: (payload) => {
            heard.push(payload);
            handlers.notified(payload);
          },
        }),
    });
    await storage.migrate();
    const name = uniqueName("ticket");
    const woken: (string | undefined)[] = [];
    const watch = storage.watch!(name, (next) => woken.push(next));
    const elsewhere = storage.watch!(uniqueName("elsewhere"), () => woken.push("elsewhere"));
    await until(() => watch.live);
    heard.length = woken.length = 0;

    const [mine, first, second] = [token(), token(), token()];
    await storage.execute(name, acquire(mine));
    await storage.execute(name, release(mine));
    await pause(200);
    assertEquals(heard, []);

    const again = token();
    await storage.execute(name, acquire(again));
    for (const waiter of [first, second]) {
      await storage.execute(name, acquire(waiter, { queueMs: 10_000 }));
    }
    assertEquals(heard, []);
    await storage.execute(name, release(again));
    await until(() => heard.length > 0);
    await pause(200);
    assertEquals(woken, [first.slice(0, 8)]);
    assertEquals(heard.length, 1);
    assert(/^[0-9a-f]{16} [0-9a-f]{8}$/.test(heard[0]!), heard[0]);
    watch[Symbol.dispose]();
    elsewhere[Symbol.dispose]();
  });

  // covers: G8
  test("a single Client of pg asks and listens on its one connection", async () => {
    await using one = await connectPgClient(service().url);
    await using two = await connectPgClient(service().url);
    const a = new PostgresStorage(nodePg(one, { listen: true }), { pollMs: NEVER_MS });
    const b = new PostgresStorage(nodePg(two, { listen: true }), { pollMs: NEVER_MS });
    await a.migrate();
    const name = uniqueName("client");
    const lease = await new Lock({ storage: a, name }).acquire();
    const waiting = new Lock({ storage: b, name }).acquire({ timeoutMs: 15_000 });
    await pause(300);
    await lease.release();
    await using next = await waiting;
    assert(next.waitedMs < 5000);
  });

  test("a client that does not listen wakes those that do", async () => {
    await using silent = withPg.connect(service().url, { listen: false });
    await using connected = withPg.connect(service().url);
    const a = new PostgresStorage(silent.client);
    assertEquals(a.watch, undefined);
    const b = new PostgresStorage(connected.client, { pollMs: NEVER_MS });
    await a.migrate();
    const name = uniqueName("silent");
    const lease = await new Lock({ storage: a, name }).acquire();
    const waiting = new Lock({ storage: b, name }).acquire({ timeoutMs: 15_000 });
    await pause(500);
    await lease.release();
    await using next = await waiting;
    assert(next.waitedMs < 5000);
  });

  // covers: G8
  test("a pooler that swallows notifications is noticed, and waiters poll", async () => {
    await using connected = withPg.connect(service().url);
    const swallowing: PostgresClient = {
      query: connected.client.query,
      listen: (_, { begun }) => {
        queueMicrotask(begun);
        return { [Symbol.dispose]: () => {} };
      },
    };
    const storage = new PostgresStorage(swallowing);
    await storage.migrate();
    const watch = storage.watch!(uniqueName("watched"), () => {});
    await pause(200);
    assertEquals(watch.live, false);
    watch[Symbol.dispose]();
    const name = uniqueName("swallowed");
    const lease = await new Lock({ storage, name }).acquire();
    const waiting = new Lock({ storage, name, gate: false }).acquire({ timeoutMs: 15_000 });
    await pause(500);
    await lease.release();
    await using next = await waiting;
    assert(next.waitedMs < 3000);
  });

  test("a waiter that listens asks nothing until it is woken, and then twice", async () => {
    await using one = withPostgres.connect(service().url);
    await using two = withPostgres.connect(service().url);
    let statements = 0;
    const a = new PostgresStorage(one.client);
    const b = new PostgresStorage(observed(two.client, () => void statements++));
    await a.migrate();
    const name = uniqueName("asks");
    const lease = await new Lock({ storage: a, name }).acquire();
    const waiting = new Lock({ storage: b, name }).acquire({ timeoutMs: 15_000 });
    await pause(2000);
    // A read and a write of the ticket, a probe of the subscription, a read when that is live; and where it
    // took longer than the first sleep, one more.
    assert(statements >= 4 && statements <= 6, `${statements}`);
    statements = 0;
    await pause(2000);
    assertEquals(statements, 0);
    await lease.release();
    await using next = await waiting;
    assert(next.waitedMs < 6000);
    assertEquals(statements, 2);
  });
});

for (const driver of drivers) {
  Deno.test({
    name: `${driver.name}: who waits while the server is down listens when it is up`,
    // The server that this test kills and starts again is a process of its own.
    sanitizeResources: false,
    sanitizeOps: false,
    async fn() {
      await using server = await startPostgres({ persist: true });
      await using connected = driver.connect(server.url);
      const storage = new PostgresStorage(connected.client);
      await storage.migrate();
      server.kill();
      const watches: Watch[] = [];
      for (let i = 0; i < 3; i++) {
        watches.push(storage.watch!("down", () => {}));
        await pause(100);
        assertEquals(watches[i]!.live, false);
        if (i < 2) watches[i]![Symbol.dispose]();
      }
      await server.restart();
      await until(() => watches[2]!.live);
      watches[2]![Symbol.dispose]();
    },
  });
}
