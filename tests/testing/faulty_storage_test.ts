import { assertEquals, assertStrictEquals } from "@std/assert";
import { type LeaseStorage, MemoryStorage, StorageError } from "../../mod.ts";
import { type Fault, FaultyStorage, ManualClock } from "../../src/testing/mod.ts";
import { acquire, inspect, release, renew } from "../support/commands.ts";
import { isPending, rejection, START_MS, withoutWatch } from "../support/world.ts";

function setUp(): { clock: ManualClock; memory: MemoryStorage; storage: FaultyStorage } {
  const clock = new ManualClock(START_MS);
  const memory = new MemoryStorage({ clock });
  return { clock, memory, storage: new FaultyStorage(memory, { clock }) };
}

const ownError = new Error("own");

/** What a fault does to an acquire: whether it is applied, and how it is answered. */
const faults: readonly [fault: Fault, isApplied: boolean, answer: string][] = [
  [{ type: "lose-request" }, false, 'Cannot reach lock "job" as the connection was lost'],
  [{ type: "lose-reply" }, true, 'Cannot reach lock "job" as the connection was lost'],
  [{ type: "late-reply", ms: 0 }, true, "granted"],
  [{ type: "duplicate", afterMs: 50 }, true, "granted"],
  [{ type: "hang" }, false, "nothing"],
  [{ type: "hang-after" }, true, "nothing"],
  [{ type: "error", error: ownError }, false, "own"],
];
for (const [fault, isApplied, answer] of faults) {
  Deno.test(`a fault of ${fault.type} befalls one request, which is ${isApplied ? "" : "not "}applied`, async () => {
    const { clock, memory, storage } = setUp();
    storage.inject(fault);
    let answered = "nothing";
    storage.execute("job", acquire("aa")).then(
      (o) => answered = o.type,
      (e) => answered = e.message,
    );
    await clock.advance(1);
    assertEquals(answered, answer);
    assertEquals((await memory.execute("job", inspect)).holders.length, isApplied ? 1 : 0);
    assertEquals((await storage.execute("other", acquire("aa"))).type, "granted");
  });
}

Deno.test("a reply that is late is applied at once", async () => {
  const { clock, memory, storage } = setUp();
  storage.inject({ type: "late-reply", ms: 50 });
  const answer = storage.execute("job", acquire("aa"));
  await clock.advance(49);
  assertEquals([await isPending(answer, clock), (await memory.execute("job", inspect)).fence > 0], [
    true,
    true,
  ]);
  await clock.advance(1);
  assertEquals((await answer).type, "granted");
});

Deno.test("a duplicate is applied again later, when nobody waits for it", async () => {
  const { clock, memory, storage } = setUp();
  storage.inject({ type: "duplicate", afterMs: 50 });
  await storage.execute("job", acquire("aa", { ttlMs: 100 }));
  await clock.advance(50);
  const [holder] = (await memory.execute("job", inspect)).holders;
  assertEquals([holder!.remainingMs, clock.pendingTimers], [100, 0]);
});

Deno.test("a request that hangs ends with its signal", async () => {
  const { storage } = setUp();
  storage.inject({ type: "hang" });
  const stop = new AbortController();
  const ended = rejection<unknown>(storage.execute("job", inspect, { signal: stop.signal }));
  stop.abort("enough");
  assertEquals(await ended, "enough");
});

Deno.test("a fault is for the requests that are meant, as often as is said, until heal()", async () => {
  const { storage } = setUp();
  storage.inject({ type: "error", error: ownError }, {
    times: 2,
    when: (command, name) => command.type === "renew" && name === "job",
  });
  storage.inject({ type: "lose-request" }, { times: Infinity, when: (c) => c.type === "release" });
  const outcomes: string[] = [];
  const send = async (name: string, command: Parameters<LeaseStorage["execute"]>[1]) => {
    outcomes.push(await storage.execute(name, command).then((o) => o.type, (e) => e.name));
  };
  await send("other", renew("aa", 1));
  await send("job", renew("aa", 1));
  await send("job", release("aa"));
  await send("job", renew("aa", 1));
  await send("job", renew("aa", 1));
  await send("job", release("aa"));
  storage.heal();
  await send("job", release("aa"));
  assertEquals(outcomes, [
    "refused",
    "Error",
    "StorageError",
    "Error",
    "refused",
    "StorageError",
    "released",
  ]);
  assertEquals(storage.sent.length, 7);
});

Deno.test("draw decides for each request that the script leaves alone", async () => {
  const { clock, memory } = setUp();
  const seen: string[] = [];
  const storage = new FaultyStorage(memory, {
    clock,
    draw: ({ type }, name) => {
      seen.push(`${type} ${name}`);
      return type === "renew" ? { type: "lose-request" } : undefined;
    },
  });
  storage.inject({ type: "error", error: ownError });
  assertStrictEquals(await rejection(storage.execute("job", inspect)), ownError);
  assertEquals(
    await rejection(storage.execute("job", renew("aa", 1))) instanceof StorageError,
    true,
  );
  assertEquals((await storage.execute("job", inspect)).type, "inspected");
  assertEquals(seen, ["renew job", "inspect job"]);
});

Deno.test("of many commands in one request each has its own fault", async () => {
  const { storage } = setUp();
  storage.inject({ type: "lose-request" }, { when: (_, name) => name === "b" });
  const entries = ["a", "b", "c"].map((name) => ({ name, command: acquire("aa") }));
  const results = await storage.executeAll(entries);
  assertEquals(results.map((r) => r.status), ["fulfilled", "rejected", "fulfilled"]);
});

Deno.test("it looks like the storage behind it", () => {
  const { memory, storage } = setUp();
  assertEquals([storage.pollMs, storage.maxClockSkewMs, storage.wakesTickets, !!storage.watch], [
    memory.pollMs,
    0,
    true,
    true,
  ]);
  const plain = new FaultyStorage({ ...withoutWatch(memory), maxClockSkewMs: 700 });
  assertEquals([plain.watch, plain.wakesTickets, plain.maxClockSkewMs], [undefined, false, 700]);
});
