import { assert, assertEquals } from "@std/assert";
import fc from "fast-check";
import { inspect } from "node:util";
import { type Lease, type LockEvent, type LockOptions, StorageError } from "../../mod.ts";
import { emit } from "../../src/core/events.ts";
import type { Fault } from "../../src/testing/mod.ts";
import { rejection, World } from "../support/world.ts";

const denied = new StorageError("denied", { transient: false });
const unreachable = new StorageError("unreachable", { transient: true });

/** What happens, and what is told of it; `fence` stands for that of the lease. */
const tellings: readonly [
  what: string,
  happen: (w: World) => Promise<Lease | null | void>,
  expected: (fence: number) => object,
][] = [
  [
    "a grant",
    (w) => w.lock().acquire(),
    (fence) => ({ type: "acquired", name: "job", fence, waitedMs: 0 }),
  ],
  [
    "a grant after waiting",
    async (w) => {
      const other = await w.other().acquire();
      const waiting = w.lock().acquire();
      await w.clock.advance(70);
      await other.release();
      return await waiting;
    },
    (fence) => ({ type: "acquired", name: "job", fence, waitedMs: 70 }),
  ],
  [
    "a refusal",
    async (w) => {
      await w.other({ ttlMs: 5000 }).acquire();
      await w.lock().tryAcquire();
    },
    () => ({ type: "contended", name: "job", retryAfterMs: 5000, ahead: 0 }),
  ],
  [
    "a refusal behind a queue",
    async (w) => {
      await w.other({ ttlMs: 5000 }).acquire();
      const waiting = rejection(w.other({ fair: true, gate: false }).acquire({ timeoutMs: 100 }));
      await w.clock.advance(10);
      await w.lock().tryAcquire();
      await w.clock.advance(100);
      await waiting;
    },
    () => ({ type: "contended", name: "job", retryAfterMs: 4990, ahead: 1 }),
  ],
  [
    "a storage that cannot be reached",
    async (w) => {
      w.storage.inject({ type: "error", error: unreachable }, { times: 3 });
      const trying = w.lock({ onUnavailable: "skip" }).tryAcquire();
      await w.clock.advance(100);
      await trying;
    },
    () => ({
      type: "unavailable",
      name: "job",
      error: unreachable,
    }),
  ],
  [
    "a renewal",
    async (w) => {
      const lease = await w.lock({ ttlMs: 3000 }).acquire();
      w.storage.inject({ type: "late-reply", ms: 40 });
      await w.clock.advance(1040);
      return lease;
    },
    (fence) => ({ type: "renewed", name: "job", fence, tookMs: 40 }),
  ],
  [
    "a renewal that failed",
    async (w) => {
      const lease = await w.lock({ ttlMs: 3000 }).acquire();
      w.storage.inject({ type: "error", error: denied });
      await w.clock.advance(1000);
      return lease;
    },
    (fence) => ({ type: "renewFailed", name: "job", fence, remainingMs: 1968, error: denied }),
  ],
  [
    "a loss",
    async (w) => {
      const lease = await w.lock({ ttlMs: 3000 }).acquire();
      await w.other().forceRelease();
      await w.clock.advance(1000);
      return lease;
    },
    (fence) => ({ type: "lost", name: "job", fence, reason: "evicted" }),
  ],
  [
    "a release",
    async (w) => {
      const lease = await w.lock().acquire();
      await w.clock.advance(500);
      await lease.release();
      return lease;
    },
    (fence) => ({ type: "released", name: "job", fence, heldMs: 500, awaited: true }),
  ],
  [
    "a release that failed",
    async (w) => {
      const lease = await w.lock().acquire();
      w.storage.inject({ type: "error", error: denied });
      await lease.release().catch(() => {});
      return lease;
    },
    (fence) => ({ type: "releaseFailed", name: "job", fence, error: denied }),
  ],
  [
    "a hand-over",
    async (w) => {
      const lease = await w.lock({ ttlMs: 3000 }).acquire();
      await w.clock.advance(500);
      lease.detach();
      return lease;
    },
    (fence) => ({ type: "detached", name: "job", fence, remainingMs: 2468 }),
  ],
];
for (const [what, happen, expected] of tellings) {
  // covers: S3.10 S3.12 S3.13 S3.15 S2.11
  Deno.test(`${what} is told with its name, its fence and its times`, async () => {
    const world = new World();
    const lease = await happen(world);
    assertEquals(world.events.at(-1), expected(lease?.fencingToken ?? 0) as LockEvent);
  });

  for (
    const [how, listener] of [
      ["throws", () => {
        throw new Error("listener");
      }],
      ["rejects", () => Promise.reject(new Error("listener"))],
    ] as const
  ) {
    Deno.test(`a listener that ${how} for ${what} harms nothing`, async () => {
      const heard = new World();
      const deaf = new World();
      let calls = 0;
      const lock = deaf.lock.bind(deaf);
      deaf.lock = (options: Partial<LockOptions> = {}) =>
        lock({
          onEvent: () => {
            calls++;
            return listener();
          },
          ...options,
        });
      const [a, b] = [await happen(heard), await happen(deaf)];
      assertEquals([calls, b?.status], [heard.events.length, a?.status]);
      assertEquals([deaf.sent(), await deaf.holders()], [heard.sent(), await heard.holders()]);
    });
  }
}

Deno.test("emit() without a listener does nothing", () => {
  emit(undefined, { type: "contended", name: "job", retryAfterMs: 1, ahead: 0 });
});

// covers: S3.12
Deno.test("the events of a life come in its order", async () => {
  const world = new World();
  const other = await world.other().acquire();
  const waiting = world.lock({ ttlMs: 3000 }).acquire();
  await world.clock.advance(10);
  await other.release();
  const lease = await waiting;
  world.storage.inject({ type: "lose-request" });
  await world.clock.advance(2500);
  await lease.release();
  assertEquals(world.told(), "contended acquired renewFailed renewed renewed released");
});

// covers: G6
Deno.test("when a loss is told the lease is not held any more, and the gate is open", async () => {
  const world = new World();
  let seen: unknown;
  const lease: Lease = await world.lock({
    onEvent: (event) => {
      if (event.type === "lost") seen = [lease.status, lease.isHeld()];
    },
  }).acquire();
  world.clock.freeze(30_000);
  lease.isHeld();
  assertEquals(seen, ["lost", false]);
});

Deno.test("a loss is told once, however often the lease is looked at", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.clock.freeze(30_000);
  for (let i = 0; i < 3; i++) {
    lease.isHeld();
    await lease.release();
    await world.clock.advance(1000);
  }
  assertEquals(world.told(), "acquired lost");
});

Deno.test("a listener can release, and acquire again", async () => {
  const world = new World();
  const later: Promise<unknown>[] = [];
  const options: Partial<LockOptions> = {
    onEvent: (event) => {
      world.events.push(event);
      if (event.type === "released" && later.length < 3) {
        later.push(world.lock(options).with(() => {}));
      }
    },
  };
  await world.lock(options).with(() => {});
  for (let i = 0; i < 3; i++) await Promise.all(later);
  await world.clock.advance(0);
  assertEquals(world.told(), Array(4).fill("acquired released").join(" "));
});

// covers: G4
Deno.test("whatever happens, no event carries a token", async () => {
  const fault: fc.Arbitrary<Fault> = fc.oneof(
    fc.constantFrom<Fault>(
      { type: "lose-request" },
      { type: "lose-reply" },
      { type: "hang" },
      { type: "hang-after" },
      { type: "error", error: denied },
      { type: "error", error: new Error("of the product") },
    ),
    fc.nat(3000).map((ms): Fault => ({ type: "late-reply", ms })),
    fc.nat(900).map((afterMs): Fault => ({ type: "duplicate", afterMs })),
  );
  const happening = fc.record({
    fault: fc.option(fault),
    passMs: fc.nat(1500),
    what: fc.constantFrom("renew", "release", "detach", "resume", "evict", "try", "with", "signal"),
  });
  const types = new Set<string>();
  await fc.assert(
    fc.asyncProperty(fc.array(happening, { maxLength: 15, size: "max" }), async (happenings) => {
      const world = new World();
      const lock = world.lock({ ttlMs: 1000, maxHoldMs: 2500, onUnavailable: "skip" });
      const ignore = (): void => {};
      let lease = await lock.acquire();
      const batons: unknown[] = [];
      for (const { fault, passMs, what } of happenings) {
        if (fault) world.storage.inject(fault);
        if (what === "renew") lease.renew().catch(ignore);
        if (what === "release") lease.release().catch(ignore);
        if (what === "detach" && lease.isHeld()) batons.push(lease.detach());
        if (what === "resume" && batons.length > 0) {
          lock.resume(batons.at(-1)).then((l) => lease = l ?? lease, ignore);
        }
        if (what === "evict") await world.other().forceRelease();
        if (what === "try") lock.tryAcquire().then((l) => lease = l ?? lease, ignore);
        if (what === "with") {
          lock.with(() => world.clock.freeze(passMs), { timeoutMs: 500 }).catch(ignore);
        }
        if (what === "signal") lease.signal.onabort = ignore;
        await world.clock.advance(passMs);
      }
      world.storage.heal();
      await world.clock.advance(10_000);
      for (const event of world.events) {
        types.add(event.type);
        const shown = inspect(event, { depth: 20, showHidden: true }) + JSON.stringify(event);
        assert(!shown.includes("secret"), shown);
      }
    }),
    // One seed, so that every kind of event comes up each time.
    { numRuns: 120, seed: 7 },
  );
  const all = [
    ...["acquired", "contended", "detached", "lost", "releaseFailed", "released"],
    ...["renewFailed", "renewed", "unavailable"],
  ];
  assertEquals([...types].sort(), all);
});
