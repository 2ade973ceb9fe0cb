import { assert, assertEquals, assertRejects, assertStrictEquals, assertThrows } from "@std/assert";
import {
  type AcquireCommand,
  type Baton,
  HoldfastError,
  LeaseLostError,
  type LockOptions,
  LockTimeoutError,
  StorageError,
  systemClock,
} from "../../mod.ts";
import { isPending, rejection, World } from "../support/world.ts";

// What a lock is.

// covers: S2.1 S3.7
Deno.test("two locks with the same storage and name are the same lock", async () => {
  const world = new World();
  const lease = await world.lock().acquire();
  assertEquals(await world.lock().tryAcquire(), null);
  await lease.release();
  assert(await world.lock().tryAcquire());
});

// covers: S2.15 S2.18
Deno.test("locks with different names never collide", async () => {
  const world = new World();
  const names = ["a", "a:token", "a:", "A", "a%3Atoken", " a", "ä"];
  for (const name of names) assert(await world.lock({ name }).tryAcquire(), name);
  for (const name of names) assertEquals((await world.holders(name)).length, 1, name);
});

Deno.test("the name is in Unicode normalization form C", async () => {
  const world = new World();
  assertEquals(world.lock({ name: "cafe\u0301" }).name, "caf\u00e9");
  assert(await world.lock({ name: "cafe\u0301" }).tryAcquire());
  assertEquals(await world.lock({ name: "caf\u00e9" }).tryAcquire(), null);
});

Deno.test("withName() keeps the storage and every option", async () => {
  const world = new World();
  const lock = world.lock({ ttlMs: 1234, capacity: 5, permits: 2, label: "worker", fair: true });
  const other = lock.withName("invoice:42");
  assertEquals([other.name, lock.name], ["invoice:42", "job"]);
  await other.acquire();
  const { command } = world.storage.sent[0]!;
  const { ttlMs, capacity, permits, label, fair } = command as AcquireCommand;
  assertEquals([ttlMs, capacity, permits, label, fair], [1234, 5, 2, "worker", true]);
});

Deno.test("withName() refuses a wrong name", () => {
  assertThrows(
    () => new World().lock().withName(""),
    RangeError,
    "Cannot use name as it must have 1 to 512 UTF-8 bytes: current value has 0",
  );
});

// inspect()

Deno.test("inspect() of a lock that nobody ever took shows an empty one", async () => {
  assertEquals(await new World().lock().inspect(), { fence: 0, holders: [], waiters: 0 });
});

Deno.test("inspect() shows the holders, what they have left, and how many wait", async () => {
  const world = new World();
  const lock = world.lock({ ttlMs: 1000, capacity: 3, permits: 2, label: "one", queueMs: 5000 });
  const lease = await lock.acquire();
  const waiting = rejection(
    world.other({ capacity: 3, permits: 2 }).acquire({ timeoutMs: 500 }),
  );
  await world.clock.advance(100);
  const { fencingToken: fence } = lease;
  assertEquals(await lock.inspect(), {
    fence,
    holders: [{ fence, label: "one", permits: 2, remainingMs: 900 }],
    waiters: 1,
  });
  await world.clock.advance(400);
  assert(await waiting instanceof LockTimeoutError);
});

// covers: G4
Deno.test("inspect() never shows a token", async () => {
  const world = new World();
  await world.lock().acquire();
  const text = Deno.inspect(await world.lock().inspect(), { depth: 9 });
  assertEquals(text.includes("secret"), false, text);
});

const asked: readonly [what: string, ask: (w: World) => Promise<unknown>, verb: string][] = [
  ["inspect()", (w) => w.lock().inspect(), "inspect"],
  ["forceRelease()", (w) => w.lock().forceRelease(), "inspect"],
  ["resume()", (w) => w.lock().resume(aBaton), "adopt"],
];
const aBaton: Baton = { v: 1, name: "job", token: "secret-9", fencingToken: 7 };
for (const [what, ask, type] of asked) {
  Deno.test(`${what} asks three times while the storage fails, then rejects`, async () => {
    const world = new World();
    world.storage.inject({ type: "lose-request" }, { times: 3 });
    const failed = rejection<StorageError>(ask(world));
    await world.clock.advance(200);
    const error = await failed;
    assertEquals([error instanceof StorageError, error.transient], [true, true]);
    // A hand-over that may have been applied is given back.
    const after = type === "adopt" ? ["release"] : [];
    assertEquals(world.sent(), [type, type, type, ...after].join(" "));
    assertEquals(world.clock.pendingTimers, 0);
  });

  Deno.test(`${what} does not ask again after a fault that stays`, async () => {
    const world = new World();
    const denied = new StorageError("denied", { transient: false });
    world.storage.inject({ type: "error", error: denied });
    assertStrictEquals(await rejection(ask(world)), denied);
    assertEquals(world.sent(), type);
  });

  Deno.test(`${what} does not wait longer than requestTimeoutMs for an answer`, async () => {
    const world = new World();
    world.storage.inject({ type: "hang" }, { times: 3 });
    const failed = rejection(ask(world));
    await world.clock.advance(15_200);
    const verb = type === "adopt" ? "resume" : type;
    assertEquals(
      (await failed).message,
      `Cannot ${verb} lock "job" as the storage did not answer: current value is 5000 ms`,
    );
  });
}

// forceRelease()

// covers: S4.15
Deno.test("forceRelease() takes the lock away from whoever holds it, and says from how many", async () => {
  const world = new World();
  const options = { capacity: 2 };
  await world.lock(options).acquire();
  await world.lock(options).acquire();
  assertEquals(await world.other(options).forceRelease(), 2);
  assertEquals(await world.holders(), []);
});

// covers: G4
Deno.test("forceRelease() with a fence takes away only that holding", async () => {
  const world = new World();
  const options = { capacity: 2 };
  const one = await world.lock(options).acquire();
  const two = await world.lock(options).acquire();
  assertEquals(await world.other(options).forceRelease(one.fencingToken), 1);
  assertEquals(await world.holders(), [two.fencingToken]);
});

Deno.test("forceRelease() of a free lock removes nothing", async () => {
  assertEquals(await new World().lock().forceRelease(), 0);
});

// covers: G4
Deno.test("forceRelease() never touches a holder that came after it looked", async () => {
  const world = new World();
  await world.lock().acquire();
  const evicting = world.otherStorage;
  evicting.inject({ type: "duplicate", afterMs: 100 }, { when: (c) => c.type === "evict" });
  await world.other().forceRelease();
  const next = await world.other().acquire();
  await world.clock.advance(100);
  assertEquals(await world.holders(), [next.fencingToken]);
});

const wrongFences: readonly [fence: unknown, error: typeof Error, message: string][] = [
  ["7", TypeError, "Cannot use fence as it must be a number: current value is of type string"],
  [
    0.5,
    RangeError,
    "Cannot use fence as it must be an integer from 1 to 9007199254740991: current value is 0.5",
  ],
  [
    NaN,
    RangeError,
    "Cannot use fence as it must be an integer from 1 to 9007199254740991: current value is NaN",
  ],
];
for (const [fence, error, message] of wrongFences) {
  Deno.test(`forceRelease(${Deno.inspect(fence)}) is refused before anything is sent`, async () => {
    const world = new World();
    await assertRejects(() => world.lock().forceRelease(fence as number), error, message);
    assertEquals(world.sent(), "");
  });
}

// resume()

// covers: G2 G4 S4.15
Deno.test("resume() takes over a lease that was detached, under a larger fence", async () => {
  const world = new World();
  const given = await world.lock().acquire();
  const taken = await world.other().resume(JSON.parse(JSON.stringify(given.detach())));
  assert(taken!.fencingToken > given.fencingToken && taken!.token !== given.token);
  assertEquals([taken!.status, await world.holders()], ["held", [taken!.fencingToken]]);
});

// covers: G1
Deno.test("resume() gives a lease to the first caller, and null to the second", async () => {
  const world = new World();
  const baton = (await world.lock().acquire()).detach();
  const taken = await Promise.all([world.lock().resume(baton), world.other().resume(baton)]);
  assertEquals(taken.map((lease) => lease?.status), ["held", undefined]);
});

const overs: readonly [what: string, end: (w: World) => Promise<unknown>][] = [
  ["ran out", (w) => w.clock.advance(30_000)],
  ["was evicted", (w) => w.other().forceRelease()],
];
for (const [what, end] of overs) {
  Deno.test(`resume() of a lease that ${what} is null`, async () => {
    const world = new World();
    const baton = (await world.lock().acquire()).detach();
    await end(world);
    assertEquals(await world.other().resume(baton), null);
  });
}

// covers: G11
Deno.test("resume() whose reply was lost still takes over", async () => {
  const world = new World();
  const baton = (await world.other().acquire()).detach();
  world.storage.inject({ type: "lose-reply" });
  const resuming = world.lock().resume(baton);
  await world.clock.advance(100);
  const lease = await resuming;
  assertEquals([lease!.status, await world.holders()], ["held", [lease!.fencingToken]]);
});

// covers: G5
Deno.test("resume() counts the deadline from before the request that was answered", async () => {
  const world = new World();
  const baton = (await world.other({ ttlMs: 1000 }).acquire()).detach();
  world.storage.inject({ type: "late-reply", ms: 40 });
  const resuming = world.lock({ ttlMs: 1000 }).resume(baton);
  await world.clock.advance(40);
  assertEquals((await resuming)!.remainingMs(), 988 - 40);
});

// covers: G5
Deno.test("resume() that was sent twice counts the deadline from the second time", async () => {
  const world = new World();
  const baton = (await world.other({ ttlMs: 1000 }).acquire()).detach();
  world.storage.inject({ type: "lose-request" });
  const resuming = world.lock({ ttlMs: 1000 }).resume(baton);
  await world.clock.advance(100);
  const lease = await resuming;
  assert(lease!.remainingMs() > 988 - 100, `${lease!.remainingMs()} ms`);
});

Deno.test("resume() keeps other waiters of its process out of the way", async () => {
  const world = new World();
  const baton = (await world.other().acquire()).detach();
  await world.lock().resume(baton);
  world.sent();
  assertEquals(await world.lock().tryAcquire(), null);
  assertEquals(world.sent(), "");
});

// covers: G8
Deno.test("resume() asks for no more than the longest time that it may hold", async () => {
  const world = new World();
  const baton = (await world.other({ ttlMs: 100 }).acquire()).detach();
  const lease = await world.lock({ maxHoldMs: 1000 }).resume(baton);
  assertEquals(Math.floor(lease!.remainingMs()), 1000);
  const { holders } = await world.lock().inspect();
  assert(holders[0]!.remainingMs <= 1020, `${holders[0]!.remainingMs} ms`);
});

Deno.test("resume() renews the lease with the options of its own lock", async () => {
  const world = new World();
  const baton = (await world.other({ ttlMs: 60_000 }).acquire()).detach();
  const lease = await world.lock({ ttlMs: 900 }).resume(baton);
  await world.clock.advance(5000);
  assertEquals([lease!.status, lease!.remainingMs() <= 900], ["held", true]);
  await lease!.release();
});

const NOT_A_BATON =
  'Cannot resume lock "job" as the baton must be what detach() returned: current value is of type ';
const wrongBatons: readonly [what: string, baton: unknown, type: string][] = [
  ["undefined", undefined, "undefined"],
  ["null", null, "null"],
  ["a string", JSON.stringify(aBaton), "string"],
  ["a number", 5, "number"],
  ["an array", [], "object"],
  ["an empty object", {}, "object"],
  ["another version", { ...aBaton, v: 2 }, "object"],
  ["no name", { ...aBaton, name: undefined }, "object"],
  ["a token that is no string", { ...aBaton, token: 5 }, "object"],
  ["a fence that is no number", { ...aBaton, fencingToken: "7" }, "object"],
  ["a fence that is a fraction", { ...aBaton, fencingToken: 0.5 }, "object"],
];
for (const [what, baton, type] of wrongBatons) {
  Deno.test(`resume() of ${what} is a TypeError without a token, and sends nothing`, async () => {
    const world = new World();
    const error = await assertRejects(() => world.lock().resume(baton), TypeError);
    assertEquals([error.message, world.sent()], [NOT_A_BATON + type, ""]);
  });
}

Deno.test("resume() of a baton for another lock is a RangeError without a token, and sends nothing", async () => {
  const world = new World();
  const error = await rejection(world.lock().resume({ ...aBaton, name: "other" }));
  assertEquals([error instanceof RangeError, error.message, world.sent()], [
    true,
    'Cannot resume lock "job" as the baton is for another: current value is "other"',
    "",
  ]);
});

// with() and tryWith()

/** Runs work under the lock, by either of the two forms, to the value that comes out. */
type Runner = <T>(
  world: World,
  work: Parameters<ReturnType<World["lock"]>["with"]>[0],
  options?: Partial<LockOptions>,
) => Promise<T>;
const forms: readonly [form: string, run: Runner][] = [
  [
    "with()",
    <T>(world: World, work: Parameters<Runner>[1], options?: Partial<LockOptions>) =>
      world.lock(options).with(work) as Promise<T>,
  ],
  [
    "tryWith()",
    async <T>(world: World, work: Parameters<Runner>[1], options?: Partial<LockOptions>) => {
      const result = await world.lock(options).tryWith(work);
      if (!result.acquired) throw new Error(`not acquired: ${result.reason}`);
      return result.value as T;
    },
  ],
];
for (const [form, run] of forms) {
  // covers: S2.12 S2.13 S5.2
  Deno.test(`${form} returns what the work returns, and releases before it settles`, async () => {
    const world = new World();
    assertEquals(await run(world, () => Promise.resolve(42)), 42);
    assertEquals([world.sent(), await world.holders()], ["acquire release", []]);
    assertEquals(world.clock.pendingTimers, 0);
  });

  // covers: S1.7
  Deno.test(`${form} settles only when the storage has answered the release`, async () => {
    const world = new World();
    const isRelease = (c: { type: string }) => c.type === "release";
    world.storage.inject({ type: "late-reply", ms: 50 }, { when: isRelease });
    const work = run(world, () => "done");
    await world.clock.advance(49);
    assertEquals(await isPending(work, world.clock), true);
    await world.clock.advance(1);
    assertEquals(await work, "done");
  });

  // covers: S2.13
  Deno.test(`${form} takes work that is not asynchronous and returns nothing`, async () => {
    const world = new World();
    assertEquals(await run(world, () => {}), undefined);
    assertEquals(await world.holders(), []);
  });

  // covers: S5.3 S3.3
  Deno.test(`${form} gives the work the lease, which is held`, async () => {
    const world = new World();
    const [status, fence, holders] = await run<[string, number, number[]]>(
      world,
      async (lease) => [lease.status, lease.fencingToken, await world.holders()],
    );
    assertEquals([status, [fence]], ["held", holders]);
  });

  // covers: S5.2 S1.1
  Deno.test(`${form} keeps the lease while the work goes on for many ttls`, async () => {
    const world = new World();
    const work = run(world, async (lease) => {
      await new Promise<void>((resolve) => void world.clock.setTimer(10_000, resolve));
      return lease.status;
    }, { ttlMs: 1000 });
    await world.clock.advance(10_000);
    assertEquals(await work, "held");
  });

  // covers: S2.13 S4.14
  Deno.test(`${form} lets the work's own error out, and releases`, async () => {
    const world = new World();
    const own = new Error("own");
    assertStrictEquals(await rejection(run(world, () => Promise.reject(own))), own);
    assertEquals([world.sent(), await world.holders()], ["acquire release", []]);
  });

  Deno.test(`${form} lets out what the work throws before its first await`, async () => {
    const world = new World();
    assertEquals(
      await rejection(run(world, () => {
        throw "not even an error";
      })),
      "not even an error",
    );
    assertEquals(await world.holders(), []);
  });

  for (const value of ["result", undefined]) {
    // covers: S5.12
    Deno.test(`${form} rejects with the value ${value} if the lease was lost under the work`, async () => {
      const world = new World();
      const error = await rejection<LeaseLostError>(run(world, (lease) => {
        world.clock.freeze(30_000);
        assertEquals(lease.isHeld(), false);
        return value;
      }));
      assert(error instanceof LeaseLostError);
      assertEquals([error.reason, error.hasValue, error.value], ["expired", true, value]);
      assert(
        /^Cannot use lease "job" as it is expired: current value is fence \d+$/.test(error.message),
      );
    });
  }

  // covers: G6
  Deno.test(`${form} notices a loss that no timer and no check has seen yet`, async () => {
    const world = new World();
    const error = await rejection<LeaseLostError>(run(world, () => world.clock.freeze(30_000)));
    assertEquals([error instanceof LeaseLostError, error.reason], [true, "expired"]);
  });

  Deno.test(`${form} sends nothing for a lease that was lost`, async () => {
    const world = new World();
    await rejection(run(world, () => world.clock.freeze(30_000)));
    assertEquals(world.sent(), "acquire");
  });

  Deno.test(`${form} lets the work's own error out although the lease was lost`, async () => {
    const world = new World();
    const own = new Error("own");
    const failed = run(world, () => {
      world.clock.freeze(30_000);
      throw own;
    });
    assertStrictEquals(await rejection(failed), own);
  });

  const causedBy: readonly [what: string, throws: (reason: Error) => unknown][] = [
    ["throws signal.reason", (reason) => reason],
    ["throws an AbortError", () => new DOMException("aborted", "AbortError")],
    ["throws an error whose cause is signal.reason", (cause) => new Error("gave up", { cause })],
  ];
  for (const [what, throws] of causedBy) {
    Deno.test(`${form} rejects with the LeaseLostError if the work ${what}`, async () => {
      const world = new World();
      let reason: unknown;
      const error = await rejection<LeaseLostError>(run(world, (lease) => {
        world.clock.freeze(30_000);
        reason = lease.signal.reason;
        throw throws(reason as Error);
      }));
      assertStrictEquals(error, reason);
      assertEquals([error instanceof LeaseLostError, error.hasValue], [true, false]);
    });
  }

  Deno.test(`${form} lets an AbortError out that the lease did not cause`, async () => {
    const world = new World();
    const own = new DOMException("the user's own", "AbortError");
    assertStrictEquals(await rejection(run(world, () => Promise.reject(own))), own);
  });

  // covers: S2.10 S3.15
  Deno.test(`${form} returns the value although the release fails, and tells of it`, async () => {
    const world = new World();
    world.storage.inject({ type: "lose-request" }, {
      times: 3,
      when: (c) => c.type === "release",
    });
    const work = run(world, () => "done");
    await world.clock.advance(1000);
    assertEquals(await work, "done");
    assertEquals(world.told(), "acquired releaseFailed");
  });

  Deno.test(`${form} sends nothing more for a lease that the work detached`, async () => {
    const world = new World();
    const baton = await run<Baton>(world, (lease) => lease.detach());
    assertEquals([world.sent(), (await world.holders()).length], ["acquire", 1]);
    assert(await world.other().resume(baton));
  });

  Deno.test(`${form} sends nothing more for a lease that the work released`, async () => {
    const world = new World();
    assertEquals(await run(world, (lease) => lease.release()), true);
    assertEquals(world.sent(), "acquire release");
  });
}

// covers: S2.12
Deno.test("tryWith() does not call the work while another token holds, and says when to try again", async () => {
  const world = new World();
  await world.other({ ttlMs: 5000 }).acquire();
  let calls = 0;
  assertEquals(await world.lock().tryWith(() => calls++), {
    acquired: false,
    reason: "held",
    retryAfterMs: 5000,
  });
  assertEquals([calls, world.sent()], [0, "acquire"]);
});

Deno.test("tryWith() says when a holder of its own process may be gone, without a request", async () => {
  const world = new World();
  await world.lock({ ttlMs: 5000 }).acquire();
  world.sent();
  assertEquals(await world.lock().tryWith(() => {}), {
    acquired: false,
    reason: "held",
    retryAfterMs: 4948,
  });
  assertEquals(world.sent(), "");
});

// covers: S2.6 S3.10
Deno.test("tryWith() with onUnavailable skip does not call the work when the storage fails", async () => {
  const world = new World();
  world.storage.inject({ type: "lose-request" }, { times: Infinity });
  let calls = 0;
  const tried = world.lock({ onUnavailable: "skip" }).tryWith(() => calls++);
  await world.clock.advance(1000);
  assertEquals(await tried, { acquired: false, reason: "unavailable", retryAfterMs: 50 });
  assertEquals([calls, world.told()], [0, "unavailable"]);
});

// covers: G8 S5.2
Deno.test("with() waits for the lock", async () => {
  const world = new World();
  const lease = await world.other().acquire();
  const work = world.lock().with((l) => l.waitedMs);
  await world.clock.advance(70);
  await lease.release();
  assertEquals(await work, 70);
});

Deno.test("with() does not call the work after a time-out or an abort", async () => {
  const world = new World();
  await world.other().acquire();
  let calls = 0;
  const stop = new AbortController();
  const timedOut = rejection(world.lock().with(() => calls++, { timeoutMs: 100 }));
  const aborted = rejection(world.lock().with(() => calls++, { signal: stop.signal }));
  stop.abort("enough");
  await world.clock.advance(100);
  assertEquals([(await timedOut) instanceof LockTimeoutError, await aborted, calls], [
    true,
    "enough",
    0,
  ]);
});

// covers: S2.17 S3.17
Deno.test("of many processes that start the same job, one runs it and the rest skip it", async () => {
  const world = new World();
  let runs = 0;
  const replicas = Array.from(
    { length: 20 },
    (_, i) =>
      (i % 2 ? world.lock() : world.other({ gate: false })).tryWith(async () => {
        runs++;
        await world.clock.advance(0);
      }),
  );
  const results = await Promise.all(replicas);
  assertEquals([runs, results.filter((r) => r.acquired).length], [1, 1]);
});

// covers: S3.17
Deno.test("minHoldMs lets a job run once an interval although it is done at once", async () => {
  const world = new World();
  const results: boolean[] = [];
  for (let i = 0; i < 10; i++) {
    const lock = i % 2 ? world.lock({ minHoldMs: 1000 }) : world.other({ minHoldMs: 1000 });
    results.push((await lock.tryWith(() => {})).acquired);
    await world.clock.advance(250);
  }
  assertEquals(results.map(Number).join(""), "1000100010");
});

// covers: S5.14
Deno.test("fences go up over runs back to back", async () => {
  const world = new World();
  const fences: number[] = [];
  for (let i = 0; i < 3; i++) fences.push(await world.lock().with((lease) => lease.fencingToken));
  assertEquals(fences, [fences[0]!, fences[0]! + 1, fences[0]! + 2]);
});

// Defaults.

// covers: S3.16 S2.5 S4.3
Deno.test("tokens are random UUIDs, never the same twice", async () => {
  const world = new World();
  const lock = world.lock({ entropy: undefined, capacity: 100 });
  const leases = await Promise.all(Array.from({ length: 100 }, () => lock.acquire()));
  const tokens = new Set(leases.map((lease) => lease.token));
  const uuid = /^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/;
  assertEquals([tokens.size, [...tokens].every((token) => uuid.test(token))], [100, true]);
});

Deno.test("a lock without a clock goes by the system's", async () => {
  const world = new World();
  const lease = await world.lock({ clock: undefined, ttlMs: 20_000 }).acquire();
  const leftMs = lease.remainingMs();
  assert(leftMs > 15_000 && leftMs <= 19_798, `${leftMs} ms`);
  assert(systemClock.read().wallMs > 0);
  await lease.release();
});

Deno.test("a capacity mismatch is a HoldfastError that says both", async () => {
  const world = new World();
  await world.other({ capacity: 3 }).acquire();
  const error = await rejection<HoldfastError>(world.lock({ capacity: 2 }).acquire());
  assertEquals([error instanceof HoldfastError, error.code, error.message], [
    true,
    "capacity-mismatch",
    'Cannot acquire lock "job" with a capacity of 2 as its holders use another: current value is 3',
  ]);
});

Deno.test("an error of the storage's own is the cause of a StorageError, and is not repeated", async () => {
  const world = new World();
  const cause = new Error("connection reset");
  world.storage.inject({ type: "error", error: cause });
  const error = await rejection<StorageError>(world.lock().inspect());
  assertEquals([error instanceof StorageError, error.message, error.transient], [
    true,
    'Cannot inspect lock "job" as the storage failed',
    false,
  ]);
  assertStrictEquals(error.cause, cause);
  assertEquals(world.sent(), "inspect");
});

Deno.test("a call that is pending leaves the lock object usable", async () => {
  const world = new World();
  const lease = await world.other().acquire();
  const lock = world.lock();
  const waiting = lock.acquire();
  assertEquals(await isPending(waiting, world.clock), true);
  assertEquals((await lock.inspect()).holders.length, 1);
  await lease.release();
  assertEquals((await waiting).status, "held");
});
