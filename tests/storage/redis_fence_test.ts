import { assert, assertEquals, assertRejects } from "@std/assert";
import type { Redis } from "ioredis";
import { withService } from "../../scripts/services.ts";
import { Lock, StaleFenceError, StorageError } from "../../mod.ts";
import type { Fenced } from "../../src/core/lease.ts";
import { keyOf } from "../../src/storage/_redis_command.ts";
import type { ScriptCall, SendCalls } from "../../src/storage/_redis_run.ts";
import { fencedExec, type RedisClient, type RedisStorage } from "../../src/storage/redis.ts";
import {
  acquire,
  adopt,
  evict,
  release,
  renew,
  token,
  TTL_MS,
  uniqueName,
} from "../support/commands.ts";
import { connectIoredis, connectRedis, grant } from "../support/redis_clients.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

/** A client that notes its calls, and may lose replies that have been given. */
function spy(client: RedisClient, lose = 0): RedisClient & { readonly calls: ScriptCall[] } {
  const calls: ScriptCall[] = [];
  const send: SendCalls = async (some) => {
    calls.push(...some);
    const results = await client.send(some);
    if (results[0]!.status === "rejected" || lose-- <= 0) return results;
    return some.map(() => ({ status: "rejected", reason: new Error("Connection lost") }));
  };
  return { send, calls };
}

await withService("redis", ({ test, service }) => {
  /** A Redis with a lease in it. */
  async function withLease(
    run: (
      on: { storage: RedisStorage; client: RedisClient; redis: Redis; lease: Fenced; key: string },
    ) => Promise<void>,
    more: Parameters<typeof acquire>[1] = {},
  ): Promise<void> {
    await using redis = connectIoredis(service().url);
    await using connected = await connectRedis("ioredis", service().url, { listening: "none" });
    const { storage, client } = connected;
    const lease = await grant(storage, uniqueName("fenced"), token(), more);
    await run({ storage, client, redis, lease, key: `user:${crypto.randomUUID()}` });
  }

  test("fencedExec() runs commands in order and gives back what Redis replied", () =>
    withLease(async ({ storage, lease, key }) => {
      const replies = await fencedExec(storage, lease, [
        ["SET", key, 'a"b\\c\n é—𝄞'],
        ["GET", key],
        ["GET", `${key}:none`],
        ["APPEND", key, 42],
        ["RPUSH", `${key}:list`, "x", "true", 7],
        ["LRANGE", `${key}:list`, 0, -1],
        ["LRANGE", `${key}:none`, 0, -1],
        ["MGET", key, `${key}:none`, key],
        ["SET", `${key}:n`, "9007199254740991"],
        ["DECR", `${key}:n`],
      ], { keys: [key, `${key}:none`, `${key}:list`, `${key}:n`] });
      const text = 'a"b\\c\n é—𝄞';
      assertEquals(replies.slice(0, 3), ["OK", text, null]);
      assertEquals(replies.slice(4, 8), [3, ["x", "true", "7"], [], [
        `${text}42`,
        null,
        `${text}42`,
      ]]);
      assertEquals(replies.slice(8), ["OK", 9007199254740990]);
    }));

  test("fencedExec() takes the storage, or its client with the prefix", () =>
    withLease(async ({ client, lease, key }) => {
      await using other = await connectRedis("node-redis", service().url, { prefix: "app" });
      assertEquals(await fencedExec(client, lease, [["INCR", key]], { keys: [key] }), [1]);
      await assertRejects(
        () => fencedExec(client, lease, [["INCR", key]], { keys: [key], prefix: "app" }),
        StaleFenceError,
      );
      await using held = await new Lock({ storage: other.storage, name: lease.name }).acquire();
      assertEquals(await fencedExec(other.storage, held, [["INCR", key]], { keys: [key] }), [2]);
      assertEquals(
        await fencedExec(client, held, [["INCR", key]], { keys: [key], prefix: "app" }),
        [3],
      );
    }));

  // covers: G3
  // covers: S3.4
  test("fencedExec() runs nothing for a holding that is over", () =>
    withLease(async ({ storage, redis, lease, key }) => {
      const { name, fencingToken: fence } = lease;
      const exec = (by: Fenced) => fencedExec(storage, by, [["INCR", key]], { keys: [key] });
      const stale = async (by: Fenced, why: string) => {
        const error = await assertRejects(() => exec(by), StaleFenceError, undefined, why);
        assertEquals(
          error.message,
          `Cannot run commands under lock "${by.name}" as this holding of it is over: ` +
            `current value is fence ${by.fencingToken}`,
        );
        assertEquals(error.fence, by.fencingToken);
        assertEquals(await redis.exists(key), 0, why);
      };
      await stale({ ...lease, token: token() }, "another token");
      await stale({ ...lease, fencingToken: fence + 1 }, "another fence");
      await stale({ ...lease, name: `${name}2` }, "another lock");
      const taken = token();
      const given = await storage.execute(name, adopt(lease.token, fence, taken));
      if (given.type !== "granted") throw new Error(given.type);
      await stale(lease, "handed over");
      await stale({ ...lease, token: taken }, "new token, old fence");
      const mine = { name, token: taken, fencingToken: given.fence };
      await storage.execute(name, evict());
      await stale(mine, "evicted");
      const short = await grant(storage, name, token(), { ttlMs: 30 });
      await new Promise((resolve) => setTimeout(resolve, 40));
      await stale(short, "expired, by Redis's clock");
      const kept = await grant(storage, name, token());
      await storage.execute(name, release(kept.token, 5000));
      await stale(kept, "min-hold after a release");
      await redis.del(keyOf("holdfast", name));
      await stale(kept, "no record");
    }));

  test("fencedExec() works for every holder of a semaphore, not only for the newest", () =>
    withLease(async ({ storage, lease, key }) => {
      await storage.execute(lease.name, acquire(token(), { capacity: 2 }));
      const [count] = await fencedExec(storage, lease, [["INCR", key]], { keys: [key] });
      assertEquals(count, 1);
      await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
      const [again] = await fencedExec(storage, lease, [["INCR", key]], { keys: [key] });
      assertEquals(again, 2);
    }, { capacity: 2 }));

  test("a command that fails stops the rest, and what ran before it stays", () =>
    withLease(async ({ storage, redis, lease, key }) => {
      const error = await assertRejects(
        () =>
          fencedExec(storage, lease, [
            ["SET", key, "text"],
            ["APPEND", key, "!"],
            ["INCR", key],
            ["APPEND", key, "?"],
          ], { keys: [key] }),
        StorageError,
      );
      assertEquals(error.index, 2);
      assertEquals(error.transient, false);
      assertEquals(
        error.message,
        `Cannot run command 2 under key "${keyOf("holdfast", lease.name)}" as Redis refused: ` +
          "ERR value is not an integer or out of range",
      );
      assertEquals(await redis.get(key), "text!");
      const unknown = await assertRejects(
        () => fencedExec(storage, lease, [["NOSUCH", key]], { keys: [key] }),
        StorageError,
      );
      assertEquals(unknown.index, 0);
    }));

  // covers: G11
  test("a call whose reply is lost is sent again, and gives the first result", () =>
    withLease(async ({ client, redis, lease, key }) => {
      for (const lose of [1, 2]) {
        const lossy = spy(client, lose);
        const [count] = await fencedExec(lossy, lease, [["INCR", key]], { keys: [key] });
        assertEquals(count, lose, "applied once per call");
        assertEquals(new Set(lossy.calls.map((call) => call.keys[1])).size, 1, "one nonce");
      }
      const silent = spy(client, Infinity);
      const error = await assertRejects(
        () => fencedExec(silent, lease, [["INCR", key]], { keys: [key] }),
        StorageError,
        "Connection lost",
      );
      assertEquals(error.transient, true);
      assertEquals(await redis.get(key), "3");
    }));

  // covers: G11
  test("a resend gives the first result even after the lease is over, and so does a failure", () =>
    withLease(async ({ storage, client, redis, lease, key }) => {
      const noted = spy(client);
      await fencedExec(noted, lease, [["INCR", key]], { keys: [key] });
      await assertRejects(() =>
        fencedExec(noted, lease, [["INCR", key], ["NOSUCH"]], { keys: [key] })
      );
      const before = await Promise.all(noted.calls.map((call) => client.send([call])));
      await storage.execute(lease.name, release(lease.token));
      const after = await Promise.all(noted.calls.map((call) => client.send([call])));
      assertEquals(after, before);
      assertEquals(before.flat().map((result) => result.status), ["fulfilled", "fulfilled"]);
      assertEquals(await redis.get(key), "2");
    }));

  test("the nonce is kept for a ttl after the expiry, and at least a minute", () =>
    withLease(async ({ client, redis, lease, key }) => {
      const noted = spy(client);
      await fencedExec(noted, lease, [["INCR", key]], { keys: [key] });
      const leftMs = await redis.pttl(noted.calls[0]!.keys[1]!);
      assert(leftMs > 2 * TTL_MS - 5000 && leftMs <= 2 * TTL_MS + 1, `${leftMs}`);
      const short = { ...lease, token: token(), name: uniqueName("short") };
      const [result] = await client.send([{
        ...noted.calls[0]!,
        keys: [keyOf("holdfast", short.name), "unused", key],
      }]);
      assertEquals(result, { status: "fulfilled", value: ["stale"] });
    }));

  test("a short lease keeps its nonce for a minute", () =>
    withLease(async ({ client, redis, lease, key }) => {
      const noted = spy(client);
      await fencedExec(noted, lease, [["INCR", key]], { keys: [key] });
      const leftMs = await redis.pttl(noted.calls[0]!.keys[1]!);
      assert(leftMs > 60_000 && leftMs <= 65_001, `${leftMs}`);
    }, { ttlMs: 5000 }));

  test("every key is declared: the lock's, the nonce's, in its slot, and the user's", () =>
    withLease(async ({ storage, client, lease, key }) => {
      const noted = spy(client);
      await fencedExec(noted, lease, [["MSET", key, 1, `${key}2`, 2]], { keys: [key, `${key}2`] });
      const record = keyOf("holdfast", lease.name);
      const [own, nonce, ...users] = noted.calls[0]!.keys;
      assertEquals(own, record);
      assert(nonce!.startsWith(`${record}:exec:`) && record.includes(storage.hashTag(lease.name)));
      assertEquals(users, [key, `${key}2`]);
    }));

  // covers: G12
  test("fencedExec() runs nothing over a record that is not ours", () =>
    withLease(async ({ storage, redis, lease, key }) => {
      const record = keyOf("holdfast", lease.name);
      const line = `h ${lease.token} ${lease.fencingToken} `;
      for (
        const text of [
          "not ours",
          `holdfast 2 5\n${line}1 1 9 0 9999999999999 \n.\n`,
          `holdfast 1 5\n${line}1 1 9 0 9999999999999 \n`,
        ]
      ) {
        await redis.set(record, text);
        const error = await assertRejects(
          () => fencedExec(storage, lease, [["INCR", key]], { keys: [key] }),
          StorageError,
          `Cannot use key "${record}" as its value is not a Holdfast record`,
        );
        assertEquals(error.transient, false);
      }
      await redis.del(record);
      await redis.hset(record, "a", "1");
      await assertRejects(
        () => fencedExec(storage, lease, [["INCR", key]], { keys: [key] }),
        StorageError,
        "is not a Holdfast record",
      );
      assertEquals(await redis.exists(key), 0);
    }));

  test("fencedExec() tries no more once its signal has aborted", () =>
    withLease(async ({ client, lease, key }) => {
      const stop = new AbortController();
      const silent = spy(client, Infinity);
      const reason = new Error("enough");
      const work = fencedExec(silent, lease, [["INCR", key]], {
        keys: [key],
        signal: stop.signal,
      });
      setTimeout(() => stop.abort(reason), 10);
      assertEquals(await work.catch((error) => error), reason);
      assert(silent.calls.length <= 3);
    }));

  test("a lost reply under ioredis's own resend applies the commands once", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using connected = await connectRedis("ioredis", `redis://127.0.0.1:${proxy.port}`);
    const { storage } = connected;
    await using lease = await new Lock({ storage, name: uniqueName("resend") }).acquire();
    const key = `user:${crypto.randomUUID()}`;
    await fencedExec(storage, lease, [["INCR", key]], { keys: [key] });
    proxy.dropReplyIf((request) => new TextDecoder().decode(request).includes(":exec:"));
    const [count] = await fencedExec(storage, lease, [["INCR", key]], { keys: [key] });
    assertEquals(count, 2);
    assertEquals(proxy.counters.dropped, 1);
  });
});
