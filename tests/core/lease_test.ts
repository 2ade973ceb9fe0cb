import {
  assert,
  assertAlmostEquals,
  assertEquals,
  assertRejects,
  assertStrictEquals,
  assertThrows,
} from "@std/assert";
import fc from "fast-check";
import { inspect } from "node:util";
import { type Lease, LeaseLostError, type LockOptions, StorageError } from "../../mod.ts";
import type { Fault } from "../../src/testing/mod.ts";
import { runScript } from "../support/run_script.ts";
import { isPending, rejection, World } from "../support/world.ts";

const isRelease = (command: { type: string }): boolean => command.type === "release";
const isRenew = (command: { type: string }): boolean => command.type === "renew";

// What a lease shows.

// covers: S4.3
Deno.test("a lease shows its lock, its token, its fence and how long it waited", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  assertEquals([lease.name, lease.token, lease.waitedMs, lease.status], [
    "job",
    "secret-1",
    0,
    "held",
  ]);
  assertEquals(await world.holders(), [lease.fencingToken]);
});

// covers: G5
Deno.test("remainingMs() is the ttl less 1 % and 2 ms at first, and counts down", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 10_000 }).acquire();
  assertEquals(lease.remainingMs(), 9898);
  await world.clock.advance(1000);
  assertEquals(lease.remainingMs(), 8898);
});

// covers: G5
Deno.test("remainingMs() is 0 after the deadline, before any timer ran", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.clock.freeze(60_000);
  assertEquals(lease.remainingMs(), 0);
});

// covers: G5
Deno.test("the deadline counts from before the acquire was sent", async () => {
  const world = new World();
  world.storage.inject({ type: "late-reply", ms: 300 });
  const acquiring = world.lock({ ttlMs: 1000 }).acquire();
  await world.clock.advance(300);
  assertEquals((await acquiring).remainingMs(), 688);
});

// covers: G5
Deno.test("the deadline counts from before the renewal was sent", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, autoRenew: false }).acquire();
  world.storage.inject({ type: "late-reply", ms: 300 });
  await world.clock.advance(100);
  const renewing = lease.renew();
  await world.clock.advance(300);
  await renewing;
  assertEquals(lease.remainingMs(), 688);
});

// covers: S4.3 G5
Deno.test("token and fence are stable over renewals", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000 }).acquire();
  const { token, fencingToken } = lease;
  await lease.renew();
  await world.clock.advance(5000);
  assertEquals([lease.token, lease.fencingToken], [token, fencingToken]);
});

const shown: readonly [what: string, show: (lease: Lease) => string][] = [
  ["console.log", (lease) => Deno.inspect(lease, { depth: 20, getters: false })],
  [
    "console.log with hidden properties",
    (lease) => Deno.inspect(lease, { showHidden: true, depth: 20 }),
  ],
  ["util.inspect", (lease) => inspect(lease, { depth: 20, showHidden: true })],
  ["JSON.stringify", (lease) => JSON.stringify(lease)],
  ["String", (lease) => String(lease)],
  ["Object.entries", (lease) => JSON.stringify(Object.entries(lease))],
  ["its error", (lease) => Deno.inspect(caught(() => lease.assertHeld(1e9)), { depth: 20 })],
  ["its signal", (lease) => Deno.inspect(lease.signal, { depth: 20 })],
];
for (const [what, show] of shown) {
  // covers: G4
  Deno.test(`${what} of a lease shows no token`, async () => {
    const lease = await new World().lock().acquire();
    assertEquals(show(lease).includes("secret"), false, show(lease));
  });
}

function caught(run: () => void): unknown {
  try {
    run();
  } catch (error) {
    return error;
  }
  throw new Error("expected an error");
}

// isHeld() and assertHeld()

const needs: readonly [minMs: number | undefined, expected: boolean][] = [
  [undefined, true],
  [0, true],
  [987, true],
  [988, false],
  [Infinity, false],
  [NaN, false],
];
for (const [minMs, expected] of needs) {
  Deno.test(`isHeld(${minMs}) of a lease with 988 ms left is ${expected}`, async () => {
    const lease = await new World().lock({ ttlMs: 1000 }).acquire();
    assertEquals(lease.isHeld(minMs), expected);
  });
}

Deno.test("assertHeld() says how much is left where that is too little", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000 }).acquire();
  lease.assertHeld(900);
  world.clock.freeze(200.5);
  const error = assertThrows(() => lease.assertHeld(900), LeaseLostError);
  assertEquals([error.message, error.reason], [
    'Cannot use lease "job" as less than 900 ms are left: current value is 787 ms',
    "expired",
  ]);
  assertEquals(lease.status, "held");
});

/** How a lease ends, and what its user is told. */
const endings: readonly [
  what: string,
  end: (w: World, lease: Lease) => unknown,
  status: string,
  reason: string,
  words: string,
][] = [
  ["that expired", (w) => w.clock.freeze(988), "lost", "expired", "expired"],
  [
    "that was evicted",
    async (w, lease) => {
      await w.other().forceRelease();
      await lease.renew().catch(() => {});
    },
    "lost",
    "evicted",
    "evicted",
  ],
  [
    "that was superseded",
    async (w, lease) => {
      const { token, fencingToken: fence } = lease;
      const ttlMs = 1000;
      await w.memory.execute("job", { type: "adopt", token, fence, newToken: "other-1", ttlMs });
      await lease.renew().catch(() => {});
    },
    "lost",
    "superseded",
    "superseded by a later holder",
  ],
  ["that was released", (_, lease) => lease.release(), "released", "released", "released"],
  ["that was detached", (_, lease) => lease.detach(), "detached", "detached", "detached"],
];
for (const [what, end, status, reason, words] of endings) {
  // covers: S5.12 G6
  Deno.test(`a lease ${what} is not held, and every use says why`, async () => {
    const world = new World();
    const lease = await world.lock({ ttlMs: 1000 }).acquire();
    await end(world, lease);
    assertEquals([lease.status, lease.isHeld(), lease.remainingMs()], [status, false, 0]);
    const message =
      `Cannot use lease "job" as it is ${words}: current value is fence ${lease.fencingToken}`;
    const errors = [
      caught(() => lease.assertHeld()),
      caught(() => lease.detach()),
      await rejection(lease.renew()),
    ] as LeaseLostError[];
    for (const error of errors) {
      assert(error instanceof LeaseLostError);
      assertEquals([error.message, error.reason], [message, reason]);
      assertStrictEquals(error, errors[0]);
    }
  });

  // covers: S2.9 S4.11 G7
  Deno.test(`release() of a lease ${what} is false and sends nothing`, async () => {
    const world = new World();
    const lease = await world.lock({ ttlMs: 1000 }).acquire();
    await end(world, lease);
    world.sent();
    assertEquals([await lease.release(), world.sent()], [false, ""]);
  });

  // covers: G7
  Deno.test(`disposal of a lease ${what} sends nothing`, async () => {
    const world = new World();
    const lease = await world.lock({ ttlMs: 1000 }).acquire();
    await end(world, lease);
    world.sent();
    lease[Symbol.dispose]();
    await lease[Symbol.asyncDispose]();
    await world.clock.advance(10_000);
    assertEquals([world.sent(), world.clock.pendingTimers], ["", 0]);
  });
}

// Clocks that fail.

const clocks: readonly [what: string, fail: (w: World) => void, held: boolean, leftMs: number][] = [
  ["a freeze within the deadline", (w) => w.clock.freeze(500), true, 488],
  ["a freeze past the deadline", (w) => w.clock.freeze(988), false, 0],
  ["a suspension past the deadline", (w) => w.clock.suspend(988), false, 0],
  ["a suspension within the deadline", (w) => w.clock.suspend(500), true, 488],
  ["a wall clock that stepped forward past the deadline", (w) => w.clock.stepWall(5000), false, 0],
  ["a wall clock that stepped back", (w) => w.clock.stepWall(-5000), true, 988],
];
for (const [what, fail, held, leftMs] of clocks) {
  // covers: G6 G5
  Deno.test(`isHeld() is right after ${what}, before any timer ran`, async () => {
    const world = new World();
    const lease = await world.lock({ ttlMs: 1000 }).acquire();
    fail(world);
    assertEquals([lease.isHeld(), lease.remainingMs()], [held, leftMs]);
    assertEquals(lease.status, held ? "held" : "lost");
  });

  // covers: G6
  Deno.test(`the signal ${held ? "does not abort" : "aborts as soon as code runs"} after ${what}`, async () => {
    const world = new World();
    const lease = await world.lock({ ttlMs: 1000 }).acquire();
    const { signal } = lease;
    fail(world);
    await world.clock.advance(0);
    if (!held) await world.clock.advance(250);
    assertEquals(signal.aborted, !held);
  });
}

Deno.test("a wall clock that stepped back and goes on does not prolong a lease", async () => {
  const world = new World();
  world.storage.inject({ type: "hang" }, { times: Infinity, when: isRenew });
  const lease = await world.lock({ ttlMs: 1000 }).acquire();
  world.clock.stepWall(-60_000);
  await world.clock.advance(988);
  assertEquals(lease.status, "lost");
});

// The signal.

Deno.test("the signal is always the same one", async () => {
  const lease = await new World().lock().acquire();
  assertStrictEquals(lease.signal, lease.signal);
});

// covers: G6 S1.6 S5.12
Deno.test("the signal aborts at the deadline when the storage cannot be reached any more", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000 }).acquire();
  const { signal } = lease;
  world.storage.inject({ type: "lose-request" }, { times: Infinity });
  await world.clock.advance(987);
  assertEquals([signal.aborted, lease.isHeld()], [false, true]);
  await world.clock.advance(1);
  assertEquals([signal.aborted, lease.isHeld()], [true, false]);
  assertEquals((signal.reason as LeaseLostError).reason, "expired");
});

// covers: G6
Deno.test("the signal aborts at the deadline when the storage hangs", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000 }).acquire();
  const { signal } = lease;
  world.storage.inject({ type: "hang" }, { times: Infinity });
  await world.clock.advance(988);
  assertEquals(signal.aborted, true);
});

// covers: G6
Deno.test("the signal aborts at the deadline although renewals are off", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, autoRenew: false }).acquire();
  const { signal } = lease;
  await world.clock.advance(987);
  assertEquals(signal.aborted, false);
  await world.clock.advance(1);
  assertEquals([signal.aborted, lease.status], [true, "lost"]);
  assertEquals(world.clock.pendingTimers, 0);
});

// covers: G6 S3.12
Deno.test("the signal aborts with the renewal that is refused, and nothing is sent after it", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  const { signal } = lease;
  await world.other().forceRelease();
  await world.clock.advance(1000);
  assertEquals((signal.reason as LeaseLostError).reason, "evicted");
  world.sent();
  await world.clock.advance(20_000);
  assertEquals([world.sent(), world.clock.pendingTimers], ["", 0]);
});

Deno.test("a signal that is looked at after the loss is aborted, with the same reason", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.clock.freeze(30_000);
  const error = caught(() => lease.assertHeld());
  assertEquals(lease.signal.aborted, true);
  assertStrictEquals(lease.signal.reason, error);
});

const cleanEnds: readonly [what: string, end: (lease: Lease) => unknown][] = [
  ["release()", (lease) => lease.release()],
  ["a release that failed", (lease) => lease.release().catch(() => {})],
  ["detach()", (lease) => lease.detach()],
  ["await using", (lease) => lease[Symbol.asyncDispose]()],
  ["using", (lease) => lease[Symbol.dispose]()],
];
for (const [what, end] of cleanEnds) {
  for (const isEarly of [true, false]) {
    // covers: G6
    Deno.test(`the signal never aborts after ${what}, looked at ${isEarly ? "before" : "after"} it`, async () => {
      const world = new World();
      const lease = await world.lock({ ttlMs: 1000 }).acquire();
      if (isEarly) assertEquals(lease.signal.aborted, false);
      if (what.includes("failed")) {
        const error = new StorageError("denied", { transient: false });
        world.storage.inject({ type: "error", error }, { when: isRelease });
      }
      await end(lease);
      await world.clock.advance(10_000);
      assertEquals(lease.signal.aborted, false);
    });
  }
}

// covers: G5 G6
Deno.test("whatever becomes of requests, a lease that is held is in the storage, and a signal is never late", async () => {
  const fault: fc.Arbitrary<Fault | undefined> = fc.oneof(
    { weight: 3, arbitrary: fc.constant(undefined) },
    {
      weight: 4,
      arbitrary: fc.constantFrom<Fault>(
        { type: "lose-request" },
        { type: "lose-reply" },
        { type: "hang" },
        { type: "hang-after" },
      ),
    },
    { weight: 1, arbitrary: fc.nat(900).map((ms): Fault => ({ type: "late-reply", ms })) },
    { weight: 1, arbitrary: fc.nat(900).map((afterMs): Fault => ({ type: "duplicate", afterMs })) },
  );
  const happening = fc.record({
    fault,
    passMs: fc.nat(400),
    how: fc.constantFrom("advance", "advance", "advance", "freeze"),
    renewMs: fc.constantFrom(undefined, undefined, 100, 3000),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(happening, { maxLength: 20, size: "max" }), async (happenings) => {
      const world = new World();
      const lease = await world.lock({ ttlMs: 1000 }).acquire();
      const { signal, fencingToken } = lease;
      for (const { fault, passMs, how, renewMs } of happenings) {
        if (fault) world.storage.inject(fault);
        if (renewMs) lease.renew(renewMs).catch(() => {});
        if (how === "freeze") world.clock.freeze(passMs);
        else await world.clock.advance(passMs);
        // Right even before any timer ran.
        if (lease.isHeld()) assertEquals(await world.holders(), [fencingToken]);
        await world.clock.advance(0);
        assertEquals(signal.aborted, how === "freeze" ? signal.aborted : !lease.isHeld());
      }
      await world.clock.advance(250);
      assertEquals(signal.aborted, !lease.isHeld());
    }),
    { numRuns: 100 },
  );
});

// renew()

// covers: S5.4
Deno.test("renew() extends the lease to its full ttl from now", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, autoRenew: false }).acquire();
  await world.clock.advance(600);
  await lease.renew();
  assertEquals([lease.remainingMs(), world.sent()], [988, "acquire renew"]);
  await world.clock.advance(987);
  assertEquals(lease.isHeld(), true);
});

Deno.test("renew(ttlMs) extends the lease once, and the heartbeat goes on when less than the ttl is left", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, renewEveryMs: 400 }).acquire();
  await lease.renew(5000);
  assertEquals(lease.remainingMs(), 4948);
  world.sent();
  await world.clock.advance(4948 - 588 - 1);
  assertEquals(world.sent(), "");
  await world.clock.advance(1);
  assertEquals([world.sent(), lease.remainingMs()], ["renew", 988]);
  await world.clock.advance(400);
  assertEquals(world.sent(), "renew");
});

// covers: G5
Deno.test("renew() for a shorter time than what is left changes nothing", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000 }).acquire();
  await lease.renew(10);
  assertEquals(lease.remainingMs(), 988);
  await world.clock.advance(500);
  assertEquals(await world.holders(), [lease.fencingToken]);
});

const wrongTtls: readonly [ttlMs: unknown, error: typeof Error, message: string][] = [
  [
    9,
    RangeError,
    "Cannot use ttlMs as it must be an integer from 10 to 2592000000 ms: current value is 9",
  ],
  [
    10.5,
    RangeError,
    "Cannot use ttlMs as it must be an integer from 10 to 2592000000 ms: current value is 10.5",
  ],
  ["1000", TypeError, "Cannot use ttlMs as it must be a number: current value is of type string"],
  [null, TypeError, "Cannot use ttlMs as it must be a number: current value is of type object"],
];
for (const [ttlMs, error, message] of wrongTtls) {
  Deno.test(`renew(${Deno.inspect(ttlMs)}) is refused before anything is sent`, async () => {
    const world = new World();
    const lease = await world.lock().acquire();
    world.sent();
    await assertRejects(() => lease.renew(ttlMs as number), error, message);
    assertEquals([world.sent(), lease.status], ["", "held"]);
  });
}

const renewFaults: readonly [what: string, fault: Fault, transient: boolean][] = [
  ["is lost", { type: "lose-request" }, true],
  ["is answered with an error", {
    type: "error",
    error: new StorageError("denied", { transient: false }),
  }, false],
  ["hangs", { type: "hang" }, true],
];
for (const [what, fault, transient] of renewFaults) {
  // covers: S5.12 S3.13
  Deno.test(`renew() whose request ${what} rejects with a StorageError, and the lease stays held`, async () => {
    const world = new World();
    const lease = await world.lock({ ttlMs: 3000, autoRenew: false }).acquire();
    world.sent();
    world.storage.inject(fault);
    const failed = rejection<StorageError>(lease.renew());
    await world.clock.advance(1000);
    const error = await failed;
    assertEquals([error instanceof StorageError, error.transient], [true, transient]);
    assertEquals([world.sent(), lease.status, world.told()], [
      "renew",
      "held",
      "acquired renewFailed",
    ]);
    await lease.renew();
  });
}

Deno.test("renew() waits no longer than requestTimeoutMs", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 30_000, requestTimeoutMs: 70, autoRenew: false })
    .acquire();
  world.storage.inject({ type: "hang" });
  const failed = rejection(lease.renew());
  await world.clock.advance(69);
  assertEquals(await isPending(failed, world.clock), true);
  await world.clock.advance(1);
  assertEquals(
    (await failed).message,
    'Cannot renew lease "job" as the storage did not answer: current value is 70 ms',
  );
});

// covers: G6
Deno.test("renew() waits no longer than the lease is held", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000, autoRenew: false }).acquire();
  await world.clock.advance(2900);
  world.storage.inject({ type: "hang" });
  const failed = rejection<LeaseLostError>(lease.renew());
  await world.clock.advance(68);
  const error = await failed;
  assertEquals([error instanceof LeaseLostError, error.reason], [true, "expired"]);
});

// covers: G5
Deno.test("renew() that is answered after the deadline does not bring the lease back", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, autoRenew: false, requestTimeoutMs: 5000 })
    .acquire();
  await world.clock.advance(900);
  world.storage.inject({ type: "late-reply", ms: 200 });
  const failed = rejection<LeaseLostError>(lease.renew());
  await world.clock.advance(200);
  assertEquals([(await failed).reason, lease.status], ["expired", "lost"]);
});

// covers: S1.9 G7
Deno.test("renew() under way when the lease is released rejects, and nothing is sent after the release", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.storage.inject({ type: "late-reply", ms: 100 }, { when: isRenew });
  const failed = rejection<LeaseLostError>(lease.renew());
  assertEquals(await lease.release(), true);
  assertEquals((await failed).reason, "released");
  world.sent();
  await world.clock.advance(60_000);
  assertEquals([world.sent(), world.clock.pendingTimers], ["", 0]);
});

// covers: G7
Deno.test("the loss of a lease gives up every renewal that is under way", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000, autoRenew: false }).acquire();
  world.storage.inject({ type: "hang" }, { when: isRenew });
  const hanging = rejection<LeaseLostError>(lease.renew());
  await world.other().forceRelease();
  assertEquals((await rejection<LeaseLostError>(lease.renew())).reason, "evicted");
  await world.clock.advance(0);
  assertEquals(world.clock.pendingTimers, 0);
  assertEquals((await hanging).reason, "evicted");
});

// release()

// covers: S1.7 S2.18 S1.23
Deno.test("release() gives the lock back and resolves true", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  assertEquals([await lease.release(), lease.status, await world.holders()], [
    true,
    "released",
    [],
  ]);
  assert(await world.other().tryAcquire());
});

// covers: S1.7
Deno.test("release() resolves only when the storage has answered", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.storage.inject({ type: "late-reply", ms: 100 });
  const released = lease.release();
  await world.clock.advance(99);
  assertEquals([await isPending(released, world.clock), lease.status], [true, "released"]);
  await world.clock.advance(1);
  assertEquals(await released, true);
});

// covers: S1.13 S2.9 G7
Deno.test("a second release() sends nothing", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  const [one, two] = await Promise.all([lease.release(), lease.release()]);
  assertEquals([one, two, await lease.release()], [true, true, false]);
  assertEquals(world.sent(), "acquire release");
});

// covers: S2.8 S4.5 S4.16 G4
Deno.test("release() by a holder whose time is over frees nobody else", async () => {
  const world = new World();
  const old = await world.lock({ ttlMs: 30, autoRenew: false }).acquire();
  await world.clock.advance(80);
  const next = await world.other().acquire();
  assertEquals(await old.release(), false);
  assertEquals(await world.holders(), [next.fencingToken]);
  assertEquals(await world.lock({ gate: false }).tryAcquire(), null);
});

// covers: G4
Deno.test("release() of a lease that was evicted unnoticed is false", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  await world.other().forceRelease();
  assertEquals([await lease.release(), world.sent()], [false, "acquire release"]);
});

// covers: G11
Deno.test("release() whose reply was lost is true", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.storage.inject({ type: "lose-reply" });
  const released = lease.release();
  await world.clock.advance(100);
  assertEquals([await released, world.sent()], [true, "acquire release release"]);
});

// covers: S1.7 S4.4
Deno.test("release() asks three times while the storage fails, then rejects, and can be tried again", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.storage.inject({ type: "lose-request" }, { times: 3 });
  const failed = rejection<StorageError>(lease.release());
  await world.clock.advance(1000);
  const error = await failed;
  assertEquals([error instanceof StorageError, error.transient, lease.status], [
    true,
    true,
    "released",
  ]);
  assertEquals(world.sent(), "acquire release release release");
  assertEquals((await world.holders()).length, 1);
  assertEquals([await lease.release(), await world.holders()], [true, []]);
  assertEquals(await lease.release(), false);
  assertEquals([world.sent(), world.told()], ["release", "acquired releaseFailed released"]);
});

Deno.test("release() does not ask again after a fault that stays", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  const denied = new StorageError("denied", { transient: false });
  world.storage.inject({ type: "error", error: denied });
  assertStrictEquals(await rejection(lease.release()), denied);
  assertEquals(world.sent(), "acquire release");
});

Deno.test("release() of a storage that hangs rejects after three times requestTimeoutMs and two pauses", async () => {
  const world = new World();
  const lease = await world.lock({ requestTimeoutMs: 100 }).acquire();
  world.storage.inject({ type: "hang" }, { times: Infinity });
  const failed = rejection(lease.release());
  await world.clock.advance(450);
  assertEquals(
    (await failed).message,
    'Cannot release lease "job" as the storage did not answer: current value is 100 ms',
  );
  assertEquals(world.clock.pendingTimers, 0);
});

// covers: S1.10
Deno.test("release() opens the gate before the storage has answered", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  world.storage.inject({ type: "late-reply", ms: 500 }, { when: isRelease });
  const waiting = world.lock().acquire();
  await world.clock.advance(0);
  const released = lease.release();
  assert((await waiting).isHeld());
  assertEquals(await isPending(released, world.clock), true);
  await world.clock.advance(500);
  assertEquals(await released, true);
});

// covers: S1.9 G7
Deno.test("release() gives up a renewal that hangs, and nothing is sent after it", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  world.storage.inject({ type: "hang" }, { when: isRenew });
  await world.clock.advance(1000);
  assertEquals(world.sent(), "acquire renew");
  assertEquals(await lease.release(), true);
  await world.clock.advance(10_000);
  assertEquals([world.sent(), world.told()], ["release", "acquired released"]);
  assertEquals(world.clock.pendingTimers, 0);
});

// covers: G7
Deno.test("a renewal that arrives after the release brings nothing back", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  world.storage.inject({ type: "duplicate", afterMs: 500 }, { when: isRenew });
  await world.clock.advance(1000);
  await lease.release();
  await world.clock.advance(500);
  assertEquals(await world.holders(), []);
});

Deno.test("release() never uses the signal of the caller", async () => {
  const world = new World();
  const stop = new AbortController();
  const lease = await world.lock().acquire({ signal: stop.signal });
  stop.abort();
  assertEquals([lease.status, await lease.release()], ["held", true]);
});

const minHolds: readonly [
  what: string,
  heldMs: number,
  fail: (w: World) => void,
  keepMs: number,
][] = [
  ["at once keeps all of it", 0, () => {}, 1000],
  ["later keeps the rest", 300, () => {}, 700],
  ["after it keeps nothing", 1500, () => {}, 0],
  ["after a suspension counts only what the observer saw", 300, (w) => w.clock.suspend(600), 700],
  [
    "after a wall clock step counts only what both clocks saw",
    300,
    (w) => w.clock.stepWall(-200),
    900,
  ],
];
for (const [what, heldMs, fail, keepMs] of minHolds) {
  // covers: S3.17
  Deno.test(`release() of a lease with a min-hold of 1000 ms ${what}`, async () => {
    const world = new World();
    const lease = await world.lock({ minHoldMs: 1000 }).acquire();
    await world.clock.advance(heldMs);
    fail(world);
    await lease.release();
    const command = world.storage.sent.at(-1)!.command;
    assertEquals(command.type === "release" && command.keepMs, keepMs);
  });
}

Deno.test("min-hold counts from after the reply", async () => {
  const world = new World();
  world.storage.inject({ type: "late-reply", ms: 300 });
  const acquiring = world.lock({ minHoldMs: 1000 }).acquire();
  await world.clock.advance(300);
  await (await acquiring).release();
  const command = world.storage.sent.at(-1)!.command;
  assertEquals(command.type === "release" && command.keepMs, 1000);
});

// maxHoldMs

// covers: G6
Deno.test("a lease is renewed up to maxHoldMs, and then lost", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, maxHoldMs: 5000 }).acquire();
  const { signal } = lease;
  await world.clock.advance(4999);
  assertEquals([lease.status, signal.aborted], ["held", false]);
  await world.clock.advance(1);
  assertEquals([lease.status, signal.aborted, signal.reason.reason], ["lost", true, "max-hold"]);
  assertEquals(
    signal.reason.message,
    `Cannot use lease "job" as it is held for its longest time: current value is fence ${lease.fencingToken}`,
  );
});

// covers: G8
Deno.test("the storage forgets a lease soon after its longest time", async () => {
  const world = new World();
  await world.lock({ ttlMs: 10_000, maxHoldMs: 11_000 }).acquire();
  await world.clock.advance(11_000);
  assertEquals((await world.holders()).length, 1);
  await world.clock.advance(200);
  assertEquals(await world.holders(), []);
});

Deno.test("renew() never reaches beyond maxHoldMs", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, maxHoldMs: 5000 }).acquire();
  await lease.renew(60_000);
  assertEquals(lease.remainingMs(), 5000);
  assert((await world.lock().inspect()).holders[0]!.remainingMs < 5100);
});

Deno.test("a short maxHoldMs needs no renewal", async () => {
  const world = new World();
  await world.lock({ ttlMs: 30_000, maxHoldMs: 500 }).acquire();
  await world.clock.advance(500);
  assertEquals(world.sent(), "acquire");
});

// detach()

Deno.test("detach() gives a baton of plain JSON", async () => {
  const lease = await new World().lock().acquire();
  const baton = lease.detach();
  assertEquals(baton, { v: 1, name: "job", token: lease.token, fencingToken: lease.fencingToken });
  assertEquals(JSON.parse(JSON.stringify(baton)), baton);
});

// covers: G7
Deno.test("detach() stops the renewals and leaves the lease to its ttl", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  lease.detach();
  await world.clock.advance(2999);
  assertEquals([world.sent(), world.clock.pendingTimers], ["acquire", 0]);
  assertEquals(await world.holders(), [lease.fencingToken]);
  await world.clock.advance(1);
  assertEquals(await world.holders(), []);
});

Deno.test("detach() opens the gate: whoever waits in this process asks the storage", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  lease.detach();
  world.sent();
  assertEquals([await world.lock().tryAcquire(), world.sent()], [null, "acquire"]);
});

Deno.test("detach() gives up a renewal that is under way", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000 }).acquire();
  world.storage.inject({ type: "hang" }, { when: isRenew });
  await world.clock.advance(1000);
  lease.detach();
  await world.clock.advance(0);
  assertEquals([world.clock.pendingTimers, world.told()], [0, "acquired detached"]);
});

// Disposal.

// covers: S1.14 S4.16
Deno.test("await using releases at the end of the scope", async () => {
  const world = new World();
  {
    await using lease = await world.lock().acquire();
    assertEquals(lease.isHeld(), true);
  }
  assertEquals([world.sent(), await world.holders()], ["acquire release", []]);
});

Deno.test("await using of a lease that was not acquired does nothing", async () => {
  const world = new World();
  await world.other().acquire();
  {
    await using lease = await world.lock().tryAcquire();
    assertEquals(lease, null);
  }
  assertEquals(world.sent(), "acquire");
});

// covers: S4.11
Deno.test("await using after an explicit release() sends nothing", async () => {
  const world = new World();
  {
    await using lease = await world.lock().acquire();
    await lease.release();
  }
  assertEquals(world.sent(), "acquire release");
});

// covers: S1.14 S2.10 S3.15
Deno.test("await using does not throw for a release that failed, and tells of it", async () => {
  const world = new World();
  const denied = new StorageError("denied", { transient: false });
  {
    await using _lease = await world.lock().acquire();
    world.storage.inject({ type: "error", error: denied });
  }
  assertEquals(world.told(), "acquired releaseFailed");
});

Deno.test("await using lets the error of its scope out", async () => {
  const world = new World();
  const error = await rejection((async () => {
    await using _lease = await world.lock().acquire();
    throw new Error("own");
  })());
  assertEquals([error.message, await world.holders()], ["own", []]);
});

// covers: S4.9 S3.14 S1.14
Deno.test("using starts the release at the end of the scope, and tells that nobody waits for it", async () => {
  const world = new World();
  {
    using _lease = await world.lock().acquire();
  }
  assertEquals(world.sent(), "acquire release");
  await world.clock.advance(0);
  assertEquals(world.events.map((e) => e.type === "released" ? e.awaited : e.type), [
    "acquired",
    false,
  ]);
});

const waiters: readonly [
  what: string,
  options: (wait: LockOptions["waitUntil"]) => [object, object],
][] = [
  ["of the lock", (waitUntil) => [{ waitUntil }, {}]],
  ["of the call", (waitUntil) => [{}, { waitUntil }]],
  ["of the call before that of the lock", (waitUntil) => [
    { waitUntil: () => assert(false, "the wrong one") },
    { waitUntil },
  ]],
];
for (const [what, options] of waiters) {
  Deno.test(`using gives the release to waitUntil ${what}`, async () => {
    const world = new World();
    const work: Promise<unknown>[] = [];
    const [ofLock, ofCall] = options((promise) => work.push(promise));
    {
      using _lease = await world.lock(ofLock).acquire(ofCall);
    }
    assertEquals(work.length, 1);
    await work[0];
    assertEquals(world.events.map((e) => e.type === "released" ? e.awaited : e.type), [
      "acquired",
      true,
    ]);
  });
}

Deno.test("using whose release fails gives waitUntil a promise that does not reject", async () => {
  const world = new World();
  const work: Promise<unknown>[] = [];
  const denied = new StorageError("denied", { transient: false });
  {
    using _lease = await world.lock({ waitUntil: (p) => work.push(p) }).acquire();
    world.storage.inject({ type: "error", error: denied });
  }
  await Promise.all(work);
  assertEquals(world.told(), "acquired releaseFailed");
});

// Background work.

// covers: S2.14 S5.4
Deno.test("autoRenew: false sets no timer and sends nothing", async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 1000, autoRenew: false }).acquire();
  assertEquals(world.clock.pendingTimers, 0);
  await world.clock.advance(988);
  assertEquals([world.sent(), lease.status], ["acquire", "lost"]);
});

Deno.test('leases with autoRenew: "own-timer" have a timer each, others share one', async () => {
  const own = new World();
  const shared = new World();
  for (const name of ["a", "b", "c"]) {
    await own.lock({ name, autoRenew: "own-timer" }).acquire();
    await shared.lock({ name }).acquire();
  }
  assertEquals([own.clock.pendingTimers, shared.clock.pendingTimers], [3, 1]);
});

// covers: S1.1
Deno.test('autoRenew: "own-timer" renews, and leaves no timer after the release', async () => {
  const world = new World();
  const lease = await world.lock({ ttlMs: 3000, autoRenew: "own-timer" }).acquire();
  await world.clock.advance(10_000);
  assertEquals([lease.status, await lease.release()], ["held", true]);
  assertEquals([world.sent(), world.clock.pendingTimers], [
    `acquire ${"renew ".repeat(10)}release`,
    0,
  ]);
});

/** Which timers of a world keep the process alive. */
function keepAlives(world: World): boolean[] {
  const seen: boolean[] = [];
  const { clock } = world;
  const setTimer = clock.setTimer.bind(clock) as World["clock"]["setTimer"];
  clock.setTimer = ((ms: number, callback: () => void, options: { keepAlive: boolean }) => {
    seen.push(options.keepAlive);
    return setTimer(ms, callback);
  }) as typeof setTimer;
  return seen;
}

Deno.test("timers of a held lease do not keep the process alive", async () => {
  const world = new World();
  const lock = world.lock({ ttlMs: 1000 });
  await lock.acquire();
  const seen = keepAlives(world);
  await world.clock.advance(5000);
  assertEquals([seen.length > 10, seen.includes(true)], [true, false]);
});

const awaiteds: readonly [what: string, call: (w: World, lease: Lease) => Promise<unknown>][] = [
  ["release()", (_, lease) => lease.release()],
  ["renew()", (_, lease) => lease.renew()],
  ["inspect()", (w) => w.lock().inspect()],
];
for (const [what, call] of awaiteds) {
  Deno.test(`timers of ${what} keep the process alive`, async () => {
    const world = new World();
    const lease = await world.lock().acquire();
    const seen = keepAlives(world);
    await call(world, lease);
    assertEquals(seen[0], true);
  });
}

const processes: readonly [what: string, code: string, output: string][] = [
  ["ends although it holds a lease", `await lock.acquire(); console.log("end");`, "end\n"],
  [
    "ends although it holds a lease whose signal is watched",
    `(await lock.acquire()).signal.onabort = () => {}; console.log("end");`,
    "end\n",
  ],
  [
    "lives as long as an acquire() is pending",
    `const lease = await lock.acquire();
     lock.acquire({ timeoutMs: 300 }).catch((error) => console.log(error.name));`,
    "LockTimeoutError\n",
  ],
];
for (const [what, code, output] of processes) {
  Deno.test(`a process ${what}`, async () => {
    const script = `
      import { Lock, MemoryStorage } from "./mod.ts";
      const lock = new Lock({ storage: new MemoryStorage(), name: "job" });
      ${code}
    `;
    assertEquals(await runScript(script), output);
  });
}

Deno.test("remainingMs() of a lease on the system clock counts down", async () => {
  const world = new World();
  const lease = await world.lock({ clock: undefined }).acquire();
  const first = lease.remainingMs();
  await new Promise((resolve) => setTimeout(resolve, 20));
  const leftMs = first - lease.remainingMs();
  assert(leftMs >= 15, `${leftMs} ms`);
  assertAlmostEquals(first, 29_698, 100);
  await lease.release();
});
