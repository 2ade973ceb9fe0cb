import { assert, assertEquals, assertRejects } from "@std/assert";
import type { Redis } from "ioredis";
import { type Service, startRedis, withService } from "../../scripts/services.ts";
import { type Lease, LeaseLostError, Lock, StorageError } from "../../mod.ts";
import type { Fenced } from "../../src/core/lease.ts";
import type { Command, Outcome } from "../../src/core/record.ts";
import type { LeaseStorage } from "../../src/core/storage.ts";
import { keyOf } from "../../src/storage/_redis_command.ts";
import { fencedExec } from "../../src/storage/redis.ts";
import { eventually } from "../../src/testing/check.ts";
import {
  acquire,
  adopt,
  evict,
  inspect,
  release,
  renew,
  token,
  uniqueName,
} from "../support/commands.ts";
import {
  connectIoredis,
  connectRedis,
  grant,
  KINDS,
  type RedisKind,
} from "../support/redis_clients.ts";
import { ShiftedClock } from "../support/shifted_clock.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp_proxy.ts";

/** By how much a timer of a slow, shared machine may be late. */
const SLACK_MS = 300;

/** Whether a request carries such a command of the lock's script. */
function carries(word: string): (request: Uint8Array) => boolean {
  return (request) => new TextDecoder("latin1").decode(request).includes(`\r\n${word}\r\n`);
}

async function holders(storage: LeaseStorage, name: string): Promise<number> {
  return (await storage.execute(name, inspect)).holders.length;
}

/** When the lease's signal aborts, in milliseconds from now. */
function abortedAfterMs(lease: Lease): Promise<number> {
  const startMs = performance.now();
  // Who waits for nothing but the signal can be collected together with it.
  lease.hold();
  return new Promise((resolve) =>
    lease.signal.addEventListener("abort", () => resolve(performance.now() - startMs))
  );
}

await withService("redis", ({ test, service }) => {
  /** A storage behind a proxy, and one that sees the truth. */
  async function withProxy(
    kind: RedisKind,
    run: (on: { proxy: TcpProxy; storage: LeaseStorage; truth: LeaseStorage }) => Promise<void>,
  ): Promise<void> {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using truth = await connectRedis("ioredis", service().url, { listening: "none" });
    const url = `redis://127.0.0.1:${proxy.port}`;
    await using behind = await connectRedis(kind, url, { listening: "none" });
    await run({ proxy, storage: behind.storage, truth: truth.storage });
  }

  /** A server of the test's own, because it will suffer. */
  async function withServer(
    run: (
      on: { server: Service; storage: LeaseStorage; other: LeaseStorage; redis: Redis },
    ) => Promise<void>,
    args: readonly string[] = [],
  ): Promise<void> {
    await using server = await startRedis({ args });
    await using redis = connectIoredis(server.url);
    await using a = await connectRedis("ioredis", server.url);
    await using b = await connectRedis("node-redis", server.url);
    await run({ server, storage: a.storage, other: b.storage, redis });
  }

  for (const kind of KINDS) {
    // covers: G9 G11
    test(`a lost reply to an acquire is neither an orphan nor "held" (${kind})`, () =>
      withProxy(kind, async ({ proxy, storage, truth }) => {
        for (const attempt of ["acquire", "tryAcquire"] as const) {
          const name = uniqueName("lost");
          proxy.dropReplyIf(carries("acquire"));
          const lease = await new Lock({ storage, name })[attempt]();
          const { fence } = await truth.execute(name, inspect);
          assertEquals(lease?.fencingToken, fence, "our own lock was held by somebody else");
          assertEquals(await lease?.release(), true);
          assertEquals(await holders(truth, name), 0);
        }
        assertEquals(proxy.counters.dropped, 2);
      }));

    // covers: G11
    test(`a lost reply to a renewal keeps the lease (${kind})`, () =>
      withProxy(kind, async ({ proxy, storage, truth }) => {
        const name = uniqueName("renewal");
        await using lease = await new Lock({ storage, name, ttlMs: 1500 }).acquire();
        proxy.dropReplyIf(carries("renew"));
        await eventually(() => proxy.counters.dropped === 1, "a lost renewal");
        await new Promise((resolve) => setTimeout(resolve, 1500));
        assertEquals([lease.status, lease.signal.aborted], ["held", false]);
        assertEquals(await holders(truth, name), 1);
      }));

    // covers: G11
    test(`a lost reply to a release is a release (${kind})`, () =>
      withProxy(kind, async ({ proxy, storage, truth }) => {
        const name = uniqueName("release");
        const lease = await new Lock({ storage, name }).acquire();
        proxy.dropReplyIf(carries("release"));
        assertEquals(await lease.release(), true);
        assertEquals(proxy.counters.dropped, 1);
        assertEquals(await holders(truth, name), 0);
      }));

    // covers: G11
    test(`a lost reply to fencedExec() applies the commands once (${kind})`, async () => {
      await using proxy = await startTcpProxy({ targetPort: service().port });
      await using behind = await connectRedis(kind, `redis://127.0.0.1:${proxy.port}`);
      const { storage } = behind;
      await using lease = await new Lock({ storage, name: uniqueName("exec") }).acquire();
      const key = `user:${crypto.randomUUID()}`;
      proxy.dropReplyIf(carries("INCR"));
      assertEquals(await fencedExec(storage, lease, [["INCR", key]], { keys: [key] }), [1]);
      assertEquals(proxy.counters.dropped, 1);
    });

    // covers: G9
    test(`an acquire that is sent again after we gave up and released grants nothing (${kind})`, () =>
      withProxy(kind, async ({ proxy, storage, truth }) => {
        const name = uniqueName("resent");
        await grant(storage, uniqueName("warm"), token());
        proxy.dropReplyIf(carries("acquire"), Infinity);
        await assertRejects(
          () => new Lock({ storage, name }).acquire({ timeoutMs: 150 }),
          StorageError,
        );
        await proxy.heal();
        await eventually(async () => await holders(truth, name) === 0, "no orphan");
        await new Promise((resolve) => setTimeout(resolve, 300));
        assertEquals(await holders(truth, name), 0);
        await using next = await new Lock({ storage: truth, name }).acquire({ timeoutMs: 1000 });
        assert(next.isHeld());
      }));

    // covers: G5 G6
    test(`a server that stalls right after the grant: the signal comes by the deadline (${kind})`, () =>
      withProxy(kind, async ({ proxy, storage }) => {
        const startMs = performance.now();
        const lock = new Lock({ storage, name: uniqueName("stall"), ttlMs: 1000 });
        const lease = await lock.acquire();
        const aborted = abortedAfterMs(lease);
        proxy.hang(true);
        await aborted;
        const tookMs = performance.now() - startMs;
        await proxy.heal();
        assert(tookMs <= 990 + SLACK_MS, `${tookMs} ms`);
        assertEquals(lease.signal.reason.reason, "expired");
      }));
  }

  // covers: G9
  test("a late copy of an acquire grants nothing after its release, however the first ended", async () => {
    await using connected = await connectRedis("ioredis", service().url, { listening: "none" });
    const { storage } = connected;
    for (const first of ["granted", "refused"]) {
      const name = uniqueName("late");
      const own = token();
      if (first === "refused") await grant(storage, name, "somebody-else");
      await storage.execute(name, acquire(own, { queueMs: 10_000 }));
      await storage.execute(name, release(own));
      await storage.execute(name, release("somebody-else"));
      assertEquals(await storage.execute(name, acquire(own, { queueMs: 10_000 })), {
        type: "spent",
      });
      assertEquals(await storage.execute(name, inspect), {
        type: "inspected",
        fence: (await storage.execute(name, inspect)).fence,
        holders: [],
        waiters: 0,
      });
    }
  });

  // covers: G5 G6 G8
  test("a frozen server: the holder learns of the loss in time, the next one is granted after", () =>
    withServer(async ({ server, storage, other }) => {
      const name = uniqueName("frozen");
      const lease = await new Lock({ storage, name, ttlMs: 1000 }).acquire();
      const aborted = abortedAfterMs(lease);
      server.freeze();
      const waiting = new Lock({ storage: other, name, ttlMs: 1000 }).acquire();
      const ms = await aborted;
      server.thaw();
      assert(ms <= 990 + SLACK_MS, `${ms} ms`);
      assertEquals(lease.isHeld(), false);
      await using next = await waiting;
      assert(next.fencingToken > lease.fencingToken);
      assertEquals(await lease.release(), false);
      assert(next.isHeld());
    }));

  // covers: G2 G6
  test("a server that lost its memory: holders learn of it, and fences go on rising", () =>
    withServer(async ({ server, storage, other, redis }) => {
      const name = uniqueName("restart");
      const kill = async () => {
        server.kill();
        await server.restart();
      };
      const losses: Record<string, () => Promise<unknown>> = {
        "kill and restart": kill,
        "FLUSHALL": () => redis.flushall(),
        "eviction of the key": () => redis.del(keyOf("holdfast", name)),
      };
      let fence = 0;
      for (const [what, lose] of Object.entries(losses)) {
        const lease = await new Lock({ storage, name, ttlMs: 3000 }).acquire();
        assert(lease.fencingToken > fence, what);
        const aborted = abortedAfterMs(lease);
        await lose();
        const next = await new Lock({ storage: other, name, ttlMs: 3000 }).acquire();
        assert(next.fencingToken > lease.fencingToken, what);
        assert(await aborted <= 3000 + SLACK_MS, what);
        assertEquals(lease.signal.reason instanceof LeaseLostError, true);
        assertEquals(await lease.release(), false, what);
        assert(next.isHeld(), what);
        fence = next.fencingToken;
        assertEquals(await next.release(), true, what);
      }
    }));

  // covers: G2
  test("a record that Redis evicts for want of memory leaves fences that rise", () =>
    withServer(async ({ storage, redis }) => {
      const name = uniqueName("evicted");
      const first = await grant(storage, name, token());
      const used = Number(/used_memory:(\d+)/.exec(await redis.info("memory"))![1]);
      await redis.config("SET", "maxmemory", `${used + 400_000}`);
      await redis.config("SET", "maxmemory-policy", "allkeys-random");
      for (let i = 0; await redis.exists(keyOf("holdfast", name)); i++) {
        await redis.set(`filler:${i}`, "x".repeat(10_000));
      }
      const next = await grant(storage, name, token());
      assert(next.fencingToken > first.fencingToken);
    }));

  test("SCRIPT FLUSH while a lease is held goes unnoticed", () =>
    withServer(async ({ storage, redis }) => {
      const lease = await new Lock({ storage, name: uniqueName("flush"), ttlMs: 900 }).acquire();
      for (let i = 0; i < 4; i++) {
        await redis.script("FLUSH");
        await new Promise((resolve) => setTimeout(resolve, 300));
        assertEquals(lease.status, "held");
      }
      assertEquals(await lease.release(), true);
    }));

  test("out of memory: acquire fails clearly; renew, hand-over, evict and release work", () =>
    withServer(async ({ storage, redis }) => {
      const names = [1, 2, 3, 4].map((i) => uniqueName(`memory ${i}`));
      const leases = await Promise.all(names.map((name) => grant(storage, name, token())));
      const holder = await new Lock({ storage, name: uniqueName("held"), ttlMs: 900 }).acquire();
      await redis.config("SET", "maxmemory", "1");
      const refusals: [string, Command][] = [
        [uniqueName("new"), acquire(token())],
        [names[0]!, acquire(token(), { queueMs: 5000 })],
      ];
      for (const [name, command] of refusals) {
        const error = await assertRejects(() => storage.execute(name, command), StorageError);
        const start = `Cannot use key "${keyOf("holdfast", name)}" as Redis refused: OOM command`;
        assert(error.message.startsWith(start), error.message);
        assertEquals(error.transient, false);
      }
      await assertRejects(() => new Lock({ storage, name: "new" }).acquire(), StorageError, "OOM");

      const ask = async (i: number, command: (lease: Fenced) => Command): Promise<Outcome> =>
        await storage.execute(names[i]!, command(leases[i]!));
      assertEquals((await ask(0, (l) => renew(l.token, l.fencingToken))).type, "renewed");
      assertEquals((await ask(1, (l) => acquire(l.token))).type, "granted", "the same again");
      const handedOver = await ask(2, (l) => adopt(l.token, l.fencingToken, token()));
      assertEquals(handedOver.type, "granted");
      assertEquals(await ask(3, () => evict()), { type: "evicted", count: 1 });
      for (const i of [0, 1]) {
        const outcome = await ask(i, (l) => release(l.token));
        assertEquals(outcome, { type: "released", freed: true });
        assertEquals(await holders(storage, names[i]!), 0);
      }
      await new Promise((resolve) => setTimeout(resolve, 1200));
      assertEquals(holder.status, "held", "renewals of a lease go on");
      assertEquals(await holder.release(), true);
    }));

  // covers: G2
  test("where every write is refused a release still frees, and the next fence is larger", () =>
    withServer(async ({ server, storage, redis }) => {
      await redis.call(
        "ACL",
        "SETUSER",
        "full",
        "on",
        ">pw",
        "~*",
        "&*",
        "+@all",
        "-set",
        "-pexpire",
      );
      await using refused = await connectRedis("ioredis", server.url, {
        ioredis: { username: "full", password: "pw" },
        listening: "none",
      });
      const name = uniqueName("quota");
      const lease = await grant(storage, name, token());
      assertEquals(await refused.storage.execute(name, release(lease.token)), {
        type: "released",
        freed: true,
      });
      assertEquals(await redis.exists(keyOf("holdfast", name)), 0);
      const next = await grant(storage, name, token());
      assert(next.fencingToken > lease.fencingToken);

      const shared = { capacity: 2 };
      const [a, b] = [token(), token()];
      const semaphore = uniqueName("semaphore");
      await grant(storage, semaphore, a, shared);
      await grant(storage, semaphore, b, shared);
      await assertRejects(() => refused.storage.execute(semaphore, release(a)), StorageError);
      assertEquals(await holders(storage, semaphore), 2, "not at the cost of another holder");
    }));

  // covers: G1 G5
  test("client clocks that are hours off change nothing: the server says the time", () =>
    withServer(async ({ storage, other }) => {
      const HOUR_MS = 3_600_000;
      for (const wrongMs of [-5 * HOUR_MS, 5 * HOUR_MS]) {
        const name = uniqueName("clock");
        const clock = new ShiftedClock(wrongMs);
        const mine = new Lock({ storage, name, ttlMs: 600, clock });
        const theirs = new Lock({ storage: other, name, ttlMs: 600 });
        const lease = await mine.acquire();
        assertEquals(await theirs.tryAcquire(), null);
        await new Promise((resolve) => setTimeout(resolve, 900));
        assert(lease.isHeld(), "renewed");
        assertEquals(await theirs.tryAcquire(), null);
        await lease.release();
        const next = await theirs.tryAcquire();
        assert(next!.fencingToken > lease.fencingToken);
        assertEquals(await mine.tryAcquire(), null);
        await next!.release();
      }
    }));

  test("a server that is away is an error, not a refusal, and comes back", async () => {
    await using server = await startRedis();
    await using connected = await connectRedis("node-redis", server.url);
    const { storage } = connected;
    const lock = new Lock({ storage, name: uniqueName("away"), requestTimeoutMs: 100 });
    server.kill();
    await assertRejects(() => lock.tryAcquire(), StorageError);
    await assertRejects(() => lock.inspect(), StorageError);
    await assertRejects(() => lock.acquire({ timeoutMs: 300 }), StorageError);
    const waiting = lock.acquire();
    await server.restart();
    await using lease = await waiting;
    assert(lease.isHeld());
  });
});
