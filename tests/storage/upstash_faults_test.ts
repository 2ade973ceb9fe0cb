import { assert, assertEquals, assertRejects } from "@std/assert";
import { Redis as Upstash, type RedisConfigNodejs } from "@upstash/redis";
import { type Service, startRedis, withService } from "../../scripts/services.ts";
import { type Lease, LeaseLostError, Lock, type LockOptions, StorageError } from "../../mod.ts";
import type { Command } from "../../src/core/record.ts";
import type { LeaseStorage } from "../../src/core/storage.ts";
import { fencedExec, UpstashStorage } from "../../src/storage/upstash.ts";
import { eventually } from "../../src/testing/check.ts";
import { acquire, inspect, release, renew, token, uniqueName } from "../support/commands.ts";
import { connectRedis, grant } from "../support/redis_clients.ts";
import {
  startUpstashProxy,
  type UpstashFault,
  type UpstashProxy,
} from "../support/upstash_proxy.ts";

/** How the client resends: as it does unless told otherwise, and as we recommend. */
const RESENDS: Record<string, Partial<RedisConfigNodejs>> = {
  "default": {},
  "retries 0": { retry: { retries: 0 } },
};

/** After which of these has a request been applied, and nobody knows. */
const AFTER: readonly UpstashFault[] = ["drop-reply", "truncate"];

/** Resolves when the lease is lost. */
async function loss(lease: Lease): Promise<void> {
  // Who waits for nothing but the signal can be collected together with it.
  lease.hold();
  const { signal } = lease;
  if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve));
}

/** Whether a request carries such a command of the lock's script. */
function carries(word: string): (command: string[]) => boolean {
  return (command) => command.includes(word);
}

async function holders(storage: LeaseStorage, name: string): Promise<number> {
  return (await storage.execute(name, inspect)).holders.length;
}

await withService("redis", ({ test, service }) => {
  /** A storage over a proxy with faults, and one that sees the truth. */
  async function withProxy(
    settings: Partial<RedisConfigNodejs>,
    run: (
      on: { proxy: UpstashProxy; storage: UpstashStorage; truth: LeaseStorage },
    ) => Promise<void>,
    server: () => Service = service,
  ): Promise<void> {
    await using proxy = await startUpstashProxy({ redisPort: server().port });
    await using truth = await connectRedis("ioredis", server().url, { listening: "none" });
    const upstash = new Upstash({ url: proxy.url, token: proxy.token, ...settings });
    const storage = new UpstashStorage(upstash);
    await run({ proxy, storage, truth: truth.storage });
  }

  for (const [resends, settings] of Object.entries(RESENDS)) {
    // covers: G9 G11
    test(`a lost reply to an acquire is neither an orphan nor "held" (${resends})`, () =>
      withProxy(settings, async ({ proxy, storage, truth }) => {
        for (const kind of AFTER) {
          for (const attempt of ["acquire", "tryAcquire"] as const) {
            const name = uniqueName("lost");
            using fault = proxy.fault(kind, { match: carries("acquire") });
            const lease = await new Lock({ storage, name })[attempt]();
            assertEquals(fault.hits, 1);
            const { fence } = await truth.execute(name, inspect);
            assertEquals(lease?.fencingToken, fence, "our own lock was held by somebody else");
            assertEquals(await lease?.release(), true);
            assertEquals(await holders(truth, name), 0);
          }
        }
      }));

    // covers: G11
    test(`a lost reply to a renewal, a release and fencedExec() harms nothing (${resends})`, () =>
      withProxy(settings, async ({ proxy, storage, truth }) => {
        for (const kind of AFTER) {
          const name = uniqueName("lost");
          const lease = await new Lock({ storage, name, autoRenew: false }).acquire();
          using renewal = proxy.fault(kind, { match: carries("renew") });
          // The lease stays held after a fault; it is asked again by whoever asked.
          await lease.renew().catch(() => lease.renew());
          assertEquals([renewal.hits, lease.status], [1, "held"]);

          const key = `user:${crypto.randomUUID()}`;
          using exec = proxy.fault(kind, { match: carries("INCR") });
          assertEquals(await fencedExec(storage, lease, [["INCR", key]], { keys: [key] }), [1]);
          assertEquals(exec.hits, 1);

          using end = proxy.fault(kind, { match: carries("release") });
          assertEquals(await lease.release(), true);
          assertEquals(end.hits, 1);
          assertEquals(await holders(truth, name), 0);
        }
      }));

    // covers: G9
    test(`an acquire that lands after we gave up and released grants nothing (${resends})`, () =>
      withProxy(settings, async ({ proxy, storage, truth }) => {
        const name = uniqueName("late");
        using late = proxy.fault("delay", { ms: 400, match: carries("acquire"), times: Infinity });
        const lock = new Lock({ storage, name });
        await assertRejects(() => lock.acquire({ timeoutMs: 150 }), StorageError);
        await new Promise((resolve) => setTimeout(resolve, 600));
        assert(late.hits >= 1);
        assertEquals(await holders(truth, name), 0);
        await using next = await new Lock({ storage: truth, name }).acquire({ timeoutMs: 1000 });
        assert(next.isHeld());
      }));

    // covers: G6
    test(`a lease outlives passing 5xx answers (${resends})`, () =>
      withProxy(settings, async ({ proxy, storage }) => {
        for (const kind of ["error-500", "error-502-html", "truncate"] as const) {
          const lock = new Lock({ storage, name: uniqueName("5xx"), ttlMs: 1200 });
          await using lease = await lock.acquire();
          using fault = proxy.fault(kind, { times: 2, match: carries("renew") });
          await eventually(() => fault.hits === 2, "two faults");
          await new Promise((resolve) => setTimeout(resolve, 1200));
          assertEquals([lease.status, lease.signal.aborted], ["held", false], kind);
        }
      }));
  }

  // covers: G5 G6
  test("a server that stalls right after the grant: the signal comes by the deadline", () =>
    withProxy({ retry: { retries: 0 } }, async ({ proxy, storage, truth }) => {
      const name = uniqueName("stall");
      const startMs = performance.now();
      const lease = await new Lock({ storage, name, ttlMs: 1000 }).acquire();
      using _ = proxy.fault("hang", { times: Infinity });
      await loss(lease);
      const tookMs = performance.now() - startMs;
      // A timer of a slow machine may be late.
      assert(tookMs <= 990 + 300, `${tookMs} ms`);
      assertEquals(lease.signal.aborted, true);
      await using next = await new Lock({ storage: truth, name }).acquire({ timeoutMs: 2000 });
      assert(next.fencingToken > lease.fencingToken);
    }));

  test("wrong token and quota are thrown at once, 5xx and lost requests are tried again", () =>
    withProxy({ retry: { retries: 0 } }, async ({ proxy, storage }) => {
      for (const kind of ["error-401", "quota"] as const) {
        using fault = proxy.fault(kind, { times: Infinity });
        const lock = new Lock({ storage, name: uniqueName(kind) });
        await assertRejects(() => lock.acquire(), StorageError);
        await assertRejects(() => lock.tryAcquire(), StorageError);
        await eventually(() => fault.hits >= 4, "a compensating release for each");
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      for (const kind of ["error-500", "error-502-html", "drop-request"] as const) {
        using fault = proxy.fault(kind, { times: 2 });
        const lease = await new Lock({ storage, name: uniqueName(kind) }).tryAcquire();
        assertEquals([fault.hits, await lease?.release()], [2, true]);
      }
    }));

  test("onUnavailable: skip makes an outage a null, for those who want that", () =>
    withProxy({ retry: { retries: 0 } }, async ({ proxy, storage }) => {
      using _ = proxy.fault("error-502-html", { times: Infinity });
      const events: string[] = [];
      const options: LockOptions = {
        storage,
        name: uniqueName("skip"),
        onUnavailable: "skip",
        onEvent: (event) => events.push(event.type),
      };
      assertEquals(await new Lock(options).tryAcquire(), null);
      assert(events.includes("unavailable"));
    }));

  // covers: G4 G9 G11
  test("a request that was executed twice, and late, changes nothing the second time", () =>
    withProxy({}, async ({ storage, truth }) => {
      const name = uniqueName("twice");
      const own = token();
      const lease = await grant(storage, name, own);
      const commands: Command[] = [
        acquire(own),
        renew(own, lease.fencingToken),
        release(own),
      ];
      for (const command of commands) await storage.execute(name, command);
      const next = await grant(truth, name, token());
      const outcomes = await Promise.all(commands.map((c) => storage.execute(name, c)));
      assertEquals(outcomes.map((outcome) => outcome.type), ["spent", "refused", "released"]);
      const seen = await truth.execute(name, inspect);
      assertEquals(seen.holders.map((holder) => holder.fence), [next.fencingToken]);
    }));

  // covers: G2 G6
  test("a database that lost everything: the holder learns of it, and fences go on rising", async () => {
    await using server = await startRedis();
    await withProxy({}, async ({ storage, truth }) => {
      const name = uniqueName("restart");
      const lease = await new Lock({ storage, name, ttlMs: 3000 }).acquire();
      const lost = loss(lease);
      server.kill();
      await server.restart();
      const next = await new Lock({ storage: truth, name, ttlMs: 3000 }).acquire();
      assert(next.fencingToken > lease.fencingToken);
      await lost;
      assert(lease.signal.reason instanceof LeaseLostError);
      assertEquals(await lease.release(), false);
      assertEquals(await next.release(), true);
    }, () => server);
  });

  // covers: G8
  test("a waiter whose stream was cut still gets the lock", () =>
    withProxy({}, async ({ proxy, storage }) => {
      const name = uniqueName("cut");
      const ttlMs = 2000;
      const lease = await new Lock({ storage, name, ttlMs }).acquire();
      const waiter = new UpstashStorage(
        new Upstash({ url: proxy.url, token: proxy.token }),
        { pollMs: { min: 50, max: 500 } },
      );
      const waiting = new Lock({ storage: waiter, name, ttlMs }).acquire();
      await eventually(() => proxy.openStreams === 1, "a stream");
      proxy.fault("sse-cut");
      await lease.release();
      const startMs = performance.now();
      await using next = await waiting;
      assert(next.isHeld());
      assert(performance.now() - startMs < ttlMs + 500 + 3000);
    }));
});
