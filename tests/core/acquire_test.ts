import {
  assert,
  assertEquals,
  assertObjectMatch,
  assertRejects,
  assertStrictEquals,
} from "@std/assert";
import fc from "fast-check";
import {
  type AcquireCommand,
  type Command,
  Lease,
  type LeaseStorage,
  type LockOptions,
  LockTimeoutError,
  StorageError,
  type Watch,
} from "../../mod.ts";
import type { Fault } from "../../src/testing/mod.ts";
import { acquire as acquireCommand, release } from "../support/commands.ts";
import { isPending, rejection, withoutWatch, World } from "../support/world.ts";

const isAcquire = (command: Command): boolean => command.type === "acquire";
const isRelease = (command: Command): boolean => command.type === "release";
const denied = new StorageError("denied", { transient: false });

/** The acquires that our process sent, in order. */
function acquires(world: World): AcquireCommand[] {
  return world.storage.sent.map((e) => e.command).filter((c) => c.type === "acquire");
}

/** What was sent, whether a compensating release was sent once or, to be sure, twice. */
function sentOnce(world: World): string {
  return world.sent().replace("release release", "release");
}

/** A signal that counts who listens to it. */
function countingSignal(): { stop: AbortController; listeners: () => number } {
  const stop = new AbortController();
  const { signal } = stop;
  const live = new Set<unknown>();
  const add = signal.addEventListener.bind(signal) as (...args: unknown[]) => void;
  const remove = signal.removeEventListener.bind(signal) as (...args: unknown[]) => void;
  signal.addEventListener = (type: string, listener: unknown, options?: { once?: boolean }) => {
    live.add(listener);
    add(type, listener, options);
    if (options?.once) add(type, () => live.delete(listener), { once: true });
  };
  signal.removeEventListener = (type: string, listener: unknown) => {
    live.delete(listener);
    remove(type, listener);
  };
  return { stop, listeners: () => live.size };
}

/** A storage that counts its subscriptions. */
function countingWatches(storage: LeaseStorage): { storage: LeaseStorage; watches: () => number } {
  let watches = 0;
  const counting: LeaseStorage = {
    ...withoutWatch(storage),
    wakesTickets: storage.wakesTickets,
    watch(name, wake, mark): Watch {
      const watch = storage.watch!(name, wake, mark);
      watches++;
      return {
        get live() {
          return watch.live;
        },
        [Symbol.dispose]() {
          watches--;
          watch[Symbol.dispose]();
        },
      };
    },
  };
  return { storage: counting, watches: () => watches };
}

// tryAcquire()

// covers: S2.2 S2.18 S1.23 S4.1
Deno.test("tryAcquire() returns a lease of a free lock, with one request", async () => {
  const world = new World();
  const lease = await world.lock().tryAcquire();
  assertEquals([lease!.status, world.sent()], ["held", "acquire"]);
});

// covers: S1.17 S2.2 S4.1 S4.16 S5.14
Deno.test("tryAcquire() returns null while another token holds, with one request", async () => {
  const world = new World();
  await world.other().acquire();
  assertEquals([await world.lock().tryAcquire(), world.sent()], [null, "acquire"]);
  assertEquals(world.clock.pendingTimers, 1);
});

// covers: S1.16 S1.17 S1.23
Deno.test("tryAcquire() returns null without a request while a lease of its own process holds", async () => {
  const world = new World();
  await world.lock().acquire();
  world.sent();
  assertEquals([await world.lock().tryAcquire(), world.sent()], [null, ""]);
});

Deno.test("a lease of tryAcquire() keeps others of its process from asking", async () => {
  const world = new World();
  await world.lock().tryAcquire();
  world.sent();
  assertEquals([await world.lock().tryAcquire(), world.sent()], [null, ""]);
});

Deno.test("tryAcquire() with gate: false asks the storage although its own process holds", async () => {
  const world = new World();
  await world.lock().acquire();
  world.sent();
  assertEquals([await world.lock({ gate: false }).tryAcquire(), world.sent()], [null, "acquire"]);
});

// covers: S1.20 S2.7 S4.1 S4.16 S1.23
Deno.test("tryAcquire() takes a lock at once whose holder is dead", async () => {
  const world = new World();
  const old = await world.other({ ttlMs: 1000, autoRenew: false }).acquire();
  world.clock.freeze(1000);
  const next = await world.lock().tryAcquire();
  assert(next!.fencingToken > old.fencingToken);
  assertEquals(world.sent(), "acquire");
});

Deno.test("tryAcquire() never queues", async () => {
  const world = new World();
  await world.other().acquire();
  await world.lock({ fair: true }).tryAcquire();
  assertEquals([acquires(world)[0]!.queueMs, (await world.lock().inspect()).waiters], [0, 0]);
});

// covers: G11
Deno.test("tryAcquire() whose reply was lost asks again with the same token and is granted", async () => {
  const world = new World();
  world.storage.inject({ type: "lose-reply" }, { times: 2 });
  const trying = world.lock().tryAcquire();
  await world.clock.advance(200);
  const lease = await trying;
  assertEquals([lease!.status, await world.holders()], ["held", [lease!.fencingToken]]);
  assertEquals(acquires(world).map((c) => c.token), [lease!.token, lease!.token, lease!.token]);
});

// covers: S1.17 S4.2 G9
Deno.test("tryAcquire() rejects after three requests that failed, and sends a compensating release", async () => {
  const world = new World();
  world.storage.inject({ type: "lose-request" }, { times: 3 });
  const failed = rejection<StorageError>(world.lock().tryAcquire());
  await world.clock.advance(200);
  const error = await failed;
  assertEquals([error instanceof StorageError, error.transient], [true, true]);
  assertEquals(sentOnce(world), "acquire acquire acquire release");
  assertEquals(world.clock.pendingTimers, 0);
});

// covers: G9
Deno.test("tryAcquire() that is refused after a request that was lost releases what that one may leave", async () => {
  const world = new World();
  await world.other().acquire();
  world.storage.inject({ type: "lose-request" });
  const trying = world.lock().tryAcquire();
  await world.clock.advance(50);
  assertEquals([await trying, sentOnce(world)], [null, "acquire acquire release"]);
});

// covers: S4.2
Deno.test("tryAcquire() rejects at once for a fault that stays", async () => {
  const world = new World();
  world.storage.inject({ type: "error", error: denied });
  assertStrictEquals(await rejection(world.lock().tryAcquire()), denied);
  assertEquals(acquires(world).length, 1);
});

Deno.test("tryAcquire() pauses between its requests", async () => {
  const world = new World();
  const atMs: number[] = [];
  world.storage.inject({ type: "lose-request" }, {
    times: 3,
    when: () => atMs.push(world.clock.read().monotonicMs) > 0,
  });
  const failed = rejection(world.lock().tryAcquire());
  await world.clock.advance(200);
  await failed;
  assertEquals(atMs.slice(0, 3), [0, 25, 75]);
});

// covers: S2.6 S3.9 S3.10
Deno.test("tryAcquire() with onUnavailable skip returns null when the storage fails, and tells of it", async () => {
  const world = new World();
  world.storage.inject({ type: "lose-request" }, { times: 3 });
  const trying = world.lock({ onUnavailable: "skip" }).tryAcquire();
  await world.clock.advance(200);
  assertEquals(await trying, null);
  const [event] = world.events;
  assert(event!.type === "unavailable");
  assertEquals(
    (event as { error: Error }).error.message,
    'Cannot reach lock "job" as the connection was lost',
  );
});

// covers: G12
Deno.test("tryAcquire() with onUnavailable skip still rejects for a fault that stays", async () => {
  const world = new World();
  world.storage.inject({ type: "error", error: denied });
  assertStrictEquals(
    await rejection(world.lock({ onUnavailable: "skip" }).tryAcquire()),
    denied,
  );
});

Deno.test("acquire() with onUnavailable skip rejects all the same", async () => {
  const world = new World();
  world.storage.inject({ type: "lose-request" }, { times: Infinity });
  const failed = rejection(world.lock({ onUnavailable: "skip" }).acquire({ timeoutMs: 100 }));
  await world.clock.advance(100);
  assert(await failed instanceof StorageError);
});

// covers: G5 G9
Deno.test("a grant that is answered after its lease is over is given back, and asked for anew", async () => {
  const world = new World();
  world.storage.inject({ type: "late-reply", ms: 100 });
  const trying = world.lock({ ttlMs: 100, requestTimeoutMs: 5000 }).tryAcquire();
  await world.clock.advance(150);
  const lease = await trying;
  assertEquals([lease!.isHeld(), await world.holders()], [true, [lease!.fencingToken]]);
  assertEquals(world.sent(), "acquire release acquire");
  assertEquals(lease!.token, "secret-2");
});

// covers: G5
Deno.test("tryAcquire() whose grants all come too late rejects and says so", async () => {
  const world = new World();
  world.storage.inject({ type: "late-reply", ms: 100 }, { times: 3, when: isAcquire });
  const failed = rejection<StorageError>(
    world.lock({ ttlMs: 100, requestTimeoutMs: 5000 }).tryAcquire(),
  );
  await world.clock.advance(400);
  const error = await failed;
  assertEquals([error.message, error.transient], [
    'Cannot acquire lock "job" as the answer came after the lease was over: current value is 100 ms',
    true,
  ]);
  assertEquals(await world.holders(), []);
});

// covers: G9
Deno.test("a grant that is answered after a freeze is not used", async () => {
  const world = new World();
  world.storage.inject({ type: "late-reply", ms: 10 });
  const acquiring = world.lock({ ttlMs: 1000 }).acquire();
  await world.clock.advance(5);
  world.clock.freeze(2000);
  await world.clock.advance(50);
  const lease = await acquiring;
  assertEquals([lease.isHeld(), await world.holders()], [true, [lease.fencingToken]]);
});

for (const form of ["tryAcquire", "acquire"] as const) {
  // covers: G9
  Deno.test(`${form}() whose token was evicted meanwhile goes on with another`, async () => {
    const world = new World();
    world.storage.inject({ type: "lose-reply" });
    const acquiring = world.lock()[form]();
    await world.clock.advance(0);
    assertEquals(await world.other().forceRelease(), 1);
    await world.clock.advance(100);
    const lease = await acquiring;
    assertEquals([lease!.status, lease!.token], ["held", "secret-2"]);
  });
}

Deno.test("tryAcquire() whose every token is over rejects with a StorageError", async () => {
  const world = new World();
  const token = "used-up";
  await world.memory.execute("job", { type: "release", token, keepMs: 0, spentMs: 60_000 });
  const entropy = { uuid: () => token, random: () => 0 };
  const failed = rejection<StorageError>(world.lock({ entropy }).tryAcquire());
  await world.clock.advance(100);
  const error = await failed;
  assertEquals([error instanceof StorageError, error.message], [
    true,
    'Cannot acquire lock "job" as its token was released or evicted meanwhile',
  ]);
});

// acquire(): when it is free, and when it is released.

// covers: S1.23 S2.18 S5.14
Deno.test("acquire() of a free lock takes one request", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  assertEquals([lease.waitedMs, world.sent()], [0, "acquire"]);
});

// covers: G8 S1.18
Deno.test("acquire() gets the lock at once when it is released, where the storage gives hints", async () => {
  const world = new World();
  const lease = await world.other().acquire();
  const waiting = world.lock().acquire();
  await world.clock.advance(5000);
  await lease.release();
  const next = await waiting;
  assertEquals([next.isHeld(), next.waitedMs], [true, 5000]);
});

Deno.test("acquire() of one waiter with hints takes at most 4 requests during a hold of 10 s", async () => {
  const world = new World();
  const lease = await world.other({ ttlMs: 10_000 }).acquire();
  const waiting = world.lock().acquire();
  await world.clock.advance(9999);
  await lease.release();
  await waiting;
  assert(acquires(world).length <= 4, `${acquires(world).length} requests`);
});

Deno.test("acquire() of a fair waiter with hints takes at most 6 requests during a hold of 10 s", async () => {
  const world = new World();
  const lease = await world.other({ ttlMs: 10_000 }).acquire();
  const waiting = world.lock({ fair: true }).acquire();
  await world.clock.advance(9999);
  await lease.release();
  await waiting;
  assert(acquires(world).length <= 6, `${acquires(world).length} requests`);
});

// covers: S1.18
Deno.test("acquire() without hints polls with backoff, from pollMs.min to pollMs.max", async () => {
  const world = new World();
  await world.other().acquire();
  const stop = new AbortController();
  const waiting = rejection(
    world.lock({ storage: withoutWatch(world.storage) }).acquire({ signal: stop.signal }),
  );
  const atMs: number[] = [];
  for (let ms = 0; ms < 150; ms += 0.5) {
    await world.clock.advance(0.5);
    if (world.sent()) atMs.push(world.clock.read().monotonicMs);
  }
  // Half of each step, as the test's entropy adds no jitter.
  assertEquals(atMs, [0.5, 2.5, 7.5, 17.5, 37.5, 62.5, 87.5, 112.5, 137.5]);
  stop.abort();
  await waiting;
});

// covers: S2.7 G8
Deno.test("acquire() gets the lock of a dead holder when its ttl is over", async () => {
  for (const hints of [true, false]) {
    const world = new World();
    await world.other({ ttlMs: 3000, autoRenew: false }).acquire();
    const storage = hints ? world.storage : withoutWatch(world.storage);
    const waiting = world.lock({ storage }).acquire();
    await world.clock.advance(3000 + (hints ? 0 : 50));
    const { waitedMs } = await waiting;
    assert(waitedMs >= 3000 && waitedMs <= 3025, `${waitedMs} ms`);
  }
});

// covers: S5.7
Deno.test("acquire() asks again and again with the same token, so that it keeps its place", async () => {
  const world = new World();
  const lease = await world.other().acquire();
  const waiting = world.lock({ fair: true }).acquire();
  await world.clock.advance(30_000);
  await lease.release();
  const { token } = await waiting;
  assert(acquires(world).length > 4);
  assertEquals(new Set(acquires(world).map((c) => c.token)), new Set([token]));
});

const queues: readonly [what: string, hints: boolean, fair: boolean, queueMs: number][] = [
  ["a fair waiter", true, true, 10_000],
  ["a fair waiter without hints", false, true, 10_000],
  ["an unfair waiter with hints", true, false, 10_000],
  ["an unfair waiter without hints", false, false, 0],
];
for (const [what, hints, fair, queueMs] of queues) {
  // covers: G10
  Deno.test(`${what} leaves ${queueMs ? "a ticket" : "no ticket"}`, async () => {
    const world = new World();
    await world.other().acquire();
    const stop = new AbortController();
    const storage = hints ? world.storage : withoutWatch(world.storage);
    const waiting = rejection(world.lock({ storage, fair }).acquire({ signal: stop.signal }));
    await world.clock.advance(10);
    assertEquals(acquires(world).at(-1)!.queueMs, queueMs);
    assertEquals((await world.other().inspect()).waiters, queueMs ? 1 : 0);
    stop.abort();
    await waiting;
  });
}

const refreshes: readonly [what: string, hints: boolean, pollMs: { min: number; max: number }][] = [
  ["with hints", true, { min: 5, max: 50 }],
  ["with hints and a long poll", true, { min: 250, max: 5000 }],
  ["without hints", false, { min: 250, max: 5000 }],
];
for (const [what, hints, pollMs] of refreshes) {
  // covers: G10
  Deno.test(`a fair waiter ${what} never loses its place while it is alive`, async () => {
    const world = new World();
    await world.other({ ttlMs: 60_000 }).acquire();
    const stop = new AbortController();
    const base = hints ? countingWatches(world.storage).storage : withoutWatch(world.storage);
    const storage = { ...base, pollMs };
    const lock = world.lock({ storage, fair: true, queueMs: 1000 });
    const waiting = rejection(lock.acquire({ signal: stop.signal }));
    for (let i = 0; i < 200; i++) {
      await world.clock.advance(50);
      assertEquals((await world.other().inspect()).waiters, 1);
    }
    stop.abort();
    await waiting;
  });
}

// covers: G10
Deno.test("a fair waiter keeps its place while a lease of its own process, resumed, is in the way", async () => {
  const world = new World();
  const given = await world.other().acquire();
  const stop = new AbortController();
  const waiting = rejection(
    world.lock({ fair: true, queueMs: 1000 }).acquire({ signal: stop.signal }),
  );
  await world.clock.advance(10);
  await world.lock().resume(given.detach());
  for (let i = 0; i < 100; i++) {
    await world.clock.advance(100);
    assertEquals((await world.other().inspect()).waiters, 1);
  }
  stop.abort();
  await waiting;
});

// covers: G10
Deno.test("with fair, grants follow the order of the calls, over processes", async () => {
  const world = new World();
  const first = await world.other({ fair: true }).acquire();
  const order: number[] = [];
  const waiting = Array.from({ length: 6 }, (_, i) => {
    const lock = i % 2
      ? world.lock({ fair: true, gate: false })
      : world.other({ fair: true, gate: false });
    return lock.with(() => void order.push(i));
  });
  await world.clock.advance(10);
  await first.release();
  await Promise.all(waiting);
  assertEquals(order, [0, 1, 2, 3, 4, 5]);
});

Deno.test("a hint for another waiter wakes nobody else", async () => {
  const world = new World();
  const lease = await world.other({ capacity: 2, permits: 2 }).acquire();
  const options = { capacity: 2, permits: 2, gate: false };
  const waiting = [
    world.lock(options).acquire(),
    world.lock(options).acquire(),
    world.lock(options).acquire(),
  ];
  await world.clock.advance(10);
  world.sent();
  await lease.release();
  await world.clock.advance(0);
  assertEquals(world.sent(), "acquire");
  for (let i = 0; i < 3; i++) {
    const next = await waiting[i]!;
    await next.release();
    await world.clock.advance(0);
  }
  assertEquals(acquires(world).length, 2);
});

/** A storage that is some milliseconds away, one way. */
function far(world: World, base: LeaseStorage, oneWayMs: number): LeaseStorage {
  const trip = (): Promise<void> =>
    new Promise((resolve) => void world.clock.setTimer(oneWayMs, resolve));
  return {
    ...withoutWatch(base),
    pollMs: { min: 50, max: 1000 },
    wakesTickets: true,
    async execute(name, command) {
      await trip();
      const outcome = await base.execute(name, command);
      await trip();
      return outcome;
    },
    watch: (name, wake, mark) =>
      base.watch!(name, (next) => void trip().then(() => wake(next)), mark),
  };
}

/** A waiter of ours that was refused, and whose hints the test gives: for it, and for everybody. */
async function waitByHand(world: World, options: Partial<LockOptions> = {}): Promise<{
  hint: () => void;
  hintAll: () => void;
  stop: () => Promise<void>;
}> {
  let wake: (next?: string) => void = () => {};
  let mark = "";
  const storage: LeaseStorage = {
    ...withoutWatch(world.storage),
    wakesTickets: true,
    watch(_name, wakeIt, ofUs) {
      [wake, mark] = [wakeIt, ofUs];
      return { live: true, [Symbol.dispose]: () => {} };
    },
  };
  await world.memory.execute("job", acquireCommand("held"));
  const stop = new AbortController();
  const waiting = rejection(world.lock({ ...options, storage }).acquire({ signal: stop.signal }));
  await world.clock.advance(10);
  return {
    hint: () => wake(mark),
    hintAll: () => wake(),
    async stop() {
      stop.abort();
      await waiting;
    },
  };
}

/** Somebody who gives the lock back and is the first to take it again, whoever has been told. */
class Rival {
  readonly #memory: World["memory"];
  readonly #ttlMs: number;
  #count = 0;

  constructor(world: World, ttlMs = 30_000) {
    this.#memory = world.memory;
    this.#ttlMs = ttlMs;
  }

  async giveBack(): Promise<void> {
    await this.#memory.execute("job", release(`rival-${this.#count}`));
  }

  /** Gives back what it has; what becomes of its next acquire, sent in the same breath. */
  async takeAgain(): Promise<string> {
    this.#memory.execute("job", release(`rival-${this.#count}`));
    const command = acquireCommand(`rival-${++this.#count}`, { ttlMs: this.#ttlMs });
    return (await this.#memory.execute("job", command)).type;
  }
}

Deno.test("a waiter that lost the race for a hint is slower to follow the next ones", async () => {
  const world = new World();
  const rival = new Rival(world);
  await rival.takeAgain();
  const waiting = world.lock().acquire();
  await world.clock.advance(10);
  world.sent();
  const afterMs: number[] = [];
  for (let races = 0; races < 3; races++) {
    assertEquals(await rival.takeAgain(), "granted");
    const startMs = world.clock.read().monotonicMs;
    while (world.sent() === "") await world.clock.advance(0.5);
    afterMs.push(world.clock.read().monotonicMs - startMs);
  }
  assertEquals(afterMs, [0.5, 4, 8]);
  await rival.giveBack();
  await world.clock.advance(10);
  await (await waiting).release();
});

for (const holdMs of [100, 1000, 2000, 10_000]) {
  Deno.test(`who works ${holdMs} ms again and again lets a waiter in after some rounds`, async () => {
    const world = new World();
    const near = world.other({ storage: far(world, world.otherStorage, 1) });
    const pause = (): Promise<void> =>
      new Promise((resolve) => void world.clock.setTimer(holdMs, resolve));
    let rounds = 0;
    let wonAfter: number | undefined;
    const work = async (): Promise<void> => {
      for (; rounds < 20 && wonAfter === undefined; rounds++) await near.with(pause);
    };
    work();
    await world.clock.advance(50);
    world.lock({ storage: far(world, world.storage, 10) }).acquire().then(() => wonAfter = rounds);
    while (rounds < 20 && wonAfter === undefined) await world.clock.advance(holdMs);
    assert(wonAfter !== undefined && wonAfter <= 6, `after ${wonAfter} rounds`);
  });
}

for (const [gapMs, holdMs] of [[3, 200], [0, 200], [12, 200], [3, 700]] as const) {
  Deno.test(`hints in pairs, ${gapMs} ms apart and every ${holdMs} ms, are races too`, async () => {
    const world = new World();
    const rival = new Rival(world);
    await rival.takeAgain();
    let won = false;
    world.lock({ storage: far(world, world.storage, 10) }).acquire().then(() => won = true);
    await world.clock.advance(100);
    let rounds = 0;
    while (rounds++ < 20 && await rival.takeAgain() === "granted") {
      await world.clock.advance(rounds % 2 ? gapMs : holdMs);
    }
    await world.clock.advance(1000);
    assertEquals([won, rounds < 20], [true, true]);
  });
}

Deno.test("a hint that was followed already is not followed again", async () => {
  const world = new World();
  const { hint, hintAll, stop } = await waitByHand(world);
  hint();
  await world.clock.advance(10);
  world.sent();
  hint();
  hintAll();
  await world.clock.advance(100);
  assertEquals(world.sent(), "acquire");
  await stop();
});

// covers: G7
Deno.test("a hint after the end of an attempt does nothing", async () => {
  const world = new World();
  const { hint, stop } = await waitByHand(world);
  hint();
  await world.clock.advance(10);
  await stop();
  await world.clock.advance(0);
  hint();
  assertEquals(world.clock.pendingTimers, 0);
});

Deno.test("a new token is nobody's who was passed over", async () => {
  const world = new World();
  let count = 0;
  const entropy = { uuid: () => `token-${count++}-of-ours`, random: () => 0 };
  const { hint, stop } = await waitByHand(world, { entropy });
  for (let races = 0; races < 4; races++) {
    hint();
    await world.clock.advance(50);
  }
  await world.memory.execute("job", release("token-0-of-ours"));
  hint();
  await world.clock.advance(10);
  const { token, fair, queueMs } = acquires(world).at(-1)!;
  assertEquals([token, fair, queueMs], ["token-1-of-ours", false, 10_000]);
  await stop();
});

// covers: G10
Deno.test("a fair waiter keeps its place for queueMs, however often it came too late", async () => {
  const world = new World();
  const { hint, stop } = await waitByHand(world, { fair: true, queueMs: 10_000 });
  for (let races = 0; races < 4; races++) {
    hint();
    await world.clock.advance(50);
  }
  assertEquals(acquires(world).map((c) => c.queueMs), Array(5).fill(10_000));
  await stop();
});

// covers: G10
Deno.test("a waiter that was passed over and is 300 ms away refreshes its place in time", async () => {
  const world = new World();
  const rival = new Rival(world);
  await rival.takeAgain();
  const stop = new AbortController();
  const lock = world.lock({ storage: far(world, world.storage, 150) });
  const waiting = rejection(lock.acquire({ signal: stop.signal }));
  await world.clock.advance(1000);
  world.other().acquire({ signal: stop.signal }).catch(() => {});
  await world.clock.advance(1000);
  for (let races = 0; races < 4; races++) {
    assertEquals(await rival.takeAgain(), "granted");
    await world.clock.advance(400);
  }
  await world.clock.advance(1500);
  const again = acquireCommand(acquires(world)[0]!.token, { queueMs: 10 });
  assertObjectMatch(await world.memory.execute("job", again), { type: "held", ahead: 0 });
  stop.abort();
  await waiting;
});

// covers: G8
Deno.test("a dead waiter that was passed over delays nobody for longer than the ttl", async () => {
  const world = new World();
  const rival = new Rival(world, 100);
  let isDead = false;
  const storage: LeaseStorage = {
    ...withoutWatch(world.storage),
    wakesTickets: true,
    watch: (name, wake) => world.memory.watch(name, (next) => isDead || wake(next)),
    execute: (name, command) =>
      isDead ? new Promise(() => {}) : world.storage.execute(name, command),
  };
  await rival.takeAgain();
  world.lock({ storage, ttlMs: 100 }).acquire().catch(() => {});
  await world.clock.advance(10);
  for (let races = 0; races < 4; races++) {
    await rival.takeAgain();
    await world.clock.advance(10);
  }
  isDead = true;
  let wonAfterMs = 0;
  const waiting = world.other({ ttlMs: 100 }).acquire().then(() => true);
  while (await isPending(waiting, world.clock) && wonAfterMs++ < 1000) await world.clock.advance(1);
  assert(wonAfterMs <= 100 + 50, `after ${wonAfterMs} ms`);
});

// covers: G7
Deno.test("an abort between a hint and its late answer leaves no timer", async () => {
  const world = new World();
  const rival = new Rival(world);
  await rival.takeAgain();
  const stop = new AbortController();
  const waiting = rejection(world.lock().acquire({ signal: stop.signal }));
  await world.clock.advance(10);
  for (let races = 0; races < 2; races++) {
    await rival.takeAgain();
    await world.clock.advance(0);
  }
  stop.abort();
  await waiting;
  await world.clock.advance(0);
  assertEquals(world.clock.pendingTimers, 0);
});

Deno.test("a waiter that needs a new token listens for that one", async () => {
  const world = new World();
  const lease = await world.other().acquire();
  const marks: string[] = [];
  const { storage, watches } = countingWatches(world.storage);
  const noting: LeaseStorage = {
    ...withoutWatch(storage),
    wakesTickets: true,
    watch(name, wake, mark) {
      marks.push(mark);
      return storage.watch!(name, wake, mark);
    },
  };
  const entropy = { uuid: () => `token-${marks.length}-of-ours`, random: () => 0 };
  const waiting = world.lock({ storage: noting, entropy }).acquire();
  await world.clock.advance(10);
  await world.memory.execute("job", release("token-0-of-ours"));
  await world.clock.advance(10_000);
  assertEquals([marks, watches()], [["token-0-", "token-1-"], 1]);
  await lease.release();
  assertEquals((await waiting).token, "token-1-of-ours");
});

// covers: G8
Deno.test("a waiter that lost three races is the next, and others wait for it, but not for long", async () => {
  const world = new World();
  const rival = new Rival(world);
  await rival.takeAgain();
  const waiting = world.lock().acquire();
  await world.clock.advance(10);
  for (let races = 0; races < 4; races++) {
    assertEquals(await rival.takeAgain(), "granted");
    await world.clock.advance(10);
  }
  const { fair, queueMs } = acquires(world).at(-1)!;
  assertEquals([fair, queueMs], [true, 1000]);
  world.clock.freeze(600);
  assertEquals(await rival.takeAgain(), "held", "the lock is kept for the waiter");
  world.clock.freeze(401);
  assertEquals(await rival.takeAgain(), "granted", "the waiter did not come");
  await rival.giveBack();
  await world.clock.advance(1000);
  assertEquals((await waiting).isHeld(), true);
});

Deno.test("while a subscription is not live, a waiter polls", async () => {
  const world = new World();
  await world.other().acquire();
  const storage: LeaseStorage = {
    ...withoutWatch(world.storage),
    wakesTickets: true,
    watch: () => ({ live: false, [Symbol.dispose]: () => {} }),
  };
  const stop = new AbortController();
  const waiting = rejection(world.lock({ storage }).acquire({ signal: stop.signal }));
  await world.clock.advance(1000);
  assert(acquires(world).length > 30);
  stop.abort();
  await waiting;
});

// covers: G8
Deno.test("a hint that is lost costs a waiter no more than the ttl of the holder", async () => {
  const world = new World();
  const lease = await world.other({ ttlMs: 3000 }).acquire();
  const deaf: LeaseStorage = {
    ...withoutWatch(world.storage),
    wakesTickets: true,
    watch: () => ({ live: true, [Symbol.dispose]: () => {} }),
  };
  const waiting = world.lock({ storage: deaf }).acquire();
  await world.clock.advance(4000);
  await lease.release();
  await world.clock.advance(3050);
  assertEquals((await waiting).isHeld(), true);
});

// Time-outs.

/** A lock that is held, and what a waiter of it is told. */
for (const hints of [true, false]) {
  for (const timeoutMs of [1, 2, 3, 10, 100, 1000, 12_345]) {
    // covers: S1.19 S1.23
    Deno.test(`acquire() with a time-out of ${timeoutMs} ms ${hints ? "and hints" : "that polls"} rejects with a LockTimeoutError, then and no later`, async () => {
      const world = new World();
      await world.other({ ttlMs: 60_000 }).acquire();
      const storage = hints ? world.storage : withoutWatch(world.storage);
      const failed = rejection<LockTimeoutError>(world.lock({ storage }).acquire({ timeoutMs }));
      await world.clock.advance(timeoutMs - 0.001);
      assertEquals(await isPending(failed, world.clock), true);
      await world.clock.advance(0.001);
      const error = await failed;
      assertEquals([error instanceof LockTimeoutError, error.message], [
        true,
        `Cannot acquire lock "job" as others hold it: current value is ${timeoutMs} ms of waiting`,
      ]);
    });
  }
}

// covers: S1.19
Deno.test("the last sleep before a time-out is trimmed so that the lock is tried once more", async () => {
  const world = new World();
  const lease = await world.other({ ttlMs: 60_000 }).acquire();
  const deaf: LeaseStorage = {
    ...withoutWatch(world.storage),
    watch: () => ({ live: true, [Symbol.dispose]: () => {} }),
  };
  const waiting = world.lock({ storage: deaf }).acquire({ timeoutMs: 1000 });
  await world.clock.advance(900);
  await lease.release();
  await world.clock.advance(100);
  const next = await waiting;
  assertEquals([next.isHeld(), next.waitedMs], [true, 995]);
});

// covers: S1.19
Deno.test("the last try leaves as much time as the one before took", async () => {
  const world = new World();
  await world.other({ ttlMs: 60_000 }).acquire();
  world.storage.inject({ type: "late-reply", ms: 40 }, { times: Infinity, when: isAcquire });
  const failed = rejection(world.lock().acquire({ timeoutMs: 1000 }));
  const atMs: number[] = [];
  for (let ms = 0; ms < 1000; ms++) {
    await world.clock.advance(1);
    if (world.sent().includes("acquire")) atMs.push(ms + 1);
  }
  assert(await failed instanceof LockTimeoutError);
  assertEquals(atMs.at(-1), 1000 - 85);
});

// covers: S1.19
Deno.test("the time-out covers the wait in the process and the wait for the storage together", async () => {
  const world = new World();
  const local = await world.lock().acquire();
  const failed = rejection(world.lock().acquire({ timeoutMs: 1000 }));
  const other = world.other({ fair: true }).acquire();
  await world.clock.advance(600);
  await local.release();
  assertEquals((await other).isHeld(), true);
  await world.clock.advance(399.9);
  assertEquals(await isPending(failed, world.clock), true);
  await world.clock.advance(0.1);
  assert(await failed instanceof LockTimeoutError);
});

const onlyFaults: readonly [what: string, fault: Fault][] = [
  ["that cannot be reached", { type: "lose-request" }],
  ["that hangs", { type: "hang" }],
];
for (const [what, fault] of onlyFaults) {
  // covers: S4.2
  Deno.test(`acquire() of a storage ${what} rejects with a StorageError at the time-out`, async () => {
    const world = new World();
    world.storage.inject(fault, { times: Infinity });
    const failed = rejection<StorageError>(world.lock().acquire({ timeoutMs: 700 }));
    await world.clock.advance(699.9);
    assertEquals(await isPending(failed, world.clock), true);
    await world.clock.advance(0.1);
    const error = await failed;
    assertEquals([error instanceof StorageError, error.transient], [true, true]);
  });

  Deno.test(`acquire() of a storage ${what} after a refusal rejects with a LockTimeoutError`, async () => {
    const world = new World();
    await world.other().acquire();
    const failed = rejection(world.lock().acquire({ timeoutMs: 700 }));
    await world.clock.advance(0);
    world.storage.inject(fault, { times: Infinity });
    await world.clock.advance(700);
    assert(await failed instanceof LockTimeoutError);
  });

  // covers: G8
  Deno.test(`acquire() of a storage ${what} goes on until it can be reached again`, async () => {
    const world = new World();
    world.storage.inject(fault, { times: Infinity });
    const acquiring = world.lock({ ttlMs: 3000 }).acquire();
    await world.clock.advance(60_000);
    world.storage.heal();
    await world.clock.advance(1000 + 50);
    assertEquals((await acquiring).isHeld(), true);
  });
}

// covers: G12
Deno.test("acquire() rejects at once for a fault that stays, also after waiting", async () => {
  const world = new World();
  await world.other().acquire();
  const failed = rejection(world.lock({ storage: withoutWatch(world.storage) }).acquire());
  await world.clock.advance(100);
  world.storage.inject({ type: "error", error: denied });
  await world.clock.advance(50);
  assertStrictEquals(await failed, denied);
});

Deno.test("acquire() does not take longer than requestTimeoutMs for one request", async () => {
  const world = new World();
  world.storage.inject({ type: "hang" });
  const acquiring = world.lock({ requestTimeoutMs: 200 }).acquire();
  await world.clock.advance(200 + 13);
  assertEquals([(await acquiring).isHeld(), acquires(world).length], [true, 2]);
});

const wrongTimeouts: readonly [timeoutMs: unknown, error: typeof Error, message: string][] = [
  [
    0,
    RangeError,
    "Cannot use timeoutMs as it must be an integer from 1 to 2592000000 ms: current value is 0",
  ],
  [
    -1,
    RangeError,
    "Cannot use timeoutMs as it must be an integer from 1 to 2592000000 ms: current value is -1",
  ],
  [
    Infinity,
    RangeError,
    "Cannot use timeoutMs as it must be an integer from 1 to 2592000000 ms: current value is Infinity",
  ],
  ["5", TypeError, "Cannot use timeoutMs as it must be a number: current value is of type string"],
];
for (const [timeoutMs, error, message] of wrongTimeouts) {
  Deno.test(`acquire({ timeoutMs: ${Deno.inspect(timeoutMs)} }) is refused before anything is sent`, async () => {
    const world = new World();
    const failing = () => world.lock().acquire({ timeoutMs: timeoutMs as number });
    await assertRejects(failing, error, message);
    assertEquals(world.sent(), "");
  });
}

// Aborts: at each await of an attempt.

type Abortable = (world: World, signal: AbortSignal) => Promise<unknown>;
const acquireBy = (options?: Partial<LockOptions>): Abortable => (world, signal) =>
  world.lock(options).acquire({ signal });
const tryAcquireBy: Abortable = (world, signal) => world.lock().tryAcquire({ signal });

const aborts: readonly [
  what: string,
  begin: Abortable,
  prepare: (w: World) => unknown,
  afterMs: number,
  sent: string,
][] = [
  [
    "acquire() in the gate",
    acquireBy(),
    (w) => w.lock().acquire(),
    100,
    "acquire",
  ],
  [
    "acquire() while its request is under way",
    acquireBy(),
    (w) => w.storage.inject({ type: "hang" }),
    100,
    "acquire release",
  ],
  [
    "acquire() while it sleeps after a refusal, with a ticket",
    acquireBy(),
    (w) => w.other().acquire(),
    100,
    "acquire acquire release",
  ],
  [
    "acquire() while it sleeps after a refusal, without a ticket",
    (w, signal) => w.lock({ storage: withoutWatch(w.storage) }).acquire({ signal }),
    (w) => w.other().acquire(),
    1,
    "acquire",
  ],
  [
    "acquire() while it pauses after a fault",
    acquireBy(),
    (w) => w.storage.inject({ type: "lose-request" }),
    5,
    "acquire release",
  ],
  [
    "tryAcquire() while its request is under way",
    tryAcquireBy,
    (w) => w.storage.inject({ type: "hang" }),
    100,
    "acquire release",
  ],
  [
    "tryAcquire() while it pauses after a fault",
    tryAcquireBy,
    (w) => w.storage.inject({ type: "lose-request" }),
    5,
    "acquire release",
  ],
];
for (const [what, begin, prepare, afterMs, sent] of aborts) {
  // covers: G9 G7
  Deno.test(`an abort of ${what} rejects with its reason at once and leaves nothing behind`, async () => {
    const world = new World();
    await prepare(world);
    const timers = world.clock.pendingTimers;
    const { stop, listeners } = countingSignal();
    const reason = { not: "even an error" };
    let ended: unknown;
    begin(world, stop.signal).catch((r) => ended = r);
    await world.clock.advance(afterMs);
    stop.abort(reason);
    await Promise.resolve();
    await world.clock.advance(0);
    assertStrictEquals(ended, reason);
    assertEquals([sentOnce(world), listeners(), world.clock.pendingTimers], [sent, 0, timers]);
    assertEquals((await world.other().inspect()).waiters, 0);
    await world.clock.advance(60_000);
    assertEquals(world.sent().includes("acquire"), false);
  });
}

for (const form of ["acquire", "tryAcquire"] as const) {
  Deno.test(`${form}() with an aborted signal rejects with its reason and sends nothing`, async () => {
    const world = new World();
    const reason = await rejection<unknown>(
      world.lock()[form]({ signal: AbortSignal.abort("early") }),
    );
    assertEquals([reason, world.sent()], ["early", ""]);
  });

  // covers: G9
  Deno.test(`${form}() that is aborted as the grant arrives gives it back`, async () => {
    const world = new World();
    const stop = new AbortController();
    world.storage.inject({ type: "late-reply", ms: 50 });
    const ended = rejection<unknown>(world.lock()[form]({ signal: stop.signal }));
    world.clock.setTimer(50, () => stop.abort("now"));
    await world.clock.advance(50);
    assertEquals([await ended, await world.holders()], ["now", []]);
  });

  // covers: G7
  Deno.test(`${form}() that is aborted at any moment gives a lease that is held, or nothing`, async () => {
    const outcomes = new Set<string>();
    for (let delay = 0; delay < 40; delay++) {
      const world = new World();
      const stop = new AbortController();
      const ended = world.lock()[form]({ signal: stop.signal }).catch((reason) => reason);
      for (let i = 0; i < delay; i++) await Promise.resolve();
      stop.abort("now");
      const outcome = await ended;
      await world.clock.advance(0);
      const isLease = outcome instanceof Lease && outcome.isHeld();
      assert(isLease || outcome === "now");
      assertEquals((await world.holders()).length, isLease ? 1 : 0);
      outcomes.add(isLease ? "lease" : outcome);
    }
    assertEquals([...outcomes], ["now", "lease"]);
  });

  // covers: G7
  Deno.test(`${form}() that is granted leaves no listener on the signal, and a later abort does nothing`, async () => {
    const world = new World();
    const { stop, listeners } = countingSignal();
    const lease = await world.lock()[form]({ signal: stop.signal });
    assertEquals(listeners(), 0);
    stop.abort();
    await world.clock.advance(0);
    assertEquals(lease!.status, "held");
  });
}

Deno.test("an abort in a listener of the refusal ends the attempt before it subscribes", async () => {
  const world = new World();
  await world.other().acquire();
  const stop = new AbortController();
  const lock = world.lock({ onEvent: () => stop.abort("enough") });
  assertEquals(await rejection<unknown>(lock.acquire({ signal: stop.signal })), "enough");
});

// covers: G9
Deno.test("an abort between two requests sends no second", async () => {
  const world = new World();
  const token = "used-up";
  await world.memory.execute("job", { type: "release", token, keepMs: 0, spentMs: 60_000 });
  const stop = new AbortController();
  let count = 0;
  const entropy = {
    uuid: () => {
      if (count++ === 1) stop.abort("between");
      return token;
    },
    random: () => 0,
  };
  const ended = rejection<unknown>(world.lock({ entropy }).acquire({ signal: stop.signal }));
  await world.clock.advance(0);
  assertEquals([await ended, world.sent()], ["between", "acquire"]);
});

// What an attempt leaves.

// covers: G7
Deno.test("acquire() that slept many times leaves no listener on the signal", async () => {
  const world = new World();
  const lease = await world.other().acquire();
  const { stop, listeners } = countingSignal();
  const storage = withoutWatch(world.storage);
  const waiting = world.lock({ storage }).acquire({ signal: stop.signal });
  await world.clock.advance(1000);
  assertEquals(listeners(), 1);
  await lease.release();
  await world.clock.advance(50);
  await waiting;
  assertEquals(listeners(), 0);
});

// covers: G7
Deno.test("acquire() that was granted keeps no subscription", async () => {
  const world = new World();
  const { storage, watches } = countingWatches(world.storage);
  const lease = await world.other().acquire();
  const waiting = world.lock({ storage }).acquire();
  await world.clock.advance(10);
  assertEquals(watches(), 1);
  await lease.release();
  await waiting;
  assertEquals(watches(), 0);
});

// covers: G7 G9
Deno.test("acquire() that timed out keeps no subscription, no timer and no ticket", async () => {
  const world = new World();
  const { storage, watches } = countingWatches(world.storage);
  await world.other({ autoRenew: false }).acquire();
  const failed = rejection(world.lock({ storage }).acquire({ timeoutMs: 100 }));
  await world.clock.advance(100);
  await failed;
  await world.clock.advance(0);
  assertEquals([watches(), world.clock.pendingTimers], [0, 0]);
  assertEquals((await world.other().inspect()).waiters, 0);
});

// covers: G9
Deno.test("the compensating release is sent at once, and again when the abandoned request settles", async () => {
  const world = new World();
  world.storage.inject({ type: "late-reply", ms: 500 });
  const stop = new AbortController();
  const ended = rejection<unknown>(world.lock().acquire({ signal: stop.signal }));
  await world.clock.advance(100);
  stop.abort("enough");
  await ended;
  await world.clock.advance(0);
  assertEquals([world.sent(), await world.holders()], ["acquire release", []]);
  await world.clock.advance(399);
  assertEquals(world.sent(), "");
  await world.clock.advance(1);
  assertEquals([world.sent(), world.clock.pendingTimers], ["release", 0]);
});

// covers: G9
Deno.test("the compensating release is sent again when the ttl is over, if the request never settles", async () => {
  const world = new World();
  const stuck: LeaseStorage = {
    ...withoutWatch(world.storage),
    execute: (name, command, options) => {
      const done = world.storage.execute(name, command, options);
      return command.type === "acquire" ? new Promise(() => {}) : done;
    },
  };
  const failed = rejection(
    world.lock({ storage: stuck, ttlMs: 3000 }).acquire({ timeoutMs: 100 }),
  );
  await world.clock.advance(100);
  assert(await failed instanceof StorageError);
  await world.clock.advance(0);
  assertEquals([world.sent(), await world.holders()], ["acquire release", []]);
  await world.clock.advance(3000);
  assertEquals([world.sent(), world.clock.pendingTimers], ["release", 0]);
});

// covers: G9 G11
Deno.test("an acquire that arrives after its compensating release grants nothing", async () => {
  const world = new World();
  world.storage.inject({ type: "duplicate", afterMs: 300 });
  world.storage.inject({ type: "hang" }, { when: isRelease });
  const stop = new AbortController();
  const { signal } = stop;
  const acquiring = world.lock().acquire({ signal });
  stop.abort("now");
  await rejection<unknown>(acquiring);
  await world.clock.advance(5000);
  await world.clock.advance(300);
  assertEquals(await world.holders(), []);
});

Deno.test("a compensating release that fails does no harm", async () => {
  const world = new World();
  world.storage.inject({ type: "hang" }, { times: Infinity });
  const failed = rejection(world.lock().acquire({ timeoutMs: 100 }));
  await world.clock.advance(100);
  await failed;
  await world.clock.advance(60_000);
  assertEquals(world.clock.pendingTimers, 0);
});

Deno.test("an attempt that was refused only, and had no ticket, sends no compensating release", async () => {
  const world = new World();
  await world.other().acquire();
  const failed = rejection(
    world.lock({ storage: withoutWatch(world.storage) }).acquire({ timeoutMs: 100 }),
  );
  await world.clock.advance(1000);
  await failed;
  assertEquals(world.sent().includes("release"), false);
});

const waitUntils: readonly [
  what: string,
  of: (wait: LockOptions["waitUntil"]) => [object, object],
][] = [
  ["of the lock", (waitUntil) => [{ waitUntil }, {}]],
  ["of the call", (waitUntil) => [{}, { waitUntil }]],
];
for (const [what, of] of waitUntils) {
  // covers: G9
  Deno.test(`the compensating release is given to waitUntil ${what}, as one promise that settles`, async () => {
    const world = new World();
    const work: Promise<unknown>[] = [];
    const [ofLock, ofCall] = of((promise) => work.push(promise));
    world.storage.inject({ type: "late-reply", ms: 500 });
    const failed = rejection(world.lock(ofLock).acquire({ timeoutMs: 100, ...ofCall }));
    await world.clock.advance(100);
    await failed;
    assertEquals([work.length, await isPending(work[0]!, world.clock)], [1, true]);
    await world.clock.advance(400);
    await work[0];
    assertEquals(world.sent(), "acquire release release");
  });
}

// covers: G7 G9
Deno.test("whatever becomes of requests, an attempt that is aborted settles at once and leaves nothing", async () => {
  const fault: fc.Arbitrary<Fault | undefined> = fc.oneof(
    fc.constantFrom<Fault | undefined>(
      undefined,
      { type: "lose-request" },
      { type: "lose-reply" },
      { type: "hang" },
      { type: "hang-after" },
    ),
    fc.nat(2000).map((ms): Fault => ({ type: "late-reply", ms })),
    fc.nat(900).map((afterMs): Fault => ({ type: "duplicate", afterMs })),
  );
  await fc.assert(
    fc.asyncProperty(
      fc.array(fault, { maxLength: 6 }),
      fc.nat(3000),
      fc.boolean(),
      fc.boolean(),
      fc.constantFrom("acquire", "tryAcquire"),
      async (faults, afterMs, isHeldByOther, fair, form) => {
        const world = new World();
        const other = isHeldByOther ? await world.other({ ttlMs: 1500 }).acquire() : undefined;
        faults.forEach((f) => f && world.storage.inject(f));
        const { stop, listeners } = countingSignal();
        const lock = world.lock({ ttlMs: 1000, queueMs: 1000, fair });
        let outcome: unknown = "pending";
        const attempt = form === "acquire"
          ? lock.acquire({ signal: stop.signal })
          : lock.tryAcquire({ signal: stop.signal });
        attempt.then((lease) => outcome = lease, (reason) => outcome = reason);
        await world.clock.advance(afterMs);
        stop.abort("stop");
        await world.clock.advance(0);
        assert(outcome !== "pending");
        assertEquals(listeners(), 0);
        await other?.release();
        if (outcome instanceof Lease) outcome.release().catch(() => {});
        world.storage.heal();
        // One ttl after the last copy has arrived.
        await world.clock.advance(2000 + 1000);
        assertEquals([await world.holders(), world.clock.pendingTimers], [[], 0]);
        assertEquals((await world.other().inspect()).waiters, 0);
        assert(await world.other().tryAcquire());
      },
    ),
    { numRuns: 150 },
  );
});

// Memory and order.

Deno.test("a refusal is told once for each attempt", async () => {
  const world = new World();
  const lease = await world.other({ ttlMs: 5000 }).acquire();
  const waiting = world.lock({ fair: true }).acquire();
  await world.clock.advance(30_000);
  await lease.release();
  await waiting;
  assertEquals(world.told(), "contended acquired");
});

// covers: S5.14
Deno.test("two concurrent with() run one after the other", async () => {
  const world = new World();
  const log: string[] = [];
  const run = (name: string, lock = world.lock()) =>
    lock.with(async () => {
      log.push(`${name} in`);
      await world.clock.advance(0);
      log.push(`${name} out`);
    });
  const all = Promise.all([run("a"), run("b"), run("c", world.other())]);
  while (log.length < 6) await world.clock.advance(1);
  await all;
  for (let i = 0; i < log.length; i += 2) assertEquals(log[i + 1], log[i]!.replace("in", "out"));
  assertEquals(log.length, 6);
});
