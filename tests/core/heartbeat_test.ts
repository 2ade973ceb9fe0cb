import { assert, assertEquals } from "@std/assert";
import {
  type Command,
  type Entry,
  type ExecuteOptions,
  type Lease,
  type LeaseStorage,
  MemoryStorage,
  type Outcome,
  type OutcomeOf,
  StorageError,
} from "../../mod.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { runScript } from "../support/run_script.ts";
import { isPending, rejection, START_MS, withoutWatch, World } from "../support/world.ts";

const isRenew = (command: Command): boolean => command.type === "renew";

/** A storage that notes its requests: how many entries each has, and when. */
class CountingStorage implements LeaseStorage {
  readonly pollMs = { min: 5, max: 50 };
  readonly maxClockSkewMs = 0;
  readonly memory: MemoryStorage;
  readonly requests: { atMs: number; entries: number; type: string }[] = [];
  /** How long an answer takes, in milliseconds. */
  delayMs = 0;
  inFlight = 0;
  mostInFlight = 0;
  /** What becomes of the answer to many. */
  spoil: (results: PromiseSettledResult<Outcome>[]) => PromiseSettledResult<Outcome>[] = (r) => r;

  constructor(readonly clock: ManualClock) {
    this.memory = new MemoryStorage({ clock });
  }

  execute<C extends Command>(
    name: string,
    command: C,
    options?: ExecuteOptions,
  ): Promise<OutcomeOf<C>> {
    return this.#answer(command.type, 1, () => this.memory.execute(name, command, options));
  }

  executeAll(entries: readonly Entry[]): Promise<PromiseSettledResult<Outcome>[]> {
    return this.#answer(entries[0]!.command.type, entries.length, async () => {
      return this.spoil(await this.memory.executeAll(entries));
    });
  }

  /** The renewals since the last call: how many entries each request had. */
  renewals(): number[] {
    return this.requests.splice(0).filter((r) => r.type === "renew").map((r) => r.entries);
  }

  async #answer<T>(type: string, entries: number, run: () => Promise<T>): Promise<T> {
    this.requests.push({ atMs: this.clock.read().monotonicMs, entries, type });
    this.mostInFlight = Math.max(this.mostInFlight, ++this.inFlight);
    const result = await run();
    if (this.delayMs > 0) {
      await new Promise<void>((resolve) => void this.clock.setTimer(this.delayMs, resolve));
    }
    this.inFlight--;
    return result;
  }
}

/** A world whose locks use a counting storage. */
function counting(): { world: World; storage: CountingStorage } {
  const world = new World();
  return { world, storage: new CountingStorage(world.clock) };
}

/** How often a timer was set since. */
function countTimers({ clock }: World): { count: number } {
  const timers = { count: 0 };
  const setTimer = clock.setTimer.bind(clock);
  clock.setTimer = (ms, callback) => {
    timers.count++;
    return setTimer(ms, callback);
  };
  return timers;
}

/** Fails unless the next request is a renewal, so many milliseconds from now. */
async function assertRenewsIn(world: World, ms: number): Promise<void> {
  await world.clock.advance(ms - 1);
  assertEquals(world.sent(), "");
  await world.clock.advance(1);
  assertEquals(world.sent(), "renew");
}

function statuses(leases: readonly Lease[]): string[] {
  return leases.map((lease) => lease.status);
}

/** Leases of so many names. */
function acquireMany(
  world: World,
  storage: LeaseStorage,
  count: number,
  options: object = {},
): Promise<Lease[]> {
  const lock = world.lock({ storage, onEvent: undefined, ...options });
  return Promise.all(Array.from({ length: count }, (_, i) => lock.withName(`n${i}`).acquire()));
}

// When.

// covers: S1.1 S1.2 S3.11 S1.23
Deno.test("a lease is renewed every third of its ttl, and not before", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  const atMs: number[] = [];
  for (let ms = 1; ms <= 10_000; ms++) {
    await world.clock.advance(1);
    if (world.sent().includes("renew")) atMs.push(ms);
  }
  assertEquals(atMs, [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10_000]);
  assertEquals(lease.status, "held");
});

// covers: S1.2
Deno.test("renewEveryMs says how often", async () => {
  const world = new World();
  await world.lock({ ttlMs: 3000, renewEveryMs: 1500 }).acquire();
  assertEquals(world.sent(), "acquire");
  await assertRenewsIn(world, 1500);
});

// covers: S1.4 S1.23
Deno.test("each renewal asks for the full ttl", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  await world.clock.advance(1000);
  assertEquals(world.storage.sent.at(-1)!.command, {
    type: "renew",
    token: lease.token,
    fence: lease.fencingToken,
    ttlMs: 3000,
  });
  assertEquals((await world.lock().inspect()).holders[0]!.remainingMs, 3000);
});

// covers: S1.3
Deno.test("after a stall a lease is renewed once, and the next time a full period later", async () => {
  const world = new World();
  await world.lock({ ttlMs: 30_000, renewEveryMs: 1000 }).acquire();
  world.sent();
  world.clock.freeze(20_000);
  await world.clock.advance(0);
  assertEquals(world.sent(), "renew");
  await assertRenewsIn(world, 1000);
});

Deno.test("a renewal whose answer takes longer than the period is not joined by a second", async () => {
  const { world, storage } = counting();
  await world.lock({ storage, ttlMs: 3000, renewEveryMs: 100 }).acquire();
  storage.delayMs = 450;
  await world.clock.advance(2000);
  assertEquals(storage.mostInFlight, 1);
  assertEquals(storage.requests.map((r) => r.atMs), [0, 100, 551, 1002, 1453, 1904]);
});

// covers: G7
Deno.test("no timer is left when nothing is held", async () => {
  const { world, storage } = counting();
  const leases = await acquireMany(world, storage, 10);
  assertEquals(world.clock.pendingTimers, 1);
  await Promise.all(leases.map((lease) => lease.release()));
  assertEquals(world.clock.pendingTimers, 0);
});

Deno.test("a lease that has to be renewed sooner than the others is not late", async () => {
  const world = new World();
  await world.lock({ name: "slow", ttlMs: 60_000 }).acquire();
  await world.clock.advance(3);
  const fast = await world.lock({ name: "fast", ttlMs: 100 }).acquire();
  const { signal } = fast;
  await world.clock.advance(5000);
  assertEquals([fast.status, signal.aborted], ["held", false]);
});

// covers: G7
Deno.test("a loop that was armed anew leaves no older timer", async () => {
  const world = new World();
  const slow = await world.lock({ name: "slow", ttlMs: 60_000 }).acquire();
  const fast = await world.lock({ name: "fast", ttlMs: 100 }).acquire();
  assertEquals(world.clock.pendingTimers, 1);
  await Promise.all([slow.release(), fast.release()]);
  assertEquals(world.clock.pendingTimers, 0);
});

// covers: G6
Deno.test("leases that are renewed by the same loop are lost one by one, each at its own deadline", async () => {
  const world = new World();
  world.storage.inject({ type: "lose-request" }, { times: Infinity, when: isRenew });
  const leases = [];
  for (const ttlMs of [400, 1000, 700]) {
    leases.push(await world.lock({ name: `job ${ttlMs}`, ttlMs }).acquire());
  }
  const lostAtMs: number[] = [];
  leases.forEach((lease, i) => {
    lease.signal.onabort = () => lostAtMs[i] = world.clock.read().monotonicMs;
  });
  await world.clock.advance(2000);
  assertEquals(lostAtMs, [394, 988, 691]);
});

// Faults.

// covers: S1.5 S3.13 G6
Deno.test("a renewal that fails is retried with growing pauses until the deadline", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 10_000 }).acquire();
  world.storage.inject({ type: "lose-request" }, { times: Infinity });
  world.sent();
  const atMs: number[] = [];
  for (let ms = 0; ms < 11_000; ms += 0.5) {
    await world.clock.advance(0.5);
    if (world.sent()) atMs.push(world.clock.read().monotonicMs);
  }
  assertEquals(atMs.slice(0, 8), [
    3333,
    3345.5,
    3370.5,
    3420.5,
    3520.5,
    3720.5,
    4120.5,
    4620.5,
  ]);
  assert(atMs.at(-1)! > 9898 - 1000 && atMs.at(-1)! < 9898);
  assertEquals([lease.status, world.events.at(-1)], [
    "lost",
    { type: "lost", name: "job", fence: lease.fencingToken, reason: "expired" },
  ]);
});

// covers: S1.6 S3.13
Deno.test("a renewal that succeeds after failures brings the usual period back", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  world.storage.inject({ type: "lose-request" }, { times: 3 });
  await world.clock.advance(1100);
  assertEquals([lease.status, world.sent(), world.told()], [
    "held",
    "acquire renew renew renew renew",
    "acquired renewFailed renewFailed renewFailed renewed",
  ]);
  await assertRenewsIn(world, 988);
});

// covers: G11
Deno.test("a renewal whose reply was lost is asked for again, and the lease is held", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  world.storage.inject({ type: "lose-reply" }, { times: Infinity, when: isRenew });
  await world.clock.advance(2500);
  world.storage.heal();
  await world.clock.advance(2500);
  assertEquals([lease.status, await world.holders()], ["held", [lease.fencingToken]]);
});

Deno.test("a renewal that hangs is given up after requestTimeoutMs and asked for again", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000, requestTimeoutMs: 200 }).acquire();
  world.storage.inject({ type: "hang" });
  await world.clock.advance(1000);
  assertEquals(world.sent(), "acquire renew");
  await world.clock.advance(199);
  assertEquals(world.sent(), "");
  await world.clock.advance(1 + 12.5);
  assertEquals([world.sent(), lease.status], ["renew", "held"]);
});

// covers: G6
Deno.test("a renewal that hangs is given up when the lease is over", async () => {
  const world = new World();
  await world.lock({ ttlMs: 3000, requestTimeoutMs: 10_000 }).acquire();
  world.storage.inject({ type: "hang" }, { times: Infinity });
  await world.clock.advance(2968);
  assertEquals([world.told(), world.clock.pendingTimers], ["acquired lost", 0]);
});

// covers: S3.12
Deno.test("a renewal that is refused is the end, and the others go on", async () => {
  const world = new World();
  const [a, b] = [
    await world.lock({ name: "a", ttlMs: 3000 }).acquire(),
    await world.lock({ name: "b", ttlMs: 3000 }).acquire(),
  ];
  await world.other({ name: "a" }).forceRelease();
  await world.clock.advance(1000);
  assertEquals([a.status, b.status], ["lost", "held"]);
  world.sent();
  await world.clock.advance(3000);
  assertEquals(world.sent(), "renew renew renew");
});

Deno.test("ttls of 10 ms are held, without a busy loop", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 10 }).acquire();
  const timers = countTimers(world);
  await world.clock.advance(1000);
  const renewals = world.sent().split(" ").length - 1;
  assertEquals(lease.status, "held");
  assert(renewals >= 300 && renewals <= 340, `${renewals} renewals`);
  assert(timers.count <= 1500, `${timers.count} timers`);
});

for (const ttlMs of [10, 20, 40, 80]) {
  // covers: S3.13
  Deno.test(`a lease of ${ttlMs} ms outlives a renewal that failed`, async () => {
    const world = new World();
    const lease = await world.lock({ ttlMs, entropy: { uuid: () => "secret", random: () => 0.99 } })
      .acquire();
    world.storage.inject({ type: "lose-request" });
    await world.clock.advance(10 * ttlMs);
    assertEquals(lease.status, "held");
  });
}

Deno.test("a lease of 10 ms whose storage fails is lost in time, without a busy loop", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 10 }).acquire();
  world.storage.inject({ type: "lose-request" }, { times: Infinity });
  await world.clock.advance(100);
  assertEquals(lease.status, "lost");
  assert(world.sent().split(" ").length <= 5);
});

Deno.test("the loop of a long lease looks at the clocks four times a second, and no more", async () => {
  const world = new World();
  await world.lock({ ttlMs: 30 * 24 * 3_600_000 }).acquire();
  const looks = countTimers(world);
  await world.clock.advance(60_000);
  assertEquals(looks.count, 240);
});

// Many at once.

Deno.test("renewals that fall due together go in one request where the storage takes many", async () => {
  const { world, storage } = counting();
  await acquireMany(world, storage, 5, { ttlMs: 3000 });
  await world.clock.advance(1000);
  assertEquals(storage.renewals(), [5]);
});

Deno.test("renewals that fall due within a tenth of their period go along", async () => {
  const { world, storage } = counting();
  for (const name of ["a", "b", "c"]) {
    await world.lock({ storage, name, ttlMs: 3000 }).acquire();
    await world.clock.advance(60);
  }
  await world.clock.advance(820);
  assertEquals(storage.renewals(), [2]);
  await world.clock.advance(120);
  assertEquals(storage.renewals(), [1]);
});

Deno.test("a single renewal is not sent as one of many", async () => {
  const { world, storage } = counting();
  storage.executeAll = () => Promise.reject(new Error("not this way"));
  const lease = await world.lock({ storage, ttlMs: 3000 }).acquire();
  await world.clock.advance(5000);
  assertEquals(lease.status, "held");
});

Deno.test("one request has at most 256 renewals", async () => {
  const { world, storage } = counting();
  await acquireMany(world, storage, 600, { ttlMs: 3000 });
  await world.clock.advance(1000);
  assertEquals(storage.renewals(), [256, 256, 88]);
});

Deno.test("where the storage takes one at a time, at most 64 renewals are under way, and none is late", async () => {
  const { world, storage } = counting();
  const single = Object.assign(withoutWatch(storage), { executeAll: undefined });
  const leases = await acquireMany(world, single, 300, { ttlMs: 3000 });
  storage.mostInFlight = 0;
  storage.delayMs = 100;
  await world.clock.advance(10_000);
  assertEquals(storage.mostInFlight, 64);
  assertEquals(leases.filter((lease) => lease.status !== "held").length, 0);
});

Deno.test("while no more renewals can be sent, the loop looks every 20 ms and no more", async () => {
  const { world, storage } = counting();
  await acquireMany(world, withoutWatch(storage), 100, { ttlMs: 30_000 });
  storage.delayMs = 1e9;
  await world.clock.advance(10_000);
  const looks = countTimers(world);
  await world.clock.advance(1000);
  assert(looks.count <= 51, `${looks.count} looks`);
});

Deno.test("of many renewals in one request each stands alone", async () => {
  const { world, storage } = counting();
  const leases = await acquireMany(world, storage, 4, { ttlMs: 3000 });
  await storage.memory.execute("n1", { type: "evict", maxFence: Number.MAX_SAFE_INTEGER });
  storage.spoil = (results) =>
    results.map((r, i) =>
      i === 2 ? { status: "rejected", reason: new StorageError("no", { transient: true }) } : r
    );
  await world.clock.advance(1001);
  assertEquals(statuses(leases), ["held", "lost", "held", "held"]);
  storage.spoil = (r) => r;
  storage.renewals();
  await world.clock.advance(20);
  assertEquals(storage.renewals(), [1]);
});

const spoilings: readonly [what: string, spoil: (s: CountingStorage) => void][] = [
  ["is rejected", (s) =>
    s.spoil = () => {
      throw new StorageError("no", { transient: true });
    }],
  ["is too short", (s) => s.spoil = (results) => results.slice(1)],
  ["is empty", (s) => s.spoil = () => []],
  ["never comes", (s) => s.delayMs = 1e9],
  ["throws instead of rejecting", (s) =>
    s.executeAll = () => {
      throw new Error("at once");
    }],
];
for (const [what, spoil] of spoilings) {
  // covers: S1.5
  Deno.test(`an answer to many renewals that ${what} is retried until the deadline, and breaks nothing`, async () => {
    const { world, storage } = counting();
    const leases = await acquireMany(world, storage, 3, { ttlMs: 3000 });
    const { executeAll } = storage;
    spoil(storage);
    await world.clock.advance(2005);
    assertEquals(statuses(leases), ["held", "held", "held"]);
    storage.executeAll = executeAll;
    storage.spoil = (r) => r;
    storage.delayMs = 0;
    await world.clock.advance(5000);
    assertEquals(statuses(leases), ["held", "held", "held"]);
    await Promise.all(leases.map((lease) => lease.release()));
  });
}

// covers: S1.9 G7
Deno.test("release() waits out a request that renews others too, and nothing is sent for it after", async () => {
  const { world, storage } = counting();
  const [first, second] = await acquireMany(world, storage, 2, { ttlMs: 3000 });
  storage.delayMs = 500;
  await world.clock.advance(1000);
  assertEquals(storage.renewals(), [2]);
  storage.delayMs = 0;
  const released = first!.release();
  await world.clock.advance(499);
  assertEquals(await isPending(released, world.clock), true);
  await world.clock.advance(1);
  assertEquals([await released, second!.status], [true, "held"]);
  await world.clock.advance(3000);
  assertEquals(storage.renewals(), [1, 1, 1]);
});

Deno.test("a lease that is released by the listener of another one's loss harms nobody", async () => {
  const world = new World();
  const leases: Lease[] = [];
  const lock = world.lock({
    ttlMs: 3000,
    onEvent: (event) => void (event.type === "lost" && leases[1]!.release()),
  });
  for (const name of ["a", "b", "c"]) leases.push(await lock.withName(name).acquire());
  await world.other({ name: "a" }).forceRelease();
  await world.clock.advance(5000);
  assertEquals(statuses(leases), ["lost", "released", "held"]);
});

Deno.test("10,000 leases take at most 40 requests a second, and no timer is left after their release", async () => {
  const { world, storage } = counting();
  const leases: Lease[] = [];
  const lock = world.lock({ storage, onEvent: undefined });
  // Taken over a whole period, as in a process that runs for long.
  for (let i = 0; i < 10_000; i++) {
    leases.push(await lock.withName(`n${i}`).acquire());
    if (i % 100 === 99) await world.clock.advance(100);
  }
  storage.requests.length = 0;
  await world.clock.advance(30_000);
  const bySecond = new Map<number, number>();
  for (const { atMs } of storage.requests) {
    const second = Math.floor(atMs / 1000);
    bySecond.set(second, (bySecond.get(second) ?? 0) + 1);
  }
  const most = Math.max(...bySecond.values());
  assert(most <= 40, `${most} requests in one second`);
  assertEquals(leases.filter((lease) => !lease.isHeld()).length, 0);
  await Promise.all(leases.map((lease) => lease.release()));
  assertEquals(world.clock.pendingTimers, 0);
});

Deno.test("10,000 leases that begin at the same moment take at most 40 requests a second", async () => {
  const { world, storage } = counting();
  const leases = await acquireMany(world, storage, 10_000);
  storage.requests.length = 0;
  await world.clock.advance(30_000);
  assertEquals(storage.requests.length, 3 * Math.ceil(10_000 / 256));
  assertEquals(leases.filter((lease) => !lease.isHeld()).length, 0);
});

Deno.test("10,000 held leases take at most 3 kB of heap each", async () => {
  const output = await runScript(
    `
    import { Lock } from "./mod.ts";
    // Keeps nothing, so that only what a lease takes is measured.
    let fence = 0;
    const storage = {
      pollMs: { min: 5, max: 50 },
      maxClockSkewMs: 0,
      execute: (_, { type }) => Promise.resolve(type === "acquire" ? { type: "granted", fence: ++fence } : { type: "renewed" }),
    };
    const lock = new Lock({ storage, name: "warm" });
    const held = [await lock.acquire()];
    const used = () => { for (let i = 0; i < 5; i++) gc(); return Deno.memoryUsage().heapUsed; };
    const before = used();
    for (let i = 0; i < 10_000; i++) held.push(await lock.withName("name:" + i).acquire());
    const each = (used() - before) / 10_000;
    console.log(Math.round(each), held.filter((lease) => lease.isHeld()).length);
    `,
    { flags: ["--v8-flags=--expose-gc"], timeoutMs: 30_000 },
  );
  const [bytes, held] = output.trim().split(" ").map(Number) as [number, number];
  assertEquals(held, 10_001);
  assert(bytes <= 3000, `${bytes} bytes`);
  assert(bytes > 200, `${bytes} bytes: the measure is wrong`);
});

Deno.test("a process with a lease of 10 ms uses little of its core", async () => {
  const output = await runScript(`
    import { Lock, MemoryStorage } from "./mod.ts";
    const lease = await new Lock({ storage: new MemoryStorage(), name: "job", ttlMs: 40 }).acquire();
    const { user, system } = process.cpuUsage();
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const after = process.cpuUsage();
    console.log(Math.round((after.user + after.system - user - system) / 1000));
    await lease.release();
  `.replace("import {", `import process from "node:process";\nimport {`));
  assert(Number(output) < 500, `${output.trim()} ms of 1000`);
});

Deno.test("the loops of two clocks are two", async () => {
  const world = new World();
  const clock = new ManualClock(START_MS);
  await world.lock().acquire();
  await world.lock({ name: "other", clock }).acquire();
  assertEquals([world.clock.pendingTimers, clock.pendingTimers], [1, 1]);
});

// covers: G6
Deno.test("a loop whose every renewal hangs still declares each loss in time", async () => {
  const { world, storage } = counting();
  const leases = await acquireMany(world, withoutWatch(storage), 200, { ttlMs: 1000 });
  storage.delayMs = 1e9;
  const lostAtMs = new Set<number>();
  for (const lease of leases) {
    lease.signal.onabort = () => lostAtMs.add(world.clock.read().monotonicMs);
  }
  await world.clock.advance(2000);
  assertEquals([...lostAtMs], [988]);
});

Deno.test("a renewal that fails for good is retried all the same", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  const error = new StorageError("denied", { transient: false });
  world.storage.inject({ type: "error", error }, { times: 2 });
  await world.clock.advance(1500);
  assertEquals([lease.status, world.sent()], ["held", "acquire renew renew renew"]);
  assertEquals(await rejection(Promise.reject(error)), error);
});
