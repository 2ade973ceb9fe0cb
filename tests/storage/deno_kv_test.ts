import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { Lock, StorageError } from "../../mod.ts";
import { encodeRecord } from "../../src/core/codec.ts";
import { dispose } from "../../src/core/disposable.ts";
import type { LeaseRecord } from "../../src/core/record.ts";
import { waiterMark } from "../../src/core/storage.ts";
import { DenoKvStorage, type DenoKvStorageOptions } from "../../src/storage/deno_kv.ts";
import { check, eventually } from "../../src/testing/check.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { acquire, adopt, evict, inspect, release, renew, token } from "../support/commands.ts";
import { startKvConnect } from "../support/kv_connect.ts";
import { type CommitFault, KvSpy } from "../support/kv_spy.ts";

/** Runs a test on a database in memory. */
async function withKv(
  test: (kv: Deno.Kv, spy: KvSpy, storage: DenoKvStorage) => Promise<void>,
  options: DenoKvStorageOptions = {},
): Promise<void> {
  const kv = await Deno.openKv(":memory:");
  try {
    const spy = new KvSpy(kv);
    await test(kv, spy, new DenoKvStorage(spy, { maxClockSkewMs: 0, ...options }));
  } finally {
    kv.close();
  }
}

async function grant(
  storage: DenoKvStorage,
  name: string,
  holder: string,
  more: Parameters<typeof acquire>[1] = {},
): Promise<number> {
  const outcome = await storage.execute(name, acquire(holder, more));
  check(outcome.type === "granted", JSON.stringify(outcome));
  return outcome.fence;
}

const record = (name: string, prefix = "holdfast") => [prefix, "lock", name];

/** The guards of a lock: fence and token. */
async function guardsOf(kv: Deno.Kv, name: string): Promise<[number, string, string][]> {
  const guards: [number, string, string][] = [];
  for await (const entry of kv.list<Uint8Array>({ prefix: ["holdfast", "guard", name] })) {
    const fence = entry.key[3] as number;
    guards.push([fence, new TextDecoder().decode(entry.value), entry.versionstamp]);
  }
  return guards;
}

Deno.test("acquire, renew and release are one atomic commit each, and no read", () =>
  withKv(async (_kv, spy, storage) => {
    const lock = new Lock({ storage, name: "budget", autoRenew: false });
    for (let cycle = 1; cycle <= 3; cycle++) {
      const lease = await lock.acquire();
      await lease.renew();
      await lease.release();
      assertEquals([spy.commits, spy.reads], [3 * cycle, 0]);
    }
    assertEquals(spy.mostChecks, 1);
  }));

Deno.test("acquire of a held lock is one read if the lock is known, and writes nothing", () =>
  withKv(async (kv, spy, storage) => {
    const other = new DenoKvStorage(kv);
    await grant(other, "held", token());
    const { versionstamp } = await kv.get(record("held"));
    assertEquals((await storage.execute("held", acquire(token()))).type, "held");
    assertEquals([spy.commits, spy.reads], [1, 1], "unknown: one write tried as if it were absent");
    for (let i = 0; i < 5; i++) await storage.execute("held", acquire(token()));
    assertEquals((await kv.get(record("held"))).versionstamp, versionstamp);
  }));

for (const fault of ["lost", "broken"] satisfies CommitFault[]) {
  // covers: G11
  Deno.test(`a commit that was applied and is reported ${fault} is recognised as our own`, () =>
    withKv(async (kv, spy, storage) => {
      const lock = new Lock({ storage, name: "reply", autoRenew: false });
      spy.faults.push(fault);
      const first = await lock.tryAcquire();
      check(first, "our own grant was taken for somebody else's");
      assertEquals((await guardsOf(kv, "reply")).map(([fence]) => fence), [first.fencingToken]);
      spy.faults.push(fault);
      await first.renew();
      spy.faults.push(fault);
      const taken = await lock.resume(first.detach());
      check(taken, "our own hand-over was taken for somebody else's");
      spy.faults.push(fault);
      assertEquals(await taken.release(), true);
      assertEquals(spy.commits, 4, "nothing had to be written twice");
    }));
}

// covers: G11
Deno.test("a remote server that loses replies does not turn our lock into somebody else's", async () => {
  const server = startKvConnect();
  Deno.env.set("DENO_KV_ACCESS_TOKEN", "any");
  const kv = await Deno.openKv(server.url);
  try {
    const storage = new DenoKvStorage(kv, { location: "remote" });
    const lock = new Lock({ storage, name: "remote", autoRenew: false });
    server.loseReplies(2);
    const lease = await lock.tryAcquire();
    check(lease, "our own grant was taken for somebody else's");
    assertEquals(server.requests.get("/v2/atomic_write"), 3, "the runtime sent the commit again");
    server.loseReplies(1);
    await lease.renew();
    server.loseReplies(1);
    assertEquals(await lease.release(), true);
  } finally {
    kv.close();
    await server.close();
  }
});

Deno.test("a locked database is tried again, with pauses that grow", () =>
  withKv(async (_kv, spy, storage) => {
    spy.faults.push("locked", "locked", "locked");
    await grant(storage, "locked", token());
    assertEquals([spy.commits, spy.reads], [4, 0]);
    spy.readErrors.push(new TypeError("database is locked"));
    assertEquals((await storage.execute("locked", inspect)).holders.length, 1);
  }));

Deno.test("a database that stays locked is a transient StorageError", async () => {
  const clock = new ManualClock();
  await withKv(async (_kv, spy, storage) => {
    spy.faults.push(...Array<CommitFault>(100).fill("locked"));
    const granted = storage.execute("locked", acquire(token()));
    let error: unknown;
    granted.catch((e) => error = e);
    while (!error) {
      await clock.advance(50);
      // The read in between is real.
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    check(error instanceof StorageError, String(error));
    assertEquals(
      error.message,
      `Cannot write key "holdfast/lock/locked" as others keep the database locked: ` +
        `current value is 20 tries`,
    );
    assertEquals(error.transient, true);
    assertEquals((error.cause as Error).message, "database is locked");
    assertEquals(spy.commits, 40, "20 tries, and 20 more after a read");
    assertEquals(clock.pendingTimers, 0);
  }, { clock, entropy: { uuid: () => crypto.randomUUID(), random: () => 1 } });
});

Deno.test("the pause of a locked database ends with the signal", () =>
  withKv(async (_kv, spy, storage) => {
    spy.faults.push(...Array<CommitFault>(100).fill("locked"));
    const stop = new AbortController();
    const granted = storage.execute("locked", acquire(token()), { signal: stop.signal });
    stop.abort(new Error("given up"));
    await assertRejects(() => granted, Error, "given up");
  }));

// covers: G12
Deno.test("a value that is not ours is an error with its key, and stays as it is", () =>
  withKv(async (kv, _spy, storage) => {
    const values = [
      null,
      "a text",
      7,
      { holdfast: 1 },
      new Deno.KvU64(3n),
      new Uint8Array(),
      new Uint8Array([0xff, 0xfe]),
      // The text of a record, but not as bytes; after a mark; with a label that is not UTF-8.
      "holdfast 1 5\n.\n",
      new TextEncoder().encode("\ufeffholdfast 1 5\n.\n"),
      Uint8Array.from("holdfast 1 5\nh - 5 1 1 1000 0 9 \xff\n.\n", (c) => c.charCodeAt(0)),
    ];
    for (const [i, value] of values.entries()) {
      const name = `foreign ${i}`;
      await kv.set(record(name), value);
      for (const command of [acquire(token()), inspect, release(token()), evict()]) {
        const error = await assertRejects(() => storage.execute(name, command), StorageError);
        assertEquals(
          error.message,
          `Cannot use key "holdfast/lock/${name}" as its value is not a Holdfast record`,
        );
        assertEquals(error.transient, false);
      }
      assertEquals((await kv.get(record(name))).value, value);
    }
  }));

Deno.test("the guard of a holding comes with its grant and goes with its end", () =>
  withKv(async (kv, _spy, storage) => {
    const [a, b, c, d] = [token(), token(), token(), token()];
    const first = await grant(storage, "guard", a);
    assertEquals((await guardsOf(kv, "guard")).map(([f, t]) => [f, t]), [[first, a]]);

    await storage.execute("guard", release(a));
    assertEquals(await guardsOf(kv, "guard"), [], "after a release");

    const second = await grant(storage, "guard", b);
    const adopted = await storage.execute("guard", adopt(b, second, c));
    check(adopted.type === "granted", JSON.stringify(adopted));
    const guards = (await guardsOf(kv, "guard")).map(([f, t]) => [f, t]);
    assertEquals(guards, [[adopted.fence, c]], "after a hand-over");

    await storage.execute("guard", evict());
    assertEquals(await guardsOf(kv, "guard"), [], "after an eviction");

    await grant(storage, "guard", d, { ttlMs: 10 });
    await new Promise((resolve) => setTimeout(resolve, 20));
    assertEquals((await guardsOf(kv, "guard")).length, 1, "expired, and not replaced");
    const fence = await grant(storage, "guard", a.toUpperCase());
    const left = (await guardsOf(kv, "guard")).map(([f]) => f);
    assertEquals(left, [fence], "after a takeover");
  }));

Deno.test("renewals and tickets do not touch a guard", () =>
  withKv(async (kv, _spy, storage) => {
    const holder = token();
    const fence = await grant(storage, "untouched", holder);
    const before = await guardsOf(kv, "untouched");
    await storage.execute("untouched", renew(holder, fence));
    await storage.execute("untouched", acquire(token(), { fair: true, queueMs: 5000 }));
    await storage.execute("untouched", acquire(holder));
    assertEquals(await guardsOf(kv, "untouched"), before);
  }));

Deno.test("a semaphore has one guard for each of its holders", () =>
  withKv(async (kv, _spy, storage) => {
    const holders = [token(), token(), token()];
    const fences: number[] = [];
    for (const holder of holders) {
      fences.push(await grant(storage, "pool", holder, { capacity: 3 }));
    }
    await storage.execute("pool", release(holders[1]!));
    const left = (await guardsOf(kv, "pool")).map(([fence]) => fence);
    assertEquals(left, [fences[0], fences[2]]);
  }));

Deno.test("a record expires only when no guard is left that could outlive it", () =>
  withKv(async (_kv, spy, storage) => {
    const holder = token();
    const fence = await grant(storage, "expiry", holder, { ttlMs: 1000 });
    await storage.execute("expiry", renew(holder, fence, 1000));
    assertEquals(spy.sets.map((s) => s.expireIn), [undefined, undefined, undefined]);
    spy.sets.length = 0;
    await storage.execute("expiry", { ...release(holder, 500), spentMs: 1000 });
    const [kept] = spy.sets;
    assert(kept!.expireIn! > 3_600_000 && kept!.expireIn! < 3_602_000, `${kept!.expireIn}`);
  }));

Deno.test("the largest record that can arise fits", () =>
  withKv(async (kv, _spy, storage) => {
    const ms = 30 * 24 * 3_600_000;
    const nowMs = Date.now();
    const large: LeaseRecord = {
      fence: nowMs * 1000,
      holders: Array.from({ length: 255 }, (_, i) => ({
        token: token(),
        fence: nowMs * 1000 - i,
        permits: 100_000,
        capacity: 1_000_000,
        ttlMs: ms,
        beats: 999_999_999,
        expiresAtMs: nowMs + ms,
        label: "é".repeat(32),
      })).map((holder, i) => ({ ...holder, permits: i === 0 ? 100_000 : 1 })),
      tickets: Array.from({ length: 255 }, () => ({
        token: token(),
        permits: 1_000_000,
        fair: false,
        expiresAtMs: nowMs + ms,
      })),
      spent: Array.from({ length: 16 }, () => ({
        token: token(),
        end: "released" as const,
        expiresAtMs: nowMs + ms,
      })),
      extra: [`x ${"y".repeat(2045)}`],
    };
    await kv.set(record("large"), new TextEncoder().encode(encodeRecord(large)));
    const more = { ttlMs: ms, capacity: 1_000_000, label: "é".repeat(32) };
    await storage.execute("large", acquire(token(), { ...more, permits: 1_000_000, queueMs: ms }));
    await grant(storage, "large", token(), more);
    const { value } = await kv.get<Uint8Array>(record("large"));
    const lines = new TextDecoder().decode(value!).split("\n");
    const count = (kind: string) => lines.filter((line) => line.startsWith(kind)).length;
    assertEquals([count("h "), count("t "), count("s ")], [256, 256, 16]);
    assert(value!.length > 60_000 && value!.length <= 65_536, `${value!.length} bytes`);
    assertEquals((await storage.execute("large", acquire(token(), more))).type, "full");
    assertEquals((await storage.execute("large", evict())).type, "evicted", "256 guards in one go");
  }));

// covers: S2.15 S3.8
Deno.test("different names and prefixes never collide", () =>
  withKv(async (kv, _spy, storage) => {
    const other = new DenoKvStorage(kv, { prefix: "other" });
    for (const name of ["a", "a:token", "lock", "guard", "a/b", "lock/a"]) {
      await grant(storage, name, token());
      await grant(other, name, token());
    }
    const keys: string[] = [];
    for await (const { key } of kv.list({ prefix: ["other", "lock"] })) keys.push(String(key[2]));
    assertEquals(keys, ["a", "a/b", "a:token", "guard", "lock", "lock/a"]);
  }));

Deno.test("a version never repeats, so memory cannot overwrite a record that was deleted and made anew", () =>
  withKv(async (kv, _spy, storage) => {
    const [a, b] = [token(), token()];
    await grant(storage, "anew", a);
    await kv.delete(record("anew"));
    const fence = await grant(new DenoKvStorage(kv), "anew", b);
    assertEquals(await storage.execute("anew", release(a)), { type: "released", freed: false });
    const { holders } = await storage.execute("anew", inspect);
    assertEquals(holders.map((h) => h.fence), [fence]);
  }));

Deno.test("fences rise although the record was lost, and a takeover raises them", () =>
  withKv(async (kv, _spy, storage) => {
    const first = await grant(storage, "rise", token(), { ttlMs: 10 });
    await new Promise((resolve) => setTimeout(resolve, 20));
    const second = await grant(storage, "rise", token());
    await kv.delete(record("rise"));
    await new Promise((resolve) => setTimeout(resolve, 2));
    const third = await grant(new DenoKvStorage(kv), "rise", token());
    assert(first < second && second < third, `${first} ${second} ${third}`);
  }));

Deno.test("errors that stay are not transient: a closed database, a refused token", async () => {
  const closed = await Deno.openKv(":memory:");
  const storage = new DenoKvStorage(closed);
  closed.close();
  for (const [command, verb] of [[inspect, "read"], [acquire(token()), "write"]] as const) {
    const error = await assertRejects(() => storage.execute("x", command), StorageError);
    assertEquals(error.message, `Cannot ${verb} key "holdfast/lock/x" as Deno KV failed`);
    assertEquals([error.transient, (error.cause as Error).message], [false, "Bad resource ID"]);
  }

  const server = startKvConnect();
  Deno.env.set("DENO_KV_ACCESS_TOKEN", "any");
  const kv = await Deno.openKv(server.url);
  server.refuse(401);
  const background: Promise<unknown>[] = [];
  const waitUntil = (work: Promise<unknown>) => background.push(work);
  const error = await assertRejects(
    () => new Lock({ storage: new DenoKvStorage(kv), name: "x" }).acquire({ waitUntil }),
    StorageError,
  );
  await Promise.all(background);
  assertEquals(error.transient, false);
  kv.close();
  await server.close();
});

// covers: S4.2
Deno.test("a database that is down is a transient StorageError, and the last chance is one read", () =>
  withKv(async (_kv, spy, storage) => {
    spy.faults.push("down", "down");
    const error = await assertRejects(
      () => storage.execute("down", acquire(token())),
      StorageError,
      `Cannot write key "holdfast/lock/down" as Deno KV failed`,
    );
    assertEquals([error.transient, (error.cause as Error).message], [true, "fetch failed"]);
    assertEquals([spy.commits, spy.reads], [2, 1]);
  }));

Deno.test("new DenoKvStorage() says what is wrong with its arguments", async () => {
  const kv = await Deno.openKv(":memory:");
  const wrong = [
    [
      () => new DenoKvStorage(undefined as unknown as Deno.Kv),
      TypeError,
      "Cannot use kv as it must be an open Deno.Kv, or Kv of @deno/kv: current value is of type undefined",
    ],
    [
      () => new DenoKvStorage(Promise.resolve(kv) as unknown as Deno.Kv),
      TypeError,
      "Cannot use kv as it must be an open Deno.Kv, or Kv of @deno/kv: current value is a promise",
    ],
    [
      () => new DenoKvStorage(kv, { location: "moon" as "local" }),
      TypeError,
      'Cannot use location as it must be one of "local", "remote": current value is "moon"',
    ],
    [
      () => new DenoKvStorage(kv, { prefix: "" }),
      RangeError,
      "Cannot use prefix as it must have 1 to 64 UTF-8 bytes: current value has 0",
    ],
    [
      () => new DenoKvStorage(kv, { pollMs: { min: 0, max: 5 } }),
      RangeError,
      "Cannot use pollMs.min as it must be an integer from 1 to 2592000000 ms: current value is 0",
    ],
  ] as const;
  for (const [make, errorClass, message] of wrong) {
    assertEquals(assertThrows(make, errorClass).message, message);
  }
  const local = new DenoKvStorage(kv);
  assertEquals([local.pollMs, local.maxClockSkewMs, local.wakesTickets], [
    { min: 5, max: 80 },
    0,
    false,
  ]);
  const remote = new DenoKvStorage(kv, { location: "remote" });
  assertEquals([remote.pollMs, remote.maxClockSkewMs, remote.wakesTickets], [
    { min: 250, max: 5000 },
    1000,
    true,
  ]);
  kv.close();
});

Deno.test("readers that go while others stay are no race that a writer lost", () =>
  withKv(async (kv) => {
    const open = (): DenoKvStorage => new DenoKvStorage(kv, { location: "remote" });
    const all = { name: "readers", capacity: 10, gate: false };
    const readers = new Lock({ ...all, storage: open() });
    const stays = await readers.acquire();
    const others = [await readers.acquire(), await readers.acquire(), await readers.acquire()];
    others.push(await readers.acquire());
    const stop = new AbortController();
    const writer = new Lock({ ...all, storage: open(), permits: 10 });
    const waiting = writer.acquire({ signal: stop.signal }).catch(() => {});
    await eventually(async () => (await readers.inspect()).waiters === 1, "a ticket");
    for (const lease of others) {
      await lease.release();
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    const newcomer = await readers.tryAcquire();
    stop.abort();
    await waiting;
    assert(newcomer, "a reader beside a reader");
    await newcomer?.release();
    await stays.release();
  }, { location: "remote" }));

/** Collects hints until a test says what it wants to see. */
class Hints {
  readonly all: (string | undefined)[] = [];
  readonly wake = (next?: string): void => void this.all.push(next);

  async become(expected: (string | undefined)[]): Promise<void> {
    for (let i = 0; i < 500 && this.all.length < expected.length; i++) {
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    // One more would be wrong, too.
    await new Promise((resolve) => setTimeout(resolve, 20));
    assertEquals(this.all, expected);
  }
}

Deno.test("the watch hints at the first in line when there is room for it, not at renewals", () =>
  withKv(async (_kv, _spy, storage) => {
    const [holder, first, second] = [token(), token(), token()];
    const fence = await grant(storage, "watch", holder);
    const hints = new Hints();
    const watch = storage.watch!("watch", hints.wake);
    try {
      assertEquals(watch.live, false, "not before the first event");
      await hints.become([undefined]);
      assertEquals(watch.live, true);
      await storage.execute("watch", renew(holder, fence));
      await hints.become([undefined]);
      const queue = { queueMs: 5000, fair: true };
      await storage.execute("watch", acquire(first, queue));
      await storage.execute("watch", acquire(second, queue));
      await storage.execute("watch", renew(holder, fence));
      await hints.become([undefined]);
      await storage.execute("watch", release(holder));
      await hints.become([undefined, waiterMark(first)]);
      await grant(storage, "watch", first);
      await hints.become([undefined, waiterMark(first)]);
      await storage.execute("watch", release(first));
      await hints.become([undefined, waiterMark(first), waiterMark(second)]);
    } finally {
      watch[dispose]();
    }
  }, { location: "remote" }));

Deno.test("a local database is not watched, and its clients share one clock", () =>
  withKv((kv) => {
    const storage = new DenoKvStorage(kv);
    assertEquals([storage.watch, storage.maxClockSkewMs], [undefined, 0]);
    return Promise.resolve();
  }));

Deno.test("the watch of a foreign value hints, so that the waiter sees the error", () =>
  withKv(async (kv, _spy, storage) => {
    const hints = new Hints();
    const watch = storage.watch!("foreign", hints.wake);
    await hints.become([undefined]);
    await kv.set(record("foreign"), "a text");
    await hints.become([undefined, undefined]);
    watch[dispose]();
  }, { location: "remote" }));

Deno.test("a watch that breaks is begun again, is not live meanwhile, and hints when it is", async () => {
  const clock = new ManualClock();
  const kv = await Deno.openKv(":memory:");
  let opened = 0;
  let cancelled = 0;
  let end = (): void => {};
  const client = {
    get: kv.get.bind(kv),
    atomic: kv.atomic.bind(kv),
    watch: () => ({
      getReader: () => {
        if (++opened === 2) throw new Error("not yet");
        const events = [{ done: false, value: [{ value: null, versionstamp: null }] }];
        const ended = new Promise<{ done: true }>((resolve) => end = () => resolve({ done: true }));
        return {
          read: () => Promise.resolve(events.shift() ?? ended),
          cancel: () => Promise.resolve(void cancelled++),
        };
      },
    }),
  };
  const entropy = { uuid: () => crypto.randomUUID(), random: () => 1 };
  const storage = new DenoKvStorage(client, { location: "remote", clock, entropy });
  const hints: unknown[] = [];
  const watch = storage.watch!("broken", (next) => hints.push(next));
  await clock.advance(0);
  assertEquals([watch.live, hints.length, opened], [true, 1, 1]);
  end();
  await clock.advance(999);
  assertEquals([watch.live, hints.length, opened], [false, 1, 1]);
  await clock.advance(1);
  assertEquals([watch.live, hints.length, opened], [false, 1, 2]);
  await clock.advance(2000);
  assertEquals([watch.live, hints.length, opened], [true, 2, 3]);
  watch[dispose]();
  await clock.advance(60_000);
  assertEquals([hints.length, opened, clock.pendingTimers], [2, 3, 0]);
  assertEquals(cancelled, 1, "nothing is left of the stream");
  kv.close();
});
