import { assert, assertEquals, assertRejects } from "@std/assert";
import { Cluster } from "ioredis";
import { createCluster } from "redis";
import { withService } from "../../scripts/services.ts";
import { Lock, StorageError } from "../../mod.ts";
import { fencedExec, ioredis, nodeRedis, RedisStorage } from "../../src/storage/redis.ts";
import { eventually } from "../../src/testing/check.ts";
import { acquire, inspect, release, uniqueName } from "../support/commands.ts";

await withService("redis-cluster", ({ test, service }) => {
  /** Runs with a storage over each client that knows clusters. */
  async function withClusters(run: (storage: RedisStorage) => Promise<void>): Promise<void> {
    const { host, port, url } = service();
    const io = new Cluster([{ host, port }]);
    const node = createCluster({ rootNodes: [{ url }] });
    await node.connect();
    try {
      await run(new RedisStorage(ioredis(io, { subscriber: "duplicate" })));
      await run(new RedisStorage(nodeRedis(node, { subscriber: "duplicate" })));
    } finally {
      const ended = new Promise((resolve) => io.once("end", resolve));
      io.disconnect();
      node.destroy();
      await ended;
    }
  }

  test("names with braces and other signs are locks on a cluster", () =>
    withClusters(async (storage) => {
      for (const odd of ["a}b", "{}", "}{", "{a}b", "#?/ %", "é", "x".repeat(400)]) {
        const name = uniqueName(odd);
        const outcome = await storage.execute(name, acquire("own-token"));
        assertEquals(outcome.type, "granted", odd);
        assertEquals((await storage.execute(name, inspect)).holders.length, 1);
      }
    }));

  test("executeAll() takes locks of many slots", () =>
    withClusters(async (storage) => {
      const entries = Array.from({ length: 50 }, (_, i) => ({
        name: uniqueName(`slot ${i}`),
        command: acquire("own-token"),
      }));
      const results = await storage.executeAll(entries);
      assert(results.every((r) => r.status === "fulfilled" && r.value.type === "granted"));
    }));

  test("fencedExec() needs the user's keys in the lock's slot, by hashTag()", () =>
    withClusters(async (storage) => {
      const name = uniqueName("fenced}");
      await using lease = await new Lock({ storage, name }).acquire();
      const key = `paid:${storage.hashTag(name)}`;
      assertEquals(await fencedExec(storage, lease, [["INCR", key]], { keys: [key] }), [1]);
      const elsewhere = "paid:elsewhere";
      const error = await assertRejects(
        () => fencedExec(storage, lease, [["INCR", elsewhere]], { keys: [elsewhere] }),
        StorageError,
      );
      assertEquals(error.transient, false, error.message);
    }));

  test("a release wakes a waiter on a cluster", () =>
    withClusters(async (storage) => {
      const name = uniqueName("wake");
      const told: (string | undefined)[] = [];
      const watch = storage.watch!(name, (next) => told.push(next), "waiting-");
      await eventually(() => watch.live, "a live watch");
      await storage.execute(name, acquire("own-token"));
      await storage.execute(name, acquire("waiting-token", { queueMs: 10_000 }));
      await storage.execute(name, release("own-token"));
      await eventually(() => told.includes("waiting-"), "a hint");
      watch[Symbol.dispose]();
    }));
});
