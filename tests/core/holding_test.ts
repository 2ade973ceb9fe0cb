import { assertEquals, assertLess } from "@std/assert";
import { Lock, MemoryStorage, StorageError } from "../../mod.ts";
import { FaultyStorage, ManualClock } from "../../src/testing/mod.ts";

// covers: S1.5 S3.13 S4.7
Deno.test("renewals that fail at once are repeated with backoff, until the deadline", async () => {
  const clock = new ManualClock();
  const storage = new FaultyStorage(new MemoryStorage({ clock }), { clock });
  const lease = await new Lock({ storage, clock, name: "job", ttlMs: 30_000 }).acquire();
  const error = new StorageError("Cannot reach the storage", { transient: true });
  storage.inject({ type: "error", error }, { times: Infinity });
  await clock.advance(29_000);
  assertEquals(lease.status, "held");
  const renewals = storage.sent.filter(({ command }) => command.type === "renew").length;
  // From 10 s on, first after some 25 ms, in the end every 0.5 to 1 s.
  assertLess(renewals, 50);
  assertLess(15, renewals);
  await clock.advance(1000);
  assertEquals(lease.status, "lost");
});

// covers: G9
Deno.test("a resume whose replies are all lost frees the lock behind itself", async () => {
  const clock = new ManualClock();
  const storage = new FaultyStorage(new MemoryStorage({ clock }), { clock });
  const lock = new Lock({ storage, clock, name: "job", ttlMs: 30_000 });
  const baton = (await lock.acquire()).detach();
  storage.inject({ type: "lose-reply" }, { times: 3 });
  const resumed = lock.resume(baton).catch((error) => error);
  await clock.advance(5000);
  assertEquals((await resumed).name, "StorageError");
  await clock.advance(0);
  assertEquals((await lock.inspect()).holders, []);
});
