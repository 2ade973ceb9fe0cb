import { assert, assertEquals } from "@std/assert";
import type { Redis } from "ioredis";
import { withService } from "../../scripts/services.ts";
import { Lock } from "../../mod.ts";
import { eventually } from "../../src/testing/check.ts";
import { acquire, release, token, uniqueName } from "../support/commands.ts";
import {
  channelOfWaiter,
  connectIoredis,
  connectRedis,
  KINDS,
  listen,
} from "../support/redis_clients.ts";
import { commandsOf } from "../support/redis_stats.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

const LISTENING = ["handed in", "duplicate"] as const;

await withService("redis", ({ test, service }) => {
  async function subscribers(redis: Redis, name: string): Promise<number> {
    const [, count] = await redis.pubsub("NUMSUB", channelOfWaiter(name)) as [string, number];
    return count;
  }

  async function connections(redis: Redis): Promise<number> {
    return (await redis.client("LIST") as string).trim().split("\n").length;
  }

  for (const kind of KINDS) {
    for (const listening of LISTENING) {
      test(`a release names the first who waits (${kind}, ${listening})`, async () => {
        await using connected = await connectRedis(kind, service().url, { listening });
        const { storage } = connected;
        const name = uniqueName("named");
        const [own, first, second] = [token(), token(), token()];
        using watch = listen(storage, name, first.slice(0, 8));
        using other = listen(storage, name, second.slice(0, 8));
        await eventually(() => watch.live && other.live, "live watches");
        assertEquals(watch.told.splice(0), ["everybody"], "once when it is live");
        await storage.execute(name, acquire(own));
        await storage.execute(name, acquire(first, { queueMs: 10_000 }));
        await storage.execute(name, acquire(second, { queueMs: 10_000 }));
        assertEquals(watch.told, []);
        await storage.execute(name, release(own));
        await eventually(() => watch.told.length > 0, "a hint");
        assertEquals(watch.told, [first.slice(0, 8)]);
        assertEquals(other.told, ["everybody"], "nobody else is disturbed");
      });

      // covers: G7
      test(`nothing is left of a watch that ended (${kind}, ${listening})`, async () => {
        await using redis = connectIoredis(service().url);
        const name = uniqueName("left");
        await using connected = await connectRedis(kind, service().url, { listening });
        const { storage } = connected;
        await storage.execute(name, { type: "inspect" });
        const before = await connections(redis);
        const watches = [listen(storage, name), listen(storage, name), listen(storage, "other")];
        await eventually(() => watches.every((watch) => watch.live), "live watches");
        assertEquals(await subscribers(redis, name), 1, "one subscription for both");
        const during = await connections(redis);
        assertEquals(during - before, listening === "duplicate" ? 1 : 0, "one connection for all");
        watches[0]![Symbol.dispose]();
        watches[0]![Symbol.dispose]();
        assertEquals(watches.map((watch) => watch.live), [false, true, true]);
        watches[1]![Symbol.dispose]();
        await eventually(async () => await subscribers(redis, name) === 0, "no subscription");
        watches[2]![Symbol.dispose]();
        await eventually(async () => await connections(redis) === before, "no connection more");
        using again = listen(storage, name);
        await eventually(() => again.live, "it can be watched again");
      });

      test(`a subscription that was cut comes back and wakes once (${kind}, ${listening})`, async () => {
        await using redis = connectIoredis(service().url);
        await using connected = await connectRedis(kind, service().url, { listening });
        const name = uniqueName("cut");
        using watch = listen(connected.storage, name);
        await eventually(() => watch.live, "a live watch");
        watch.told.splice(0);
        await redis.call("CLIENT", "KILL", "TYPE", "pubsub");
        await eventually(() => watch.told.length > 0, "a live watch again");
        assert(watch.live);
        await redis.publish(channelOfWaiter(name), "someone");
        await eventually(() => watch.told.length > 1, "a hint over the new connection");
        assertEquals(watch.told, ["everybody", "someone"]);
      });
    }
  }

  test("who joins a live subscription is told to look, too", async () => {
    await using connected = await connectRedis("ioredis", service().url);
    const name = uniqueName("late");
    using first = listen(connected.storage, name);
    await eventually(() => first.live, "a live watch");
    first.told.splice(0);
    using second = listen(connected.storage, name);
    assert(second.live);
    assertEquals(second.told, [], "not from within watch()");
    await eventually(() => second.told.length > 0, "a hint");
    assertEquals(first.told, []);
  });

  test("a watch that ended is told nothing, not even that it was live", async () => {
    await using connected = await connectRedis("ioredis", service().url);
    const name = uniqueName("gone");
    using first = listen(connected.storage, name);
    const early = listen(connected.storage, name);
    early[Symbol.dispose]();
    await eventually(() => first.live, "a live watch");
    const late = listen(connected.storage, name);
    late[Symbol.dispose]();
    await connected.storage.execute(name, { type: "inspect" });
    assertEquals([...early.told, ...late.told], []);
  });

  test("a user without rights on the channel waits by polling", async () => {
    await using redis = connectIoredis(service().url);
    await redis.call(
      "ACL",
      "SETUSER",
      "deaf",
      "on",
      ">pw",
      "~holdfast:*",
      "+@all",
      "resetchannels",
    );
    await using connected = await connectRedis("ioredis", service().url, {
      ioredis: { username: "deaf", password: "pw" },
      listening: "handed in",
      pollMs: { min: 5, max: 20 },
    });
    const { storage } = connected;
    const name = uniqueName("deaf");
    const held = await new Lock({ storage, name }).acquire();
    const waiting = new Lock({ storage, name, gate: false }).acquire();
    await eventually(
      async () => (await storage.execute(name, { type: "inspect" })).waiters > 0,
      "",
    );
    await held.release();
    await using next = await waiting;
    assert(next.isHeld());
  });

  // covers: G8
  test("a notified waiter asks no more than 4 times while a lease is held and after it", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using holder = await connectRedis("ioredis", service().url);
    await using waiter = await connectRedis(
      "ioredis",
      `http://127.0.0.1:${proxy.port}`.replace(
        "http",
        "redis",
      ),
    );
    const name = uniqueName("budget");
    const lease = await new Lock({ storage: holder.storage, name, ttlMs: 10_000 }).acquire();
    const commands = commandsOf(proxy);
    const waiting = new Lock({ storage: waiter.storage, name, ttlMs: 10_000 }).acquire();
    await new Promise((resolve) => setTimeout(resolve, 3000));
    await lease.release();
    const next = await waiting;
    const asked = commands.filter((command) => /^(eval|evalsha|subscribe)$/.test(command));
    assert(asked.length <= 4, asked.join(" "));
    await next.release();
  });
});
