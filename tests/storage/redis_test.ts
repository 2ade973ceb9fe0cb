import { assert, assertEquals, assertInstanceOf, assertRejects, assertThrows } from "@std/assert";
import type { Redis } from "ioredis";
import { withService } from "../../scripts/services.ts";
import { Lock, StorageError } from "../../mod.ts";
import type { Command } from "../../src/core/record.ts";
import { channelOf, keyOf } from "../../src/storage/_redis_command.ts";
import { sha1Hex } from "../../src/storage/_sha1.ts";
import { bunRedis, ioredis, nodeRedis, RedisStorage } from "../../src/storage/redis.ts";
import { UpstashStorage } from "../../src/storage/upstash.ts";
import { LEASE_SCRIPT } from "../../src/storage/redis_script.ts";
import {
  acquire,
  adopt,
  evict,
  inspect,
  release,
  renew,
  token,
  TTL_MS,
  uniqueName,
} from "../support/commands.ts";
import { connectIoredis, connectRedis, grant, shown } from "../support/redis_clients.ts";
import { commandsOf, countCommands } from "../support/redis_stats.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

/** A storage that notes what it would send, and knows no server. */
function dryStorage(options = {}): { storage: RedisStorage; sent: unknown[] } {
  const sent: unknown[] = [];
  const send = (calls: readonly unknown[]) => {
    sent.push(...calls);
    return Promise.resolve(calls.map(() => ({ status: "fulfilled" as const, value: ["spent"] })));
  };
  return { storage: new RedisStorage({ send }, options), sent };
}

// covers: S3.8
Deno.test("a key is the prefix and the percent-encoded name in braces", () => {
  assertEquals(keyOf("holdfast", "a b}#?/{é"), "holdfast:{a%20b%7D%23%3F%2F%7B%C3%A9}");
});

Deno.test("a channel is the prefix and the SHA-1 of the key", () => {
  // printf 'holdfast:{job}' | sha1sum
  assertEquals(
    channelOf("holdfast", "job"),
    "holdfast:9b92e3d4ae548da34d3465372946723dd923d9fc",
  );
});

Deno.test("hashTag() is the part of the key that decides the slot", () => {
  const { storage } = dryStorage({ prefix: "app" });
  assertEquals(storage.hashTag("a}b"), "{a%7Db}");
  assertEquals(storage.hashTag("e\u0301"), "{%C3%A9}", "normalized as Lock does it");
});

Deno.test("a prefix that a hash tag or a URL would not survive is refused", () => {
  for (const prefix of ["", "a{b", "a}b", "a b", "a/b", "a,b", "é", "x".repeat(65)]) {
    assertThrows(
      () => dryStorage({ prefix }),
      RangeError,
      "Cannot use prefix as it must be 1 to 64 letters, digits and . _ - : characters: " +
        `current value is ${JSON.stringify(prefix)}`,
    );
  }
});

Deno.test("options out of range are refused", () => {
  assertThrows(() => dryStorage({ retentionMs: -1 }), RangeError, "retentionMs");
  assertThrows(() => dryStorage({ pollMs: { min: 5, max: 4 } }), RangeError, "pollMs.max");
});

Deno.test("without a subscriber there is nothing to watch, and no ticket is left for it", () => {
  const { storage } = dryStorage();
  assertEquals(storage.watch, undefined);
  assertEquals(storage.wakesTickets, false);
  assertEquals(storage.pollMs, { min: 50, max: 1000 });
  assertEquals(storage.maxClockSkewMs, 0);
});

Deno.test("the wrong kind of client is refused at once", () => {
  const wrong = {} as never;
  const adapters = { "ioredis()": ioredis, "nodeRedis()": nodeRedis, "bunRedis()": bunRedis };
  const missing = { "ioredis()": "call", "nodeRedis()": "evalSha", "bunRedis()": "send" } as const;
  for (const [what, adapt] of Object.entries(adapters)) {
    assertThrows(
      () => adapt(wrong),
      TypeError,
      `Cannot use client as ${what} needs another kind: it has no ` +
        `${missing[what as keyof typeof missing]}()`,
    );
  }
  assertThrows(() => new UpstashStorage(wrong), TypeError, "it has no evalsha()");
});

Deno.test("a signal that has aborted keeps a request from being sent", async () => {
  const { storage, sent } = dryStorage();
  const reason = new Error("enough");
  const signal = AbortSignal.abort(reason);
  const error = await assertRejects(() => storage.execute("job", acquire("own"), { signal }));
  assertEquals(error, reason);
  assertEquals(sent, []);
});

Deno.test("what is no answer of the script is an unknown outcome, never a refusal", async () => {
  for (const value of [null, "Aborted", [], ["granted", "x"], ["renewed"], ["held", 5]]) {
    const send = () => Promise.resolve([{ status: "fulfilled" as const, value }]);
    const storage = new RedisStorage({ send });
    const error = await assertRejects(() => storage.execute("job", acquire("own")), StorageError);
    assertEquals(error.transient, true, JSON.stringify(value));
    assertEquals(
      error.message,
      'Cannot use key "holdfast:{job}" as the client gave no answer of the script',
    );
  }
});

Deno.test("ioredis gets one pipeline, on a cluster a call for each lock, as its pipelines stay on one node", async () => {
  for (const isCluster of [false, true]) {
    const sent: string[] = [];
    const reply = ["released", 1];
    const storage = new RedisStorage(ioredis({
      isCluster,
      call: (name) => {
        sent.push(name);
        return Promise.resolve(reply);
      },
      pipeline: (commands) => {
        sent.push(`pipeline of ${commands.length}`);
        return { exec: () => Promise.resolve(commands.map(() => [null, reply])) };
      },
      duplicate: () => {
        throw new TypeError("Nobody listens");
      },
    }));
    const entries = ["a", "b"].map((name) => ({ name, command: release("own-token") }));
    const results = await storage.executeAll(entries);
    assert(results.every((r) => r.status === "fulfilled"), shown(results));
    assertEquals(sent, isCluster ? ["evalsha", "evalsha"] : ["pipeline of 2"]);
  }
});

await withService("redis", ({ test, service }) => {
  async function withRedis(run: (storage: RedisStorage, redis: Redis) => Promise<void>) {
    await using redis = connectIoredis(service().url);
    await using connected = await connectRedis("ioredis", service().url, { listening: "none" });
    await run(connected.storage, redis);
  }

  test("SHA-1 is what Redis takes for it", () =>
    withRedis(async (_, redis) => {
      for (const length of [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 1000]) {
        const text = "abcdefghij".repeat(100).slice(0, length);
        assertEquals(sha1Hex(text), await redis.eval("return redis.sha1hex(ARGV[1])", 0, text));
      }
      assertEquals(await redis.script("LOAD", LEASE_SCRIPT), sha1Hex(LEASE_SCRIPT));
    }));

  test("each command is one request; inside are TIME, GET and one SET if the record changes", () =>
    withRedis(async (storage, redis) => {
      const name = uniqueName("count");
      const own = token();
      const count = (command: Command) =>
        countCommands(redis, () => storage.execute(name, command));
      const { fencingToken: fence } = await grant(storage, name, own);
      assertEquals(await count(release(own)), "evalsha=1 get=1 set=1 time=1");
      assertEquals(await count(acquire("next-token")), "evalsha=1 get=1 set=1 time=1");
      assertEquals(await count(acquire("other-token")), "evalsha=1 get=1 time=1", "refused");
      assertEquals(await count(renew(own, fence)), "evalsha=1 get=1 time=1", "refused");
      assertEquals(await count(inspect), "evalsha=1 get=1 time=1");
      const waiting = acquire("waiting-token", { queueMs: 10_000 });
      assertEquals(await count(waiting), "evalsha=1 get=1 set=1 time=1");
      const woken = "evalsha=1 get=1 publish=1 set=1 time=1";
      assertEquals(await count(release("next-token")), woken, "somebody waits");
    }));

  test("an uncontended cycle is two requests", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using connected = await connectRedis("ioredis", `redis://127.0.0.1:${proxy.port}`);
    const { storage } = connected;
    const lock = new Lock({ storage, name: uniqueName("cycle"), autoRenew: false });
    await lock.with(() => Promise.resolve());
    const commands = commandsOf(proxy);
    await lock.with(() => Promise.resolve());
    assertEquals(commands, ["evalsha", "evalsha"]);
  });

  test("a script that the server has forgotten is sent again with its text, and once only", () =>
    withRedis(async (storage, redis) => {
      const names = [1, 2, 3, 4].map(() => uniqueName("flush"));
      await redis.script("FLUSH");
      const stats = await countCommands(
        redis,
        () => storage.execute(names[0]!, acquire("own-token")),
      );
      assertEquals(stats, "eval=1 evalsha=1 get=1 set=1 time=1");
      await redis.script("FLUSH");
      const entries = names.map((name) => ({ name, command: acquire("own-token") }));
      const all = await countCommands(redis, async () => {
        const results = await storage.executeAll(entries);
        assert(results.every((r) => r.status === "fulfilled" && r.value.type === "granted"));
      });
      assertEquals(all, "eval=1 evalsha=7 get=4 set=4 time=4");
    }));

  test("executeAll() sends one pipeline, and one entry that fails does not fail the others", () =>
    withRedis(async (storage, redis) => {
      const [mine, foreign, wrongType] = [1, 2, 3].map(() => uniqueName("all"));
      await redis.set(keyOf("holdfast", foreign!), "not ours");
      await redis.hset(keyOf("holdfast", wrongType!), "a", "1");
      const names = [mine!, foreign!, wrongType!, mine!];
      const results = await storage.executeAll(
        names.map((name) => ({ name, command: acquire("own-token") })),
      );
      assertEquals(results.map((r) => r.status), [
        "fulfilled",
        "rejected",
        "rejected",
        "fulfilled",
      ]);
      assertEquals(await storage.executeAll([]), []);
    }));

  // covers: G12
  test("a value that is not ours is an error with its key, and stays", () =>
    withRedis(async (storage, redis) => {
      const name = uniqueName("foreign");
      const key = keyOf("holdfast", name);
      const puts: Record<string, () => Promise<unknown>> = {
        text: () => redis.set(key, "not ours"),
        "another version": () => redis.set(key, "holdfast 2 7\nsomething else\n"),
        hash: () => redis.hset(key, "field", "value"),
        list: () => redis.rpush(key, "value"),
        stream: () => redis.xadd(key, "*", "field", "value"),
      };
      const commands = [
        acquire("own-token"),
        renew("own-token", 5),
        release("own-token"),
        adopt("own-token", 5, "new-token"),
        inspect,
        evict(),
      ];
      for (const [what, put] of Object.entries(puts)) {
        await redis.del(key);
        await put();
        const before = await redis.dumpBuffer(key);
        for (const command of commands) {
          const error = await assertRejects(() => storage.execute(name, command), StorageError);
          const expected = `Cannot use key "${key}" as its value is not a Holdfast record`;
          assertEquals(error.message, expected, `${command.type} on ${what}`);
          assertEquals(error.transient, false);
        }
        assertEquals(await redis.dumpBuffer(key), before, what);
        assertEquals(await redis.pttl(key), -1, "no expiry either");
      }
    }));

  test("a record lives until its last expiry plus the retention", async () => {
    await using redis = connectIoredis(service().url);
    await using connected = await connectRedis("ioredis", service().url, { retentionMs: 5000 });
    const { storage } = connected;
    const name = uniqueName("retention");
    await storage.execute(name, acquire("own-token", { ttlMs: 10_000 }));
    const heldMs = await redis.pttl(keyOf("holdfast", name));
    // The retention is at least the ttl.
    assert(heldMs > 19_000 && heldMs <= 20_001, `${heldMs}`);
    await storage.execute(name, { ...release("own-token"), spentMs: 30_000 });
    const releasedMs = await redis.pttl(keyOf("holdfast", name));
    assert(releasedMs > 34_000 && releasedMs <= 35_001, `${releasedMs}`);
  });

  test("holders are seen with their labels, whatever is in them", async () => {
    const labels = ["", "true", "42", "null", '{"a":1}', "é—𝄞", "=x", "a b", "[1]"];
    for (
      const options of [
        { ioredis: { stringNumbers: true } },
        { ioredis: {} },
      ]
    ) {
      await using connected = await connectRedis("ioredis", service().url, options);
      await using other = await connectRedis("node-redis", service().url);
      for (const { storage } of [connected, other]) {
        const name = uniqueName("labels");
        for (const [i, label] of labels.entries()) {
          await storage.execute(name, acquire(`token-${i}`, { label, capacity: 100 }));
        }
        const seen = await storage.execute(name, inspect);
        assertEquals(seen.holders.map((h) => h.label), labels);
        assert(seen.holders.every((h) => h.permits === 1 && h.remainingMs > TTL_MS - 5000));
        assertEquals(seen.fence, seen.holders.at(-1)!.fence);
      }
    }
  });

  test("a key prefix of the client's own is the client's affair", async () => {
    await using redis = connectIoredis(service().url);
    await using a = await connectRedis("ioredis", service().url, {
      ioredis: { keyPrefix: "tenant:" },
      listening: "handed in",
    });
    const name = uniqueName("prefix");
    await grant(a.storage, name, "own-token");
    assertEquals(await redis.exists(`tenant:${keyOf("holdfast", name)}`), 1);
    assertEquals((await a.storage.execute(name, release("own-token"))).freed, true);
  });

  test("two prefixes are two locks", async () => {
    await using a = await connectRedis("ioredis", service().url, { prefix: "a" });
    await using b = await connectRedis("ioredis", service().url, { prefix: "b.c-d_e:f" });
    const name = uniqueName("prefixes");
    await grant(a.storage, name, "own-token");
    await grant(b.storage, name, "other-token");
  });

  test("a user without rights on the channel releases all the same", async () => {
    await using redis = connectIoredis(service().url);
    await redis.call("ACL", "SETUSER", "mute", "on", ">pw", "~holdfast:*", "+@all", "-@pubsub");
    await using connected = await connectRedis("ioredis", service().url, {
      ioredis: { username: "mute", password: "pw" },
      listening: "none",
    });
    const { storage } = connected;
    const name = uniqueName("mute");
    await grant(storage, name, "own-token");
    await storage.execute(name, acquire("waiting-token", { queueMs: 10_000 }));
    assertEquals((await storage.execute(name, release("own-token"))).freed, true);
    await grant(storage, name, "waiting-token");
  });

  test("missing rights and credentials are errors that stay, with cause and without a token", async () => {
    await using redis = connectIoredis(service().url);
    await redis.call("ACL", "SETUSER", "elsewhere", "on", ">pw", "~other:*", "+@all");
    await redis.call("ACL", "SETUSER", "timeless", "on", ">pw", "~*", "+@all", "-time");
    await redis.call("ACL", "SETUSER", "scriptless", "on", ">pw", "~*", "+@all", "-evalsha");
    await redis.call("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+evalsha", "+time");
    const name = uniqueName("rights");
    const own = token();
    for (
      const [username, password, text] of [
        ["elsewhere", "pw", "NOPERM"],
        ["timeless", "pw", "can't run this command"],
        ["scriptless", "pw", "NOPERM"],
        ["reader", "pw", "can't run this command"],
        ["elsewhere", "wrong", "WRONGPASS"],
      ] as const
    ) {
      await using connected = await connectRedis("ioredis", service().url, {
        ioredis: { username, password, maxRetriesPerRequest: 0, retryStrategy: () => null },
        listening: "none",
      });
      const error = await assertRejects(
        () => connected.storage.execute(name, acquire(own)),
        StorageError,
      );
      assert(error.message.includes(text), error.message);
      assert(error.message.includes(keyOf("holdfast", name)), error.message);
      assertEquals(error.transient, false, error.message);
      assertInstanceOf(error.cause, Error);
      assert(!shown(error).includes(own), "the token is in the error");
    }
  });

  test("a lock of ours is one record for every client", async () => {
    await using a = await connectRedis("ioredis", service().url);
    await using b = await connectRedis("node-redis", service().url);
    const name = uniqueName("shared");
    const { fencingToken: fence } = await grant(a.storage, name, "own-token");
    assertEquals((await b.storage.execute(name, acquire("other-token"))).type, "held");
    assertEquals((await b.storage.execute(name, renew("own-token", fence))).type, "renewed");
    assertEquals((await b.storage.execute(name, release("own-token"))).freed, true);
  });
});
