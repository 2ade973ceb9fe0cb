import { assert, assertEquals } from "@std/assert";
import type { Stamp } from "../../src/core/clock.ts";
import { Gate, type Turn } from "../../src/core/gate.ts";
import { Lock, MemoryStorage } from "../../mod.ts";
import type { Command, ExecuteOptions, LeaseStorage, OutcomeOf } from "../../mod.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { turn as macrotask } from "../../src/testing/manual_clock.ts";
import { isPending, rejection, withoutWatch, World } from "../support/world.ts";

const at = (ms: number): Stamp => ({ monotonicMs: ms, wallMs: 1_700_000_000_000 + ms });

/** One line in front of a storage of its own. */
class Line {
  readonly gate = new Gate();
  readonly woken: string[] = [];

  join(who: string, permits = 1, capacity = 1): Turn {
    return this.gate.join("job", permits, capacity, () => this.woken.push(who));
  }

  /** A waiter that promises to act within a time. */
  waiter(who: string, promiseMs: number, now = at(0)): Turn {
    const turn = this.join(who);
    turn.promise({ since: now, ms: promiseMs });
    return turn;
  }

  /** A holder that is in the way for a time. */
  holder(who: string, leftMs: number, permits = 1, capacity = 1): Turn {
    const turn = this.join(who, permits, capacity);
    turn.hold((now) => leftMs - now.monotonicMs);
    return turn;
  }

  taken(): string {
    return this.woken.splice(0).join(" ");
  }
}

// covers: S1.16 S1.18
Deno.test("only the first in line may talk to the storage", () => {
  const line = new Line();
  const [a, b, c] = [line.waiter("a", 50), line.waiter("b", 70), line.waiter("c", 90)];
  assertEquals([a.blockedMs(at(0)), b.blockedMs(at(0)), c.blockedMs(at(0))], [0, 50, 70]);
});

Deno.test("who leaves the line wakes the first, who may talk then", () => {
  const line = new Line();
  const [a, b, c] = [line.waiter("a", 50), line.waiter("b", 70), line.waiter("c", 90)];
  a.leave();
  assertEquals([line.taken(), b.blockedMs(at(1)), c.blockedMs(at(1))], ["b", 0, 69]);
});

Deno.test("who leaves from the middle of the line costs nobody its place", () => {
  const line = new Line();
  const [a, b, c] = [line.waiter("a", 50), line.waiter("b", 70), line.waiter("c", 90)];
  b.leave();
  assertEquals([a.blockedMs(at(1)), c.blockedMs(at(1))], [0, 49]);
});

Deno.test("a holder is in the way for as long as it may hold, and wakes the first when it leaves", () => {
  const line = new Line();
  const a = line.holder("a", 500);
  const b = line.waiter("b", 1000);
  assertEquals(b.blockedMs(at(100)), 400);
  a.leave();
  assertEquals([line.taken(), b.blockedMs(at(100))], ["b", 0]);
});

Deno.test("who becomes a holder wakes the next in line", () => {
  const line = new Line();
  const a = line.waiter("a", 50);
  line.waiter("b", 50);
  a.hold(() => 500);
  assertEquals(line.taken(), "b");
});

const rooms: readonly [
  what: string,
  held: number[],
  wanted: number,
  capacity: number,
  ms: number,
][] = [
  ["a mutex that is held", [1], 1, 1, 100],
  ["a semaphore with room", [1, 1], 1, 3, 0],
  ["a full semaphore", [1, 1, 1], 1, 3, 100],
  ["a semaphore with too little room", [1, 1], 2, 3, 100],
  ["a semaphore with too little room beside a big holder", [2], 2, 3, 100],
  ["a reader beside readers", [1, 1], 1, 100, 0],
  ["a writer beside readers", [1, 1], 100, 100, 100],
];
for (const [what, held, permits, capacity, ms] of rooms) {
  Deno.test(`a newcomer at ${what} is kept out for ${ms} ms`, () => {
    const line = new Line();
    held.forEach((p, i) => line.holder(`h${i}`, 100 + i, p, capacity));
    assertEquals(line.gate.blockedByHoldersMs("job", permits, capacity, at(0)), ms);
    assertEquals(line.join("x", permits, capacity).blockedMs(at(0)), ms);
  });
}

Deno.test("a holder whose time is over keeps nobody out, although it has not left", () => {
  const line = new Line();
  line.holder("a", 100);
  const b = line.waiter("b", 1000);
  assertEquals([b.blockedMs(at(99)), b.blockedMs(at(100))], [1, 0]);
});

Deno.test("a holder whose time is over leaves its permits to others beside one who holds", () => {
  const line = new Line();
  line.holder("dead", 100, 1, 2);
  line.holder("alive", 500, 1, 2);
  assertEquals(line.gate.blockedByHoldersMs("job", 1, 2, at(200)), 0);
  assertEquals(line.gate.blockedByHoldersMs("job", 2, 2, at(200)), 300);
});

Deno.test("who leaves twice does nothing to those who came since", () => {
  const line = new Line();
  const a = line.waiter("a", 50);
  a.leave();
  line.waiter("b", 1000);
  a.leave();
  assertEquals(line.waiter("c", 1000).blockedMs(at(10)), 990);
});

// covers: G8
Deno.test("a front waiter that does not act in time is passed", () => {
  const line = new Line();
  line.waiter("dead", 50);
  const [b, c] = [line.waiter("b", 1000), line.waiter("c", 1000)];
  assertEquals([b.blockedMs(at(49)), b.blockedMs(at(50)), c.blockedMs(at(50))], [1, 0, 950]);
});

// covers: G8
Deno.test("hints go to those who are alive, not to a dead waiter in front of them", () => {
  const line = new Line();
  line.waiter("dead", 50);
  const [b, c] = [line.waiter("b", 1000), line.waiter("c", 1000)];
  assertEquals(b.blockedMs(at(60)), 0);
  b.hold(() => 500);
  assertEquals([line.taken(), c.blockedMs(at(60))], ["c", 500]);
  b.leave();
  assertEquals([line.taken(), c.blockedMs(at(60))], ["c", 0]);
});

Deno.test("a waiter that was passed and comes back stands where it stood", () => {
  const line = new Line();
  const slow = line.waiter("slow", 50);
  const b = line.waiter("b", 1000);
  assertEquals(b.blockedMs(at(60)), 0);
  const c = line.waiter("c", 1000);
  assertEquals(slow.blockedMs(at(70)), 0);
  slow.promise({ since: at(70), ms: 50 });
  assertEquals([b, c].map((turn) => turn.blockedMs(at(75))), [45, 925]);
  slow.leave();
  assertEquals([line.taken(), b.blockedMs(at(80))], ["b", 0]);
});

Deno.test("a waiter that was passed and comes back to an empty line stands in the line of the others", () => {
  const line = new Line();
  const slow = line.waiter("slow", 50);
  const b = line.waiter("b", 1000);
  assertEquals(b.blockedMs(at(60)), 0);
  b.leave();
  const c = line.waiter("c", 1000);
  assertEquals([c.blockedMs(at(60)), slow.blockedMs(at(70))], [0, 0]);
  slow.promise({ since: at(70), ms: 50 });
  assertEquals(c.blockedMs(at(80)), 40);
  slow.leave();
  c.leave();
  line.taken();
});

Deno.test("a waiter that was passed and still wins is in the way of newcomers", () => {
  const line = new Line();
  const slow = line.waiter("slow", 50);
  const b = line.waiter("b", 1000);
  assertEquals(b.blockedMs(at(60)), 0);
  b.leave();
  slow.hold(() => 500);
  assertEquals(line.join("c").blockedMs(at(70)), 500);
});

Deno.test("somebody who joins while another is about to promise does not pass it", () => {
  const line = new Line();
  const a = line.join("a");
  const b = line.join("b");
  assert(b.blockedMs(at(0)) > 0);
  assertEquals(a.blockedMs(at(0)), 0);
});

Deno.test("lines of different names do not meet", () => {
  const gate = new Gate();
  gate.join("a", 1, 1, () => {}).hold(() => 100);
  assertEquals(gate.join("b", 1, 1, () => {}).blockedMs(at(0)), 0);
});

Deno.test("the gate of a storage is one, whatever the lock", () => {
  const [one, two] = [new MemoryStorage(), new MemoryStorage()];
  assert(Gate.of(one) === Gate.of(one) && Gate.of(one) !== Gate.of(two));
});

// In front of a storage.

/** A storage whose answers take a turn of the event loop; counts who asks at the same time. */
class SlowStorage implements LeaseStorage {
  readonly pollMs = { min: 5, max: 50 };
  readonly maxClockSkewMs = 0;
  readonly wakesTickets = true;
  readonly #memory = new MemoryStorage();
  acquires = 0;
  acquiring = 0;
  mostAcquiring = 0;

  async execute<C extends Command>(
    name: string,
    command: C,
    options?: ExecuteOptions,
  ): Promise<OutcomeOf<C>> {
    const isAcquire = command.type === "acquire";
    if (isAcquire) {
      this.acquires++;
      this.mostAcquiring = Math.max(this.mostAcquiring, ++this.acquiring);
    }
    const outcome = await this.#memory.execute(name, command, options);
    await macrotask();
    if (isAcquire) this.acquiring--;
    return outcome;
  }

  watch(name: string, wake: (next?: string) => void): ReturnType<MemoryStorage["watch"]> {
    return this.#memory.watch(name, wake);
  }
}

const SECTIONS = 1000;

/** Reads, awaits, and writes back, so many times at once; gives the counter at the end. */
async function countTo(run: (section: () => Promise<void>) => Promise<unknown>): Promise<number> {
  let counter = 0;
  const section = async (): Promise<void> => {
    const read = counter;
    await macrotask();
    counter = read + 1;
  };
  await Promise.all(Array.from({ length: SECTIONS }, () => run(section)));
  return counter;
}

// covers: G1 G8 S5.14 S1.16
Deno.test(`${SECTIONS} concurrent sections of one process lose no update, and one waiter talks at a time`, async () => {
  const storage = new SlowStorage();
  const lock = new Lock({ storage, name: "counter" });
  assertEquals(await countTo((section) => lock.with(section)), SECTIONS);
  assertEquals(storage.mostAcquiring, 1);
  assert(storage.acquires <= 2 * SECTIONS, `${storage.acquires} requests`);
});

Deno.test(`${SECTIONS} concurrent sections without the lock lose updates`, async () => {
  assert(await countTo((section) => section()) < SECTIONS);
});

Deno.test("without the gate, waiters of one process talk at the same time", async () => {
  const storage = new SlowStorage();
  const lock = new Lock({ storage, name: "counter", gate: false });
  let counter = 0;
  await Promise.all(Array.from({ length: 20 }, () => lock.with(() => void counter++)));
  assertEquals([counter, storage.mostAcquiring > 10], [20, true]);
});

// covers: S1.16
Deno.test("a waiter behind a lease of its own process sends nothing until it is released", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  const waiting = world.lock().acquire();
  await world.clock.advance(20_000);
  assertEquals(world.sent().includes("acquire", 1), false);
  await lease.release();
  assertEquals((await waiting).waitedMs, 20_000);
});

for (const hints of [true, false]) {
  // covers: S1.16 S1.18
  Deno.test(`while the front waiter ${hints ? "waits for a hint" : "polls"}, those behind it send nothing`, async () => {
    const world = new World();
    const lease = await world.other({ ttlMs: 3000 }).acquire();
    const lock = world.lock({ storage: hints ? world.storage : withoutWatch(world.storage) });
    const waiting = [1, 2, 3, 4].map(() => lock.acquire({ timeoutMs: 60_000 }).catch(() => null));
    await world.clock.advance(59_999);
    const tokens = world.storage.sent.map(({ command }) => "token" in command && command.token);
    assertEquals([tokens.length > 20, new Set(tokens).size], [true, 1]);
    await world.clock.advance(1);
    await Promise.all(waiting);
    await lease.release();
  });
}

// covers: S1.18 S1.23
Deno.test("waiters of one process are served in the order of their calls", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  const order: number[] = [];
  const waiting = Array.from({ length: 10 }, (_, i) => world.lock().with(() => void order.push(i)));
  await world.clock.advance(1);
  await lease.release();
  await Promise.all(waiting);
  assertEquals(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
});

const goings: readonly [
  what: string,
  options: (stop: AbortController) => object,
  end: (s: AbortController) => void,
][] = [
  ["times out", () => ({ timeoutMs: 50 }), () => {}],
  ["is aborted", (stop) => ({ signal: stop.signal }), (stop) => stop.abort()],
];
for (const [what, options, end] of goings) {
  for (const isFront of [true, false]) {
    // covers: G9 S1.11
    Deno.test(`a waiter ${isFront ? "in front" : "in the gate"} that ${what} lets the next one go on`, async () => {
      const world = new World();
      const lease = await (isFront ? world.other() : world.lock()).acquire();
      const stop = new AbortController();
      const going = rejection(world.lock().acquire(options(stop)));
      const staying = world.lock().acquire();
      await world.clock.advance(50);
      end(stop);
      await going;
      await world.clock.advance(0);
      await lease.release();
      await world.clock.advance(0);
      assertEquals((await staying).isHeld(), true);
    });
  }
}

// covers: G8
Deno.test("a waiter goes on although the one in front of it has died with its timers", async () => {
  const world = new World();
  const lease = await world.other({ ttlMs: 1000, autoRenew: false }).acquire();
  // The process of the front waiter never runs again: neither its timers nor its hints arrive.
  const dead = {
    read: () => world.clock.read(),
    setTimer: () => ({ [Symbol.dispose]: () => {} }),
  };
  world.lock({ clock: dead }).acquire().catch(() => {});
  await world.clock.advance(0);
  const next = world.lock().acquire();
  await world.clock.advance(3500);
  assertEquals([lease.status, (await next).isHeld()], ["lost", true]);
});

// covers: G8
Deno.test("waiters behind one that has died are served without delay once it was passed", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 60_000 }).acquire();
  const dead = {
    read: () => world.clock.read(),
    setTimer: () => ({ [Symbol.dispose]: () => {} }),
  };
  world.lock({ clock: dead }).acquire().catch(() => {});
  await world.clock.advance(0);
  const served: number[] = [];
  const waiting = [1, 2, 3].map((i) =>
    world.lock({ ttlMs: 60_000 }).with(() => void served.push(i))
  );
  await lease.release();
  await world.clock.advance(62_000);
  await Promise.all(waiting);
  assertEquals(served, [1, 2, 3]);
});

// covers: G8
Deno.test("a waiter that is named by a hint asks, although another of its process came back in front of it", async () => {
  const world = new World();
  const lease = await world.other({ ttlMs: 60_000 }).acquire();
  const clock = new ManualClock(world.clock.read().wallMs);
  const advance = async (ms: number): Promise<void> => {
    for (let i = 0; i < ms; i++) await Promise.all([world.clock.advance(1), clock.advance(1)]);
  };
  const waiting = [world.lock({ clock, ttlMs: 60_000 }).acquire()];
  await advance(1);
  waiting.push(world.lock({ ttlMs: 60_000 }).acquire());
  await world.clock.advance(12_000);
  clock.freeze(12_000);
  await advance(100);
  await lease.release();
  const won = Promise.race(waiting).then(() => true);
  let waitedMs = 0;
  while (await isPending(won, world.clock) && waitedMs++ < 1000) await advance(1);
  assert(waitedMs < 50, `after ${waitedMs} ms`);
});

Deno.test("a lease that was lost keeps no newcomer of its process out", async () => {
  const world = new World();
  const lease = await world.lock({ autoRenew: false }).acquire();
  world.clock.freeze(30_000);
  const next = await world.lock().tryAcquire();
  assertEquals([next!.isHeld(), lease.isHeld()], [true, false]);
});

Deno.test("with fair, a local waiter and waiters of other processes take turns", async () => {
  const world = new World();
  const first = await world.lock({ fair: true }).acquire();
  const order: string[] = [];
  const waiting = [
    world.lock({ fair: true }).with(() => void order.push("local 1")),
    world.lock({ fair: true }).with(() => void order.push("local 2")),
    world.other({ fair: true }).with(() => void order.push("other")),
  ];
  await world.clock.advance(10);
  await first.release();
  await world.clock.advance(10);
  await Promise.all(waiting);
  assertEquals(order, ["other", "local 1", "local 2"]);
});
