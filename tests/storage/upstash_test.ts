import { assert, assertEquals, assertInstanceOf, assertRejects } from "@std/assert";
import { Redis as Upstash, type RedisConfigNodejs } from "@upstash/redis";
import type { Redis } from "ioredis";
import { withService } from "../../scripts/services.ts";
import { Lock, StaleFenceError, StorageError } from "../../mod.ts";
import { keyOf } from "../../src/storage/_redis_command.ts";
import {
  fencedExec,
  UpstashStorage,
  type UpstashStorageOptions,
} from "../../src/storage/upstash.ts";
import { acquire, inspect, release, renew, token, uniqueName } from "../support/commands.ts";
import { connectIoredis, connectRedis, grant, shown } from "../support/redis_clients.ts";
import { countCommands } from "../support/redis_stats.ts";
import { startUpstashProxy, type UpstashProxy } from "../support/upstash_proxy.ts";

/** Every way that users set the client. */
const SETTINGS: Record<string, Partial<RedisConfigNodejs>> = {
  "default": {},
  "no auto-pipelining": { enableAutoPipelining: false },
  "no deserialization": { automaticDeserialization: false },
  "neither": { enableAutoPipelining: false, automaticDeserialization: false },
  "no base64": { responseEncoding: false },
};

/** A client, a storage over it, and the Redis behind the proxy. */
interface Fixture {
  readonly proxy: UpstashProxy;
  readonly upstash: Upstash;
  readonly storage: UpstashStorage;
  readonly redis: Redis;
}

await withService("redis", ({ test, service }) => {
  async function withUpstash(
    run: (fixture: Fixture) => Promise<void>,
    settings: Partial<RedisConfigNodejs> = {},
    options: UpstashStorageOptions & { readonly keyLocking?: boolean } = {},
  ): Promise<void> {
    const { keyLocking = true } = options;
    await using proxy = await startUpstashProxy({ redisPort: service().port, keyLocking });
    await using redis = connectIoredis(service().url);
    const upstash = connect(proxy, settings);
    await run({ proxy, upstash, redis, storage: new UpstashStorage(upstash, options) });
  }

  function connect(proxy: UpstashProxy, settings: Partial<RedisConfigNodejs> = {}): Upstash {
    return new Upstash({ url: proxy.url, token: proxy.token, ...settings });
  }

  for (const [name, settings] of Object.entries(SETTINGS)) {
    test(`every outcome survives the client's settings (${name})`, () =>
      withUpstash(async ({ storage, redis }) => {
        const name = uniqueName("settings");
        const labels = ["", "true", "42", "null", '{"a":1}', "é—𝄞", "=x", '"quoted"'];
        for (const [i, label] of labels.entries()) {
          const outcome = await storage.execute(
            name,
            acquire(`token-${i}`, { label, capacity: 9 }),
          );
          assert(outcome.type === "granted" && Number.isSafeInteger(outcome.fence));
        }
        const seen = await storage.execute(name, inspect);
        assertEquals(seen.holders.map((holder) => holder.label), labels);
        const last = seen.holders.at(-1)!.fence;
        assertEquals(seen.fence, last);
        assertEquals((await storage.execute(name, renew("token-7", last))).type, "renewed");
        assertEquals(await storage.execute(name, renew("token-7", 5)), {
          type: "refused",
          reason: "superseded",
        });
        const held = await storage.execute(name, acquire("more", { permits: 9, capacity: 9 }));
        assert(held.type === "held" && held.retryAfterMs > 0);
        assertEquals((await storage.execute(name, release("token-0"))).freed, true);
        await redis.set(keyOf("holdfast", name), '{"a":1}');
        const error = await assertRejects(() => storage.execute(name, inspect), StorageError);
        assertEquals(error.transient, false);
      }, settings));

    test(`fencedExec() gives back what Redis replied (${name})`, () =>
      withUpstash(async ({ storage, upstash }) => {
        const name = uniqueName("fenced");
        const lease = await grant(storage, name, token());
        const key = `user:${crypto.randomUUID()}`;
        const replies = await fencedExec(storage, lease, [
          ["SET", key, "42"],
          ["GET", key],
          ["GET", `${key}:none`],
          ["LPUSH", `${key}:list`, "true", "é"],
          ["LRANGE", `${key}:list`, 0, -1],
        ], { keys: [key, `${key}:none`, `${key}:list`] });
        assertEquals(replies, ["OK", "42", null, 2, ["é", "true"]]);
        assertEquals(await fencedExec(upstash, lease, [["INCR", key]], { keys: [key] }), [43]);
        const failed = await assertRejects(
          () => fencedExec(storage, lease, [["GET", key], ["LPOP", key]], { keys: [key] }),
          StorageError,
        );
        assertEquals(failed.index, 1);
        await storage.execute(name, release(lease.token));
        await assertRejects(
          () => fencedExec(storage, lease, [["INCR", key]], { keys: [key] }),
          StaleFenceError,
        );
        assertEquals(`${await upstash.get(key)}`, "43");
      }, settings));
  }

  test("each command is one request, and an uncontended cycle is billed 8 commands", () =>
    withUpstash(async ({ proxy, storage, redis }) => {
      const lock = new Lock({ storage, name: uniqueName("cycle"), autoRenew: false });
      await lock.with(() => Promise.resolve());
      proxy.counters.reset();
      const inside = await countCommands(redis, () => lock.with(() => Promise.resolve()));
      assertEquals(inside, "evalsha=2 get=2 set=2 time=2");
      assertEquals([proxy.counters.requests, proxy.counters.commands], [2, 2]);
    }));

  test("executeAll() is one request for up to a thousand locks", () =>
    withUpstash(async ({ proxy, storage }) => {
      const run = uniqueName("all");
      const entries = Array.from({ length: 1200 }, (_, i) => ({
        name: `${run} ${i}`,
        command: acquire("own-token"),
      }));
      await storage.executeAll(entries.slice(0, 2));
      proxy.counters.reset();
      const results = await storage.executeAll(entries);
      assert(results.every((r) => r.status === "fulfilled" && r.value.type === "granted"));
      assertEquals(proxy.counters.requests, 2);
    }));

  test("executeAll() lets each entry stand alone", () =>
    withUpstash(async ({ storage, redis }) => {
      const [mine, foreign] = [uniqueName("mine"), uniqueName("foreign")];
      await redis.set(keyOf("holdfast", foreign), "not ours");
      const results = await storage.executeAll(
        [mine, foreign, mine].map((name) => ({ name, command: acquire("own-token") })),
      );
      assertEquals(results.map((r) => r.status), ["fulfilled", "rejected", "fulfilled"]);
    }));

  test("the script says that it locks its keys only, and is sent by its hash from then on", () =>
    withUpstash(async ({ proxy, storage, redis }) => {
      await redis.script("FLUSH");
      const texts: string[] = [];
      using _ = proxy.fault("delay", {
        ms: 0,
        times: Infinity,
        match: (command) => {
          texts.push(command[1]!);
          return false;
        },
      });
      const name = uniqueName("flag");
      await storage.execute(name, acquire("own-token"));
      await storage.execute(name, release("own-token"));
      assertEquals(proxy.counters.byName, { EVALSHA: 2, EVAL: 1 });
      assert(texts[1]!.startsWith("#!lua flags=allow-key-locking\n"), texts[1]);
    }));

  for (const [name, settings] of Object.entries(SETTINGS).slice(0, 2)) {
    test(`a server that refuses that line gets none, and is asked once (${name})`, () =>
      withUpstash(
        async ({ proxy, storage, upstash, redis }) => {
          await redis.script("FLUSH");
          const lock = uniqueName("plain");
          assertEquals((await storage.execute(lock, acquire("own-token"))).type, "granted");
          // By hash, by text with the line, by text without it.
          assertEquals(proxy.counters.byName, { EVALSHA: 1, EVAL: 2 });
          proxy.counters.reset();
          await storage.execute(lock, release("own-token"));
          await new UpstashStorage(upstash).execute(lock, acquire("other-token"));
          assertEquals(proxy.counters.byName, { EVALSHA: 2 }, "remembered for the client");
          await redis.script("FLUSH");
          const entries = [1, 2, 3].map((i) => ({
            name: `${lock} ${i}`,
            command: acquire("own-token"),
          }));
          const fresh = new UpstashStorage(connect(proxy, settings));
          const results = await fresh.executeAll(entries);
          assert(results.every((r) => r.status === "fulfilled"), shown(results));
        },
        settings,
        { keyLocking: false },
      ));
  }

  test("a client whose plain signal has aborted makes up answers, which are not believed", async () => {
    for (const enableAutoPipelining of [true, false]) {
      await withUpstash(async ({ storage }) => {
        for (const command of [acquire("own-token"), release("own-token"), inspect]) {
          const error = await assertRejects(
            () => storage.execute(uniqueName("aborted"), command),
            StorageError,
          );
          assertEquals(error.transient, true, error.message);
        }
      }, { enableAutoPipelining, signal: AbortSignal.abort("bye") });
    }
  });

  test("an error carries the key and the cause, and no token", async () => {
    for (const settings of Object.values(SETTINGS)) {
      await withUpstash(
        async ({ proxy, storage }) => {
          const name = uniqueName("error");
          const own = token();
          await storage.execute(name, acquire(own));
          const faults = [
            ["error-401", false, "WRONGPASS invalid or missing auth token"],
            ["quota", false, "ERR max requests limit exceeded"],
            ["error-500", true, "ERR internal error"],
            ["error-502-html", true, "Unable to parse response body"],
          ] as const;
          for (const [kind, transient, text] of faults) {
            using _ = proxy.fault(kind, { times: Infinity });
            const error = await assertRejects(
              () => storage.execute(name, renew(own, 5)),
              StorageError,
            );
            assertEquals(error.transient, transient, error.message);
            assert(error.message.startsWith(`Cannot use key "${keyOf("holdfast", name)}" as `));
            assert(error.message.includes(text), error.message);
            assertInstanceOf(error.cause, Error);
            assert(!shown(error).includes(own), "the token is in the error");
          }
          using _ = proxy.fault("quota", { message: "ERR max daily request limit exceeded" });
          const daily = await assertRejects(() => storage.execute(name, inspect), StorageError);
          assertEquals(daily.transient, false);
        },
        { ...settings, retry: { retries: 0 } },
      );
    }
  });

  test("with notify off nobody listens, nothing is published, and waiters leave no ticket", () =>
    withUpstash(
      async ({ proxy, storage, redis }) => {
        assertEquals(storage.watch, undefined);
        assertEquals(storage.wakesTickets, false);
        const name = uniqueName("quiet");
        const lease = await new Lock({ storage, name }).acquire();
        await storage.execute(name, acquire("waiting-token", { queueMs: 10_000 }));
        const inside = await countCommands(redis, () => lease.release());
        assertEquals(inside, "evalsha=1 get=1 set=1 time=1");
        assertEquals(proxy.openStreams, 0);
      },
      {},
      { notify: false },
    ));

  test("a lock of ours is one record for RedisStorage, too", () =>
    withUpstash(async ({ storage }) => {
      await using other = await connectRedis("ioredis", service().url);
      const name = uniqueName("shared");
      await using lease = await new Lock({ storage: other.storage, name, label: "tcp" }).acquire();
      const seen = await storage.execute(name, inspect);
      assertEquals(seen.holders.map((holder) => holder.label), ["tcp"]);
      assertEquals(seen.fence, lease.fencingToken);
    }));
});
