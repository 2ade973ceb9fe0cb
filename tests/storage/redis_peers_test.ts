/**
 * Bugs that other Redis lock libraries for TypeScript have or had, each as a test that this one does not
 * share it. The initials: SG syncguard, UL @upstash/lock, RL node-redlock and its fork SE, VE verrou,
 * RS redis-semaphore, RU redlock-universal, OR orpc, EF effect-distributed-lock.
 */
import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import type { Redis } from "ioredis";
import { withService } from "../../scripts/services.ts";
import {
  LeaseLostError,
  Lock,
  type LockOptions,
  LockTimeoutError,
  StorageError,
} from "../../mod.ts";
import { keyOf } from "../../src/storage/_redis_command.ts";
import type { RedisStorage } from "../../src/storage/redis.ts";
import { eventually, pause } from "../../src/testing/check.ts";
import { inspect, token, uniqueName } from "../support/commands.ts";
import { connectIoredis, connectRedis, grant } from "../support/redis_clients.ts";
import { commandsOf, countCommands } from "../support/redis_stats.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

await withService("redis", ({ test, service }) => {
  async function withRedis(
    run: (
      on: {
        storage: RedisStorage;
        other: RedisStorage;
        redis: Redis;
        lock: (options?: Partial<LockOptions>) => Lock;
      },
    ) => Promise<void>,
  ): Promise<void> {
    await using redis = connectIoredis(service().url);
    await using a = await connectRedis("ioredis", service().url);
    await using b = await connectRedis("node-redis", service().url);
    const name = uniqueName("peers");
    const lock = (options: Partial<LockOptions> = {}) =>
      new Lock({ storage: a.storage, name, ...options });
    await run({ storage: a.storage, other: b.storage, redis, lock });
  }

  test("SG: a signal that aborts during the work does not keep the lock taken", () =>
    withRedis(async ({ lock }) => {
      const stop = new AbortController();
      const work = lock().with(() => {
        stop.abort(new Error("enough"));
        return Promise.resolve("done");
      }, { signal: stop.signal });
      assertEquals(await work, "done");
      const next = await lock().tryAcquire();
      assertEquals(await next?.release(), true);
    }));

  test("SG, RL, VE: work that outlasts its lease is told, and its result is not lost", () =>
    withRedis(async ({ lock }) => {
      const error = await assertRejects(
        () =>
          lock({ ttlMs: 60, autoRenew: false }).with(async () => {
            await pause(120);
            return 42;
          }),
        LeaseLostError,
      );
      assertEquals([error.hasValue, error.value], [true, 42]);
    }));

  test("SG: a release that failed can be tried again", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using connected = await connectRedis("node-redis", `redis://127.0.0.1:${proxy.port}`, {
      listening: "none",
    });
    const { storage } = connected;
    const lock = new Lock({ storage, name: uniqueName("again"), requestTimeoutMs: 60 });
    const lease = await lock.acquire();
    proxy.hang(true);
    await assertRejects(() => lease.release(), StorageError);
    await proxy.heal();
    await eventually(() => storage.execute("up", inspect).then(() => true, () => false), "up");
    await lease.release();
    assertEquals((await lock.inspect()).holders.length, 0);
    assertEquals(await lease.release(), false);
  });

  // covers: S2.15
  test("SG: names of locks do not run into each other, nor into keys of ours", () =>
    withRedis(async ({ storage, redis }) => {
      const base = uniqueName("collide");
      const names = [
        base,
        `${base}:exec:1`,
        `fence:${base}`,
        `${base}}`,
        `{${base}}`,
        `${base}%7D`,
        `${base}:token`,
        encodeURIComponent(base),
      ];
      for (const name of names) await grant(storage, name, token());
      assertEquals(new Set(names.map((name) => keyOf("holdfast", name))).size, names.length);
      await redis.del(keyOf("holdfast", base));
      for (const name of names.slice(1)) {
        assertEquals((await storage.execute(name, inspect)).holders.length, 1, name);
      }
    }));

  test("UL: a second acquire on the same lock does not spoil the first lease", () =>
    withRedis(async ({ lock }) => {
      const same = lock();
      const lease = await same.acquire();
      assertEquals(await same.tryAcquire(), null);
      assertEquals(await lease.release(), true);
    }));

  test("UL: a lease of less than a second can be renewed, to the millisecond", () =>
    withRedis(async ({ storage, redis, lock }) => {
      const lease = await lock({ ttlMs: 400, autoRenew: false }).acquire();
      for (const ttlMs of [500, 1600, 10_600]) {
        await lease.renew(ttlMs);
        const { holders } = await storage.execute(lease.name, inspect);
        assert(Math.abs(holders[0]!.remainingMs - ttlMs) < 200, `${holders[0]!.remainingMs}`);
      }
      assertEquals(await redis.exists(keyOf("holdfast", lease.name)), 1);
      await lease.release();
    }));

  test("UL, RU: a lock that another client holds is seen as held, and an outage as an error", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using a = await connectRedis("ioredis", service().url);
    await using b = await connectRedis("node-redis", `redis://127.0.0.1:${proxy.port}`);
    const name = uniqueName("status");
    await using _ = await new Lock({ storage: a.storage, name, label: "a" }).acquire();
    const other = new Lock({ storage: b.storage, name, requestTimeoutMs: 50 });
    assertEquals((await other.inspect()).holders.map((holder) => holder.label), ["a"]);
    proxy.hang(true);
    await assertRejects(() => other.inspect(), StorageError);
    await proxy.heal();
  });

  test("UL: nothing is slept off after the last attempt", () =>
    withRedis(async ({ lock, other }) => {
      await using lease = await lock().acquire();
      const waiter = new Lock({ storage: other, name: lease.name });
      const startMs = performance.now();
      await assertRejects(() => waiter.acquire({ timeoutMs: 250 }), LockTimeoutError);
      const tookMs = performance.now() - startMs;
      assert(tookMs < 500, `${tookMs} ms`);
      assertEquals(await waiter.tryAcquire(), null);
    }));

  test("RL: a lease whose grant came too late is not handed out", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using connected = await connectRedis("ioredis", `redis://127.0.0.1:${proxy.port}`);
    const lock = new Lock({
      storage: connected.storage,
      name: uniqueName("late"),
      ttlMs: 100,
      requestTimeoutMs: 100,
      autoRenew: false,
    });
    proxy.delayMs.toClient = 150;
    const attempt = lock.acquire({ timeoutMs: 400 }).then((lease) => lease.isHeld(), () => "none");
    assertEquals(await attempt, "none");
    proxy.delayMs.toClient = 0;
    await using lease = await lock.acquire();
    assert(lease.isHeld());
  });

  test("RL: a lease that had to be waited for has its whole time before it", () =>
    withRedis(async ({ lock, other }) => {
      const first = await lock({ ttlMs: 2000, autoRenew: false }).acquire();
      const waiting = new Lock({ storage: other, name: first.name, ttlMs: 2000, autoRenew: false })
        .acquire();
      await pause(600);
      await first.release();
      await using next = await waiting;
      assert(next.remainingMs() > 1700, `${next.remainingMs()} ms`);
    }));

  test("RL, RU: nothing is sent, and nothing aborts, after the scope has ended", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using connected = await connectRedis("ioredis", `redis://127.0.0.1:${proxy.port}`, {
      listening: "none",
    });
    const lock = new Lock({ storage: connected.storage, name: uniqueName("end"), ttlMs: 300 });
    const commands = commandsOf(proxy);
    let signal: AbortSignal | undefined;
    // The end comes while a renewal is on its way.
    await lock.with(async (lease) => {
      signal = lease.signal;
      await eventually(() => commands.filter((c) => c === "evalsha").length >= 2, "a renewal");
    });
    const sent = commands.length;
    await pause(600);
    assertEquals([commands.length, signal!.aborted], [sent, false]);
  });

  test("RL: releasing an expired lease neither throws nor takes long", () =>
    withRedis(async ({ lock }) => {
      const lease = await lock({ ttlMs: 50, autoRenew: false }).acquire();
      await pause(80);
      const startMs = performance.now();
      assertEquals(await lease.release(), false);
      assert(performance.now() - startMs < 500);
    }));

  test("SE: a client on another database keeps its locks there", async () => {
    await using redis = connectIoredis(`${service().url}/3`);
    await using connected = await connectRedis("ioredis", `${service().url}/3`);
    const name = uniqueName("db");
    await grant(connected.storage, name, token());
    assertEquals(await redis.exists(keyOf("holdfast", name)), 1);
    await using zero = connectIoredis(service().url);
    assertEquals(await zero.exists(keyOf("holdfast", name)), 0);
  });

  test("VE: the shortest wait is an attempt, not a grant", () =>
    withRedis(async ({ lock, other }) => {
      await using lease = await lock().acquire();
      const waiter = new Lock({ storage: other, name: lease.name });
      await assertRejects(() => waiter.acquire({ timeoutMs: 0 }), RangeError, "timeoutMs");
      await assertRejects(() => waiter.acquire({ timeoutMs: 40 }), LockTimeoutError);
    }));

  // covers: S4.8
  test("VE: a ttl of nothing is refused, not taken for for ever", () =>
    withRedis(({ lock }) => {
      for (const ttlMs of [0, -1, 9, NaN, Infinity]) {
        assertThrows(() => lock({ ttlMs }), RangeError, "ttlMs");
      }
      return Promise.resolve();
    }));

  // covers: G5 G6
  test("RS: one failed renewal is made up for in time, and harms nobody", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using connected = await connectRedis("node-redis", `redis://127.0.0.1:${proxy.port}`, {
      listening: "none",
    });
    const events: string[] = [];
    const lock = new Lock({
      storage: connected.storage,
      name: uniqueName("failed"),
      ttlMs: 900,
      onEvent: (event) => events.push(event.type),
    });
    await using lease = await lock.acquire();
    proxy.dropRequestIf((request) => new TextDecoder("latin1").decode(request).includes("renew"));
    await eventually(() => events.includes("renewFailed"), "a failed renewal");
    await pause(900);
    assertEquals([lease.status, lease.signal.aborted], ["held", false]);
    assert(events.includes("renewed"));
  });

  test("RS: a waiter's own ttl does not end a semaphore's longer leases", () =>
    withRedis(async ({ lock, other }) => {
      const long = await lock({ capacity: 1, ttlMs: 20_000 }).acquire();
      const short = new Lock({ storage: other, name: long.name, ttlMs: 50 });
      await assertRejects(() => short.acquire({ timeoutMs: 300 }), LockTimeoutError);
      assert(long.isHeld());
      assertEquals(await long.release(), true);
    }));

  test("RS: a second attempt leaves no timer of the first behind", () =>
    withRedis(async ({ redis, lock }) => {
      const one = lock({ ttlMs: 300 });
      const lease = await one.acquire();
      assertEquals(await one.tryAcquire(), null);
      await lease.release();
      assertEquals(await countCommands(redis, () => pause(600)), "");
    }));

  test("RU: a short ttl is renewed a few times, not in a loop", () =>
    withRedis(async ({ redis, lock }) => {
      await using lease = await lock({ ttlMs: 300 }).acquire();
      const stats = await countCommands(redis, () => pause(1000));
      const renewals = Number(/evalsha=(\d+)/.exec(stats)?.[1]);
      assert(renewals >= 5 && renewals <= 12, stats);
      assert(lease.isHeld());
    }));

  // covers: G9
  test("RU, OR, EF: an acquire that timed out leaves neither a holder nor a place in the queue", () =>
    withRedis(async ({ storage, other, lock }) => {
      const lease = await lock().acquire();
      const waiter = new Lock({ storage: other, name: lease.name, fair: true });
      await assertRejects(() => waiter.acquire({ timeoutMs: 100 }), LockTimeoutError);
      const isEmpty = async () => (await storage.execute(lease.name, inspect)).waiters === 0;
      await eventually(isEmpty, "an empty queue");
      await lease.release();
      assertEquals((await storage.execute(lease.name, inspect)).holders, []);
    }));

  test("OR: an abort that comes with the grant gives the lock back", () =>
    withRedis(async ({ storage, lock }) => {
      const name = lock().name;
      const stop = new AbortController();
      const slow = Object.create(storage) as RedisStorage;
      Object.defineProperty(slow, "execute", {
        value: async (...args: Parameters<RedisStorage["execute"]>) => {
          const outcome = await storage.execute(...args);
          if (outcome.type === "granted") stop.abort(new Error("enough"));
          return outcome;
        },
      });
      const attempt = lock({ storage: slow }).acquire({ signal: stop.signal });
      await assertRejects(() => attempt, Error, "enough");
      const isFree = async () => (await storage.execute(name, inspect)).holders.length === 0;
      await eventually(isFree, "a free lock");
    }));
});
