import { openKv } from "@deno/kv";
import { assert, assertEquals, assertRejects } from "@std/assert";
import { type Lease, Lock, StaleFenceError, StorageError } from "../../mod.ts";
import { DenoKvStorage, fencedCommit, type KvCommit } from "../../src/storage/deno_kv.ts";
import { check } from "../../src/testing/check.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { startKvConnect } from "../support/kv_connect.ts";
import { type CommitFault, KvSpy } from "../support/kv_spy.ts";

/** Runs a test on a database in memory, with a lock that does not renew by itself. */
async function withKv(
  test: (kv: Deno.Kv, spy: KvSpy, lock: Lock) => Promise<void>,
): Promise<void> {
  const kv = await Deno.openKv(":memory:");
  try {
    const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
    await test(kv, new KvSpy(kv), new Lock({ storage, name: "account", autoRenew: false }));
  } finally {
    kv.close();
  }
}

const BALANCE = ["balance"];
const ONE = new Uint8Array([1]);

function write(kv: KvSpy | Deno.Kv, lease: Lease): Promise<KvCommit> {
  return fencedCommit(kv as KvSpy, lease, (op) => op.set(BALANCE, ONE));
}

/** How many fenced commits left their nonce. */
async function countNonces(kv: Deno.Kv): Promise<number> {
  let count = 0;
  for await (const _ of kv.list({ prefix: ["holdfast", "nonce"] })) count++;
  return count;
}

/** Every way in which a holding ends. */
const ENDS: Record<string, (lock: Lock, lease: Lease) => Promise<unknown>> = {
  "was released": (_lock, lease) => lease.release(),
  "was evicted": (lock) => lock.forceRelease(),
  "was handed over": async (lock, lease) => {
    const baton = lease.detach();
    assert(await lock.resume(baton));
  },
  "expired and was replaced": async (lock) => {
    await new Promise((resolve) => setTimeout(resolve, 60));
    assert(await lock.tryAcquire());
  },
};

function staleMessage(lease: Lease): string {
  return `Cannot commit under lease "account" as its holding is over: ` +
    `current value is fence ${lease.fencingToken}`;
}

Deno.test("fencedCommit() writes while the lease is held, whatever the lease's renewals do", () =>
  withKv(async (kv, spy, lock) => {
    const lease = await lock.acquire();
    const result = await fencedCommit(spy, lease, async (op) => {
      await lease.renew();
      op.set(BALANCE, ONE);
    });
    const { value, versionstamp } = await kv.get(BALANCE);
    assertEquals([result, value], [{ ok: true, versionstamp: versionstamp! }, ONE]);
    assertEquals([spy.reads, spy.commits, spy.mostChecks], [1, 1, 2]);
    await lease.release();
  }));

for (const [how, end] of Object.entries(ENDS)) {
  // covers: G3 S3.4
  Deno.test(`fencedCommit() under a lease that ${how} is refused, and nothing is written`, () =>
    withKv(async (kv, spy, lock) => {
      const lease = await new Lock({
        storage: new DenoKvStorage(kv, { maxClockSkewMs: 0 }),
        name: "account",
        ttlMs: 50,
        autoRenew: false,
        gate: false,
      }).acquire();
      await end(lock, lease);
      const error = await assertRejects(() => write(spy, lease), StaleFenceError);
      assertEquals([error.message, error.fence], [staleMessage(lease), lease.fencingToken]);
      assertEquals([(await kv.get(BALANCE)).value, spy.commits], [null, 0]);
    }));

  // covers: G3
  Deno.test(`fencedCommit() is refused if its lease ${how} between its read and its commit`, () =>
    withKv(async (kv, spy, lock) => {
      const lease = await new Lock({
        storage: new DenoKvStorage(kv, { maxClockSkewMs: 0 }),
        name: "account",
        ttlMs: 50,
        autoRenew: false,
        gate: false,
      }).acquire();
      const writing = fencedCommit(spy, lease, async (op) => {
        op.set(BALANCE, ONE);
        await end(lock, lease);
      });
      const error = await assertRejects(() => writing, StaleFenceError);
      assertEquals(error.message, staleMessage(lease));
      assertEquals([(await kv.get(BALANCE)).value, await countNonces(kv)], [null, 0]);
    }));
}

Deno.test("fencedCommit() still writes under a lease that expired and that nobody replaced", () =>
  withKv(async (kv, spy) => {
    const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
    const lease = await new Lock({ storage, name: "account", ttlMs: 10, autoRenew: false })
      .acquire();
    await new Promise((resolve) => setTimeout(resolve, 20));
    assertEquals(lease.status, "lost");
    assertEquals((await write(spy, lease)).ok, true);
  }));

Deno.test("fencedCommit() says { ok: false } if a check of the user's own fails", () =>
  withKv(async (kv, spy, lock) => {
    const lease = await lock.acquire();
    const build = (op: ReturnType<KvSpy["atomic"]>) => {
      op.check({ key: ["other"], versionstamp: "00000000000000990000" });
      op.set(BALANCE, ONE);
    };
    assertEquals(await fencedCommit(spy, lease, build), { ok: false });
    assertEquals([(await kv.get(BALANCE)).value, await countNonces(kv)], [null, 0]);
    assertEquals((await write(spy, lease)).ok, true);
    await lease.release();
  }));

for (const fault of ["lost", "broken", "locked", "down"] satisfies CommitFault[]) {
  // covers: G11
  Deno.test(`fencedCommit() writes once, and knows it, if its commit is ${fault}`, async () => {
    const kv = await Deno.openKv(":memory:");
    const storage = new DenoKvStorage(kv);
    const lease = await new Lock({ storage, name: "account", autoRenew: false }).acquire();
    const spy = new KvSpy(kv);
    spy.faults.push(fault);
    await kv.set(["entries"], ONE);
    const entries = await kv.get(["entries"]);
    const result = await fencedCommit(spy, lease, (op) => {
      // A second copy of this commit would fail for this check, too.
      op.check({ key: ["entries"], versionstamp: entries.versionstamp });
      op.set(["entries"], ONE);
      op.set(BALANCE, ONE);
    });
    const { versionstamp } = await kv.get(BALANCE);
    assertEquals(result, { ok: true, versionstamp: versionstamp! });
    assertEquals([await countNonces(kv), spy.commits], [1, fault === "lost" ? 1 : 2]);
    await lease.release();
    kv.close();
  });
}

// covers: G11
Deno.test("fencedCommit() on a remote server that loses replies adds exactly once", async () => {
  const server = startKvConnect();
  Deno.env.set("DENO_KV_ACCESS_TOKEN", "any");
  const kv = await Deno.openKv(server.url);
  try {
    const storage = new DenoKvStorage(kv, { location: "remote" });
    const lease = await new Lock({ storage, name: "remote", autoRenew: false }).acquire();
    for (let i = 1; i <= 3; i++) {
      const { value } = await kv.get<Uint8Array>(BALANCE);
      server.loseReplies(i % 2);
      const next = new Uint8Array([(value?.[0] ?? 0) + 1]);
      assertEquals((await fencedCommit(kv, lease, (op) => op.set(BALANCE, next))).ok, true);
    }
    assertEquals((await kv.get<Uint8Array>(BALANCE)).value, new Uint8Array([3]));
    await lease.release();
  } finally {
    kv.close();
    await server.close();
  }
});

// covers: G3 G11
Deno.test("a copy of a commit that arrives after the first one, or after the lease, changes nothing", () =>
  withKv(async (kv, _spy, lock) => {
    const ops: Deno.AtomicOperation[] = [];
    const lease = await lock.acquire();
    const add = () => fencedCommit(kv, lease, (op) => ops[ops.length] = op.sum(["sum"], 1n));
    await add();
    await add();
    assertEquals(await ops[0]!.commit(), { ok: false });
    await lease.release();
    assertEquals(await ops[1]!.commit(), { ok: false });
    assertEquals((await kv.get<Deno.KvU64>(["sum"])).value?.value, 2n);
  }));

Deno.test("fencedCommit() that never learns the outcome is a transient StorageError", async () => {
  const clock = new ManualClock();
  await withKv(async (kv, spy, lock) => {
    const lease = await lock.acquire();
    spy.faults.push("down", "down", "down");
    let error: unknown;
    fencedCommit(spy, lease, (op) => op.set(BALANCE, ONE), { clock }).catch((e) => error = e);
    while (!error) {
      await clock.advance(1000);
      // The first read is real.
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    check(error instanceof StorageError, String(error));
    assertEquals(error.message, 'Cannot commit under lease "account" as Deno KV failed');
    assertEquals([error.transient, (error.cause as Error).message], [true, "fetch failed"]);
    assertEquals([spy.commits, (await kv.get(BALANCE)).value], [3, null]);
    await lease.release();
  });
});

Deno.test("fencedCommit() gives up with the signal, also while the client hangs", () =>
  withKv(async (kv, _spy, lock) => {
    const lease = await lock.acquire();
    const stop = new AbortController();
    const hanging = {
      get: kv.get.bind(kv),
      atomic: () => ({ ...new KvSpy(kv).atomic(), commit: () => new Promise<never>(() => {}) }),
    };
    const writing = fencedCommit(hanging, lease, (op) => op.set(BALANCE, ONE), {
      signal: stop.signal,
    });
    setTimeout(() => stop.abort(new Error("given up")), 20);
    await assertRejects(() => writing, Error, "given up");
    const early = fencedCommit(kv, lease, (op) => op.set(BALANCE, ONE), { signal: stop.signal });
    await assertRejects(() => early, Error, "given up");
    assertEquals((await kv.get(BALANCE)).value, null);
    await lease.release();
  }));

Deno.test("every holder of a semaphore can write, and only as long as it holds", () =>
  withKv(async (kv) => {
    const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
    const pool = new Lock({ storage, name: "account", capacity: 3, autoRenew: false });
    const leases = [await pool.acquire(), await pool.acquire(), await pool.acquire()];
    for (const lease of leases) assertEquals((await write(kv, lease)).ok, true);
    await leases[1]!.release();
    assertEquals((await write(kv, leases[0]!)).ok, true, "an older fence than the newest");
    await assertRejects(() => write(kv, leases[1]!), StaleFenceError);
    assertEquals((await write(kv, leases[2]!)).ok, true);
  }));

Deno.test("fencedCommit() needs the prefix of the storage", () =>
  withKv(async (kv) => {
    const storage = new DenoKvStorage(kv, { prefix: "mine" });
    const lease = await new Lock({ storage, name: "account", autoRenew: false }).acquire();
    await assertRejects(() => write(kv, lease), StaleFenceError, staleMessage(lease));
    const options = { prefix: "mine" };
    assertEquals((await fencedCommit(kv, lease, (op) => op.set(BALANCE, ONE), options)).ok, true);
  }));

Deno.test("neither a token of another holding nor another fence passes", () =>
  withKv(async (kv, _spy, lock) => {
    const { name, token, fencingToken } = await lock.acquire();
    for (
      const forged of [
        { name, token: crypto.randomUUID(), fencingToken },
        { name, token, fencingToken: fencingToken - 1 },
        { name: "other", token, fencingToken },
      ]
    ) {
      const writing = () => fencedCommit(kv, forged, (op) => op.set(BALANCE, ONE));
      const error = await assertRejects(writing, StaleFenceError);
      assertEquals(error.message.includes(token), false, "no token in a message");
    }
    assertEquals((await kv.get(BALANCE)).value, null);
  }));

Deno.test("what build() throws comes out, and nothing is written", () =>
  withKv(async (kv, spy, lock) => {
    const lease = await lock.acquire();
    const build = () => {
      throw new RangeError("not enough");
    };
    await assertRejects(() => fencedCommit(spy, lease, build), RangeError, "not enough");
    assertEquals([spy.commits, await countNonces(kv)], [0, 0]);
    await lease.release();
  }));

Deno.test("a nonce expires after an hour", () =>
  withKv(async (_kv, spy, lock) => {
    const lease = await lock.acquire();
    await write(spy, lease);
    assertEquals(spy.sets.filter((s) => s.key[1] === "nonce").map((s) => s.expireIn), [3_600_000]);
    await lease.release();
  }));

Deno.test("fencedCommit() works with @deno/kv in memory", async () => {
  const kv = await openKv("", { implementation: "in-memory" });
  const lock = new Lock({ storage: new DenoKvStorage(kv), name: "account", autoRenew: false });
  const lease = await lock.acquire();
  assertEquals(
    (await fencedCommit(kv, lease, (op) => op.set(BALANCE, ONE).delete(["x"]))).ok,
    true,
  );
  assertEquals((await kv.get(BALANCE)).value, ONE);
  await lease.release();
  const late = () => fencedCommit(kv, lease, (op) => op.delete(BALANCE));
  await assertRejects(late, StaleFenceError, staleMessage(lease));
  kv.close();
});
