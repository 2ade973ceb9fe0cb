import { assert, assertEquals } from "@std/assert";
import { Redis as Upstash } from "@upstash/redis";
import type { Redis } from "ioredis";
import { withService } from "../../scripts/services.ts";
import { Lock } from "../../mod.ts";
import { UpstashStorage } from "../../src/storage/upstash.ts";
import { eventually } from "../../src/testing/check.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { acquire, release, token, uniqueName } from "../support/commands.ts";
import { channelOfWaiter, connectIoredis, listen } from "../support/redis_clients.ts";
import { startUpstashProxy, type UpstashProxy } from "../support/upstash_proxy.ts";

await withService("redis", ({ test, service }) => {
  async function withEvents(
    run: (
      on: { proxy: UpstashProxy; storage: UpstashStorage; clock: ManualClock; redis: Redis },
    ) => Promise<void>,
    settings = {},
  ): Promise<void> {
    await using redis = connectIoredis(service().url);
    await using proxy = await startUpstashProxy({ redisPort: service().port });
    const upstash = new Upstash({ url: proxy.url, token: proxy.token, ...settings });
    const clock = new ManualClock();
    await run({ proxy, clock, redis, storage: new UpstashStorage(upstash, { clock }) });
    await eventually(() => proxy.openStreams === 0, "no stream is left");
    assertEquals(clock.pendingTimers, 0, "no timer is left");
  }

  for (const settings of [{}, { enableAutoPipelining: false, automaticDeserialization: false }]) {
    test(`a release names the first who waits (${JSON.stringify(settings)})`, () =>
      withEvents(async ({ storage }) => {
        for (const odd of ["plain", "a/b,c#d?e f}", "é", "%2F"]) {
          const name = uniqueName(odd);
          const [own, first, second] = [token(), token(), token()];
          using watch = listen(storage, name, first.slice(0, 8));
          assertEquals(watch.live, false);
          await eventually(() => watch.live, "a live watch");
          assertEquals(watch.told.splice(0), ["everybody"], "once when it is live");
          await storage.execute(name, acquire(own));
          await storage.execute(name, acquire(first, { queueMs: 10_000 }));
          await storage.execute(name, acquire(second, { queueMs: 10_000 }));
          await storage.execute(name, release(own));
          await eventually(() => watch.told.length > 0, "a hint");
          // What the client takes for a number is for everybody.
          assert([first.slice(0, 8), "everybody"].includes(watch.told[0]!), watch.told[0]);
          assertEquals(watch.told.length, 1);
        }
      }, settings));
  }

  test("a mark that the client takes for a number wakes everybody", () =>
    withEvents(async ({ storage, redis }) => {
      const name = uniqueName("digits");
      using watch = listen(storage, name);
      await eventually(() => watch.live, "a live watch");
      watch.told.splice(0);
      for (const mark of ["12345678", "1e234567", "a1b2c3d4"]) {
        await redis.publish(channelOfWaiter(name), mark);
      }
      await eventually(() => watch.told.length === 3, "three hints");
      assertEquals(watch.told, ["everybody", "everybody", "a1b2c3d4"]);
    }));

  test("all who wait for one lock share one subscription, which ends with the last", () =>
    withEvents(async ({ proxy, storage }) => {
      const name = uniqueName("shared");
      const [one, two] = [listen(storage, name), listen(storage, name)];
      await eventually(() => one.live && two.live, "live watches");
      assertEquals(proxy.openStreams, 1);
      one[Symbol.dispose]();
      assertEquals([one.live, two.live], [false, true]);
      two[Symbol.dispose]();
      await eventually(() => proxy.openStreams === 0, "no stream");
    }));

  test("a client has at most two subscriptions, over all its storages; who comes later polls", () =>
    withEvents(async ({ proxy, storage, clock }) => {
      const sameClient = new UpstashStorage(storage.client, { clock, prefix: "other" });
      const names = [1, 2, 3, 4].map((i) => uniqueName(`limit ${i}`));
      const [one, two, three, four] = [
        listen(storage, names[0]!),
        listen(sameClient, names[1]!),
        listen(storage, names[2]!),
        listen(sameClient, names[3]!),
      ];
      await eventually(() => one.live && two.live, "two live watches");
      await new Promise((resolve) => setTimeout(resolve, 50));
      assertEquals([three.live, four.live, proxy.openStreams], [false, false, 2]);
      three[Symbol.dispose]();
      one[Symbol.dispose]();
      await eventually(() => four.live, "the next in line");
      assertEquals(four.told, ["everybody"]);
      for (const watch of [two, four]) watch[Symbol.dispose]();
    }));

  test("a stream that ended is replaced within 30 s, and who waits is told to look", () =>
    withEvents(async ({ proxy, storage, clock, redis }) => {
      const name = uniqueName("cut");
      using watch = listen(storage, name);
      await eventually(() => watch.live, "a live watch");
      watch.told.splice(0);
      assertEquals(proxy.fault("sse-cut").hits, 1);
      await eventually(() => proxy.openStreams === 0, "the cut");
      await clock.advance(30_000);
      await eventually(() => watch.told.length > 0, "a live watch again");
      assertEquals([watch.live, proxy.openStreams], [true, 1]);
      await redis.publish(channelOfWaiter(name), "someone-");
      await eventually(() => watch.told.length > 1, "a hint");
      assertEquals(watch.told, ["everybody", "someone-"]);
    }));

  test("a subscription that is refused is tried again, ever more rarely", () =>
    withEvents(async ({ proxy, storage, clock }) => {
      using refusing = proxy.fault("sse-refuse", { times: 3 });
      const name = uniqueName("refused");
      using watch = listen(storage, name);
      for (const [i, ms] of [1000, 2000, 4000].entries()) {
        await eventually(() => refusing.hits === i + 1, "a refusal");
        // The client needs a moment to see it.
        await eventually(() => clock.pendingTimers === 1, "a timer");
        await new Promise((resolve) => setTimeout(resolve, 20));
        assertEquals(watch.live, false);
        await clock.advance(ms);
      }
      await eventually(() => watch.live, "a live watch");
      assertEquals(watch.told, ["everybody"]);
    }));

  test("a waiter polls while subscriptions are refused", async () => {
    await using proxy = await startUpstashProxy({ redisPort: service().port });
    using _ = proxy.fault("sse-refuse", { times: Infinity });
    const connect = () =>
      new UpstashStorage(
        new Upstash({ url: proxy.url, token: proxy.token, retry: { retries: 0 } }),
        { pollMs: { min: 10, max: 50 } },
      );
    const name = uniqueName("polling");
    const lease = await new Lock({ storage: connect(), name }).acquire();
    const waiting = new Lock({ storage: connect(), name }).acquire();
    await new Promise((resolve) => setTimeout(resolve, 100));
    await lease.release();
    await using next = await waiting;
    assert(next.isHeld());
  });

  // covers: G8
  test("a notified waiter asks no more than 4 times while a lease is held and after it", async () => {
    await using proxy = await startUpstashProxy({ redisPort: service().port });
    const connect = () => new UpstashStorage(new Upstash({ url: proxy.url, token: proxy.token }));
    const name = uniqueName("budget");
    const lease = await new Lock({ storage: connect(), name, ttlMs: 10_000, autoRenew: false })
      .acquire();
    proxy.counters.reset();
    const waiting = new Lock({ storage: connect(), name, ttlMs: 10_000 }).acquire();
    await new Promise((resolve) => setTimeout(resolve, 3000));
    await lease.release();
    await using next = await waiting;
    const { requests } = proxy.counters;
    // One of them is the release.
    assert(requests - 1 <= 4, JSON.stringify(proxy.counters));
    assert(next.isHeld());
  });
});
