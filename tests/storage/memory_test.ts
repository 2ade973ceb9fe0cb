import { assertEquals, assertRejects } from "@std/assert";
import { MemoryStorage } from "../../mod.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { acquire, evict, inspect, release, renew } from "../support/commands.ts";
import { START_MS } from "../support/world.ts";

function setUp(): { clock: ManualClock; storage: MemoryStorage } {
  const clock = new ManualClock(START_MS);
  return { clock, storage: new MemoryStorage({ clock }) };
}

// covers: S4.7 S4.6
Deno.test("leases end by the clock that is given, to the millisecond", async () => {
  const { clock, storage } = setUp();
  await storage.execute("job", acquire("aa", { ttlMs: 10_000 }));
  clock.freeze(9999);
  assertEquals((await storage.execute("job", acquire("bb"))).type, "held");
  clock.freeze(1);
  assertEquals((await storage.execute("job", acquire("bb"))).type, "granted");
});

// covers: S4.7
Deno.test("without a clock the system's is used", async () => {
  const storage = new MemoryStorage();
  const before = Date.now() * 1000;
  const outcome = await storage.execute("job", acquire("aa"));
  assertEquals(outcome.type === "granted" && outcome.fence >= before, true);
});

// covers: S2.15
Deno.test("names do not meet", async () => {
  const { storage } = setUp();
  for (const name of ["a", "b", "__proto__", "constructor"]) {
    assertEquals((await storage.execute(name, acquire("aa"))).type, "granted");
  }
});

// covers: S2.3 S3.2 S2.16
Deno.test("of many acquires at the same time one is granted", async () => {
  const { storage } = setUp();
  const outcomes = await Promise.all(
    Array.from({ length: 100 }, (_, i) => storage.execute("job", acquire(`t${i}`))),
  );
  assertEquals(outcomes.filter((o) => o.type === "granted").length, 1);
});

// covers: G9
Deno.test("an aborted signal rejects with its reason and nothing is done", async () => {
  const { storage } = setUp();
  const signal = AbortSignal.abort("enough");
  const reason = await storage.execute("job", acquire("aa"), { signal }).catch((r) => r);
  assertEquals(reason, "enough");
  assertEquals((await storage.execute("job", inspect)).holders, []);
});

Deno.test("executeAll applies each entry for itself, in order", async () => {
  const { storage } = setUp();
  const results = await storage.executeAll([
    { name: "a", command: acquire("aa") },
    { name: "a", command: acquire("bb") },
    { name: "b", command: renew("aa", 5) },
  ]);
  assertEquals(
    results.map((r) => r.status === "fulfilled" ? r.value.type : r.reason),
    ["granted", "held", "refused"],
  );
});

Deno.test("watch wakes once when it is live, and with the mark of the first waiter at a release", async () => {
  const { storage } = setUp();
  const woken: (string | undefined)[] = [];
  await storage.execute("job", acquire("aa"));
  await storage.execute("job", acquire("0123456789-secret", { queueMs: 1000 }));
  const watch = storage.watch("job", (next) => woken.push(next));
  assertEquals([watch.live, woken], [true, [undefined]]);
  await storage.execute("job", release("aa"));
  assertEquals(woken, [undefined, "01234567"]);
});

const silences: readonly [what: string, command: Parameters<MemoryStorage["execute"]>[1]][] = [
  ["a release that nobody waits for", release("aa")],
  ["a renewal", renew("aa", START_MS * 1000)],
  ["an eviction that nobody waits for", evict()],
];
for (const [what, command] of silences) {
  Deno.test(`watch is not woken by ${what}`, async () => {
    const { storage } = setUp();
    await storage.execute("job", acquire("aa"));
    let woken = 0;
    storage.watch("job", () => woken++);
    await storage.execute("job", command);
    assertEquals(woken, 1);
  });
}

// covers: G7
Deno.test("a subscription that was ended is not woken, and ending it twice ends no other", async () => {
  const { storage } = setUp();
  const woken: string[] = [];
  await storage.execute("job", acquire("aa"));
  await storage.execute("job", acquire("bb", { queueMs: 1000 }));
  const one = storage.watch("job", () => woken.push("one"));
  one[Symbol.dispose]();
  const two = storage.watch("job", () => woken.push("two"));
  one[Symbol.dispose]();
  woken.length = 0;
  await storage.execute("job", release("aa"));
  assertEquals(woken, ["two"]);
  two[Symbol.dispose]();
});

Deno.test("one function can subscribe twice, and end one of its subscriptions", async () => {
  const { storage } = setUp();
  let woken = 0;
  const wake = (): void => void woken++;
  await storage.execute("job", acquire("aa"));
  await storage.execute("job", acquire("bb", { queueMs: 1000 }));
  const one = storage.watch("job", wake);
  storage.watch("job", wake);
  one[Symbol.dispose]();
  await storage.execute("job", release("aa"));
  assertEquals(woken, 3);
});

Deno.test("a subscriber that ends its subscription while it is woken disturbs no other", async () => {
  const { storage } = setUp();
  const woken: string[] = [];
  await storage.execute("job", acquire("aa"));
  await storage.execute("job", acquire("bb", { queueMs: 1000 }));
  const subscriptions = ["one", "two", "three"].map((who) => {
    const watch = storage.watch("job", (next) => {
      if (next === undefined) return;
      woken.push(who);
      watch[Symbol.dispose]();
    });
    return watch;
  });
  await storage.execute("job", release("aa"));
  assertEquals([woken, subscriptions.length], [["one", "two", "three"], 3]);
});

// covers: G7
Deno.test("records in which everything is over are forgotten, and no others", async () => {
  const { clock, storage } = setUp();
  await storage.execute("long", acquire("aa", { ttlMs: 60_000 }));
  await storage.execute("spent", { ...release("aa"), spentMs: 60_000 });
  await storage.execute("queued", acquire("aa", { ttlMs: 10 }));
  await storage.execute("queued", acquire("bb", { queueMs: 60_000 }));
  const early = await storage.execute("dead", acquire("aa", { ttlMs: 10 }));
  clock.freeze(20);
  for (let i = 0; i < 1024; i++) await storage.execute(`n${i}`, acquire("aa", { ttlMs: 10 }));
  assertEquals(early.type, "granted");
  assertEquals((await storage.execute("dead", inspect)).fence, 0);
  assertEquals((await storage.execute("long", inspect)).holders.length, 1);
  assertEquals((await storage.execute("spent", acquire("aa"))).type, "spent");
  assertEquals((await storage.execute("queued", inspect)).waiters, 1);
});

// covers: G2
Deno.test("fences rise over a record that was forgotten", async () => {
  const { clock, storage } = setUp();
  const before = await storage.execute("dead", acquire("aa", { ttlMs: 10 }));
  clock.freeze(20);
  for (let i = 0; i < 1024; i++) await storage.execute(`n${i}`, acquire("aa", { ttlMs: 10 }));
  const after = await storage.execute("dead", acquire("aa"));
  assertEquals(
    before.type === "granted" && after.type === "granted" && after.fence > before.fence,
    true,
  );
});

// covers: G2
Deno.test("a record whose fence is ahead of the clock is not forgotten", async () => {
  const { clock, storage } = setUp();
  const before = await storage.execute("job", acquire("aa", { ttlMs: 10 }));
  clock.stepWall(-3_600_000);
  await storage.execute("job", { ...release("aa"), spentMs: 10 });
  clock.freeze(1000);
  for (let i = 0; i < 1100; i++) await storage.execute(`n${i}`, acquire("aa", { ttlMs: 10 }));
  const after = await storage.execute("job", inspect);
  assertEquals(before.type === "granted" && after.fence, before.type === "granted" && before.fence);
});

Deno.test("execute rejects, and never throws", async () => {
  const { storage } = setUp();
  const signal = AbortSignal.abort(new Error("enough"));
  await assertRejects(() => storage.execute("job", inspect, { signal }), Error, "enough");
});
