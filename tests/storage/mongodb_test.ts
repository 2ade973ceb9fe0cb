import { assert, assertEquals, assertRejects } from "@std/assert";
import { withService } from "../../scripts/services.ts";
import { StaleFenceError, StorageError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import { fenceCheck, MongoDbStorage } from "../../src/storage/mongodb.ts";
import {
  acquire,
  adopt,
  evict,
  grant,
  inspect,
  release,
  renew,
  token,
  TTL_MS,
  uniqueName,
} from "../support/commands.ts";
import { raceAtExpiry } from "../support/expiry_race.ts";
import { nameOf } from "../support/mongo_proxy.ts";
import { contend } from "../support/storage_cases.ts";
import { idOf, inTransaction, useFenced, withMongo } from "../support/mongodb.ts";

await withService("mongo", ({ test, service }) => {
  test("acquire, renew, takeover and eviction take two requests each, release and inspect one", async () => {
    await withMongo(service(), async ([client], locksOf, proxy) => {
      const storage = new MongoDbStorage(locksOf(client));
      const name = uniqueName("count");
      const requests = () => proxy.sent.splice(0).map(nameOf);
      const two = ["findAndModify", "update"];
      const lease = await grant(storage, name);
      assertEquals(requests(), two, "acquire");
      await storage.execute(name, renew(lease.token, lease.fencingToken));
      assertEquals(requests(), two, "renew");
      await storage.execute(name, inspect);
      assertEquals(requests(), ["findAndModify"], "inspect");
      const waiter = new MongoDbStorage(locksOf(client));
      assertEquals((await waiter.execute(name, acquire(token()))).type, "held");
      assertEquals(requests(), ["findAndModify"], "a refusal");
      assertEquals((await waiter.execute(name, acquire(token()))).type, "held");
      assertEquals(requests(), ["find"], "a refusal after a refusal writes nothing");
      await storage.execute(name, release(lease.token));
      assertEquals(requests(), ["update"], "release");
      const dead = await grant(storage, name, { ttlMs: 200 });
      await useFenced(client, storage, dead);
      requests();
      await sleep(220);
      const last = await grant(storage, name);
      assertEquals(requests(), two, "takeover of a lease with fenced transactions");
      await storage.execute(name, renew(last.token, last.fencingToken));
      assertEquals(requests(), two, "renewal of a lock with fenced transactions");
      await storage.execute(name, evict());
      assertEquals(requests(), two, "evict");
    });
  });

  test("every write asks for the majority, whatever the collection's default is, and a glance for the newest", async () => {
    await withMongo(service(), async ([client], _, proxy) => {
      const collection = client.db("test").collection("locks", { writeConcern: { w: 1 } });
      const storage = new MongoDbStorage(collection);
      const lease = await grant(storage, uniqueName("majority"));
      await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
      await storage.execute(lease.name, release(lease.token));
      assertEquals(proxy.sent.map((c) => c["writeConcern"]), Array(5).fill({ w: "majority" }));
      const held = await grant(storage, uniqueName("majority"));
      proxy.sent.splice(0);
      await storage.execute(held.name, acquire(token()));
      assertEquals(proxy.sent.map((c) => c["readConcern"]), [{ level: "local" }]);
    });
  });

  test("the document has the record in one string, and a date for the reaper", async () => {
    await withMongo(service(), async ([client], locksOf) => {
      const storage = new MongoDbStorage(locksOf(client), { retentionMs: 120_000 });
      const lease = await grant(storage, uniqueName("document"));
      const { clock, version, ...document } = (await locksOf(client).findOne(idOf(lease.name)))!;
      const { holders } = await storage.execute(lease.name, inspect);
      const expiresAtMs = lease.fencingToken / 1000 + TTL_MS;
      assert(holders[0]!.remainingMs <= TTL_MS);
      assertEquals(document, {
        ...idOf(lease.name),
        record: `holdfast 1 ${lease.fencingToken}\n` +
          `h ${lease.token} ${lease.fencingToken} 1 1 ${TTL_MS} 0 ${expiresAtMs} \n.\n`,
        expireAt: new Date(expiresAtMs + 120_000),
      });
      assertEquals(clock.getTime() * 1000, lease.fencingToken, "the server says the time");
      const versions = new Set([version]);
      for (let i = 0; i < 3; i++) {
        await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
        versions.add((await locksOf(client).findOne(idOf(lease.name)))!["version"]);
      }
      assertEquals(versions.size, 4, "versions never repeat");
      await locksOf(client).deleteOne(idOf(lease.name));
      await storage.execute(lease.name, inspect);
      const absent = (await locksOf(client).findOne(idOf(lease.name)))!;
      assertEquals(versions.has(absent["version"]), false, "nor that of an absent record");
    });
  });

  // covers: G1
  test("of 20 concurrent first acquires one is granted", async () => {
    await withMongo(service(), async (clients, locksOf) => {
      for (let round = 0; round < 5; round++) {
        const storageOf = (i: number) => new MongoDbStorage(locksOf(clients[i % 2]!));
        await contend(uniqueName("first"), storageOf);
      }
    });
  });

  // covers: G1 G2 S4.1 S4.13
  test("of 20 who take over an expired holder one is granted, without waiting for the reaper", async () => {
    await withMongo(service(), async (clients, locksOf) => {
      for (let round = 0; round < 5; round++) {
        const name = uniqueName("takeover");
        const storage = new MongoDbStorage(locksOf(clients[0]));
        const dead = await grant(storage, name, { ttlMs: 200 });
        if (round % 2 > 0) await useFenced(clients[0], storage, dead);
        await sleep(220);
        const next = await contend(name, (i) => new MongoDbStorage(locksOf(clients[i % 2]!)));
        assert(next.fence > dead.fencingToken);
      }
    });
  });

  // covers: G1 G5
  test("a renewal that races a takeover at the instant of expiry never leaves two holders", async () => {
    await withMongo(service(), async ([one, two], locksOf) => {
      const a = new MongoDbStorage(locksOf(one));
      const b = new MongoDbStorage(locksOf(two));
      const after = () => locksOf(one).deleteMany({});
      await raceAtExpiry(a, b, { tries: 300, together: 4, ttlMs: 80, after });
    });
  });

  // FerretDB applies each command of a transaction at once; what takes a transaction is shown on a model.
  // covers: G3
  test("fenceCheck() passes for a holder, also after renewals", async () => {
    await withMongo(service(), async ([client], locksOf) => {
      const storage = new MongoDbStorage(locksOf(client));
      const lease = await grant(storage, uniqueName("fence"));
      await storage.execute(lease.name, renew(lease.token, lease.fencingToken));
      await inTransaction(client, (session) => fenceCheck(storage, lease, session));
    });
  });

  const ends: Record<string, (s: MongoDbStorage, l: Fenced) => Promise<unknown>> = {
    "was released": (s, l) => s.execute(l.name, release(l.token)),
    "was released and keeps its permits": (s, l) => s.execute(l.name, release(l.token, TTL_MS)),
    "was evicted": (s, l) => s.execute(l.name, evict()),
    "was handed over": (s, l) => s.execute(l.name, adopt(l.token, l.fencingToken, token())),
    "expired": () => sleep(220),
    "expired and was replaced": (s, l) => sleep(220).then(() => grant(s, l.name)),
  };
  for (const [how, end] of Object.entries(ends)) {
    // covers: G3
    test(`fenceCheck() refuses a holder that ${how}`, async () => {
      await withMongo(service(), async ([one, two], locksOf) => {
        const storage = new MongoDbStorage(locksOf(one));
        const ttlMs = how.startsWith("expired") ? 200 : TTL_MS;
        const lease = await grant(storage, uniqueName("stale"), { ttlMs });
        await end(new MongoDbStorage(locksOf(two)), lease);
        const error = await assertRejects(
          () => inTransaction(one, (session) => fenceCheck(storage, lease, session)),
          StaleFenceError,
        );
        assertEquals(
          error.message,
          `Cannot write under lock "${lease.name}" as fence ${lease.fencingToken} is not held any more`,
        );
      });
    });
  }

  test("migrate() makes an index by which the server deletes, or says why not", async () => {
    await withMongo(service(), async ([client], locksOf, proxy) => {
      const storage = new MongoDbStorage(locksOf(client));
      const error = await storage.migrate().then(() => undefined, (error) => error);
      const sent = proxy.sent.find((c) => nameOf(c) === "createIndexes")!;
      const [index] = sent["indexes"] as { expireAfterSeconds?: number; key: object }[];
      assertEquals([index!.key, index!.expireAfterSeconds], [{ expireAt: 1 }, 0]);
      // FerretDB has no such indexes.
      if (error === undefined) return;
      assert(error instanceof StorageError);
      assertEquals(
        error.message,
        `Cannot migrate collection "${
          locksOf(client).namespace
        }" as MongoDB or its client refuses: ` +
          `current value is NotImplemented`,
      );
    });
  });
});

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
