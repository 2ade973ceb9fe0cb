/**
 * The contract, third part: lost, late and repeated messages between a lock and its storage.
 *
 * @module
 */
import { LeaseLostError } from "../core/errors.ts";
import { Lock } from "../core/lock.ts";
import { check, checkEqual, checkRejects, eventually, pause, uniqueName } from "./check.ts";
import type { ContractTest } from "./contract.ts";
import { FaultyStorage } from "./faulty_storage.ts";

/** Long enough that no pause of a slow machine ends a lease in the middle of a test. */
const TTL_MS = 20_000;

/** Tests under faults. */
export const faultTests: readonly ContractTest[] = [
  {
    name: "a lost reply never turns our own lock into somebody else's",
    covers: ["G11"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("lost reply");
      const storage = new FaultyStorage(a);
      const lock = new Lock({ storage, name, ttlMs: TTL_MS });
      storage.inject({ type: "lose-reply" });
      const first = await lock.tryAcquire();
      check(first, "tryAcquire took its own grant for somebody else's");
      storage.inject({ type: "lose-reply" });
      await first.renew().catch(() => {});
      check(first.isHeld(), "the lease was lost with the reply of a renewal");
      await first.renew();
      storage.inject({ type: "lose-reply" });
      checkEqual(await first.release(), true, "a release whose reply was lost");
      storage.inject({ type: "lose-reply" }, { times: 2 });
      const second = await lock.acquire();
      check(second.fencingToken > first.fencingToken, "fences rise");
      storage.inject({ type: "lose-reply" });
      const taken = await lock.resume(second.detach());
      check(taken, "resume took its own hand-over for somebody else's");
      checkEqual((await new Lock({ storage: b, name }).inspect()).holders.length, 1, "holders");
      checkEqual(await taken.release(), true, "release");
      checkEqual(
        (await new Lock({ storage: b, name }).inspect()).holders,
        [],
        "holders at the end",
      );
    },
  },
  {
    name: "late duplicates of every request grant, prolong and free nothing",
    covers: ["G4", "G9", "G11"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("duplicates");
      const storage = new FaultyStorage(a);
      const lock = new Lock({ storage, name, ttlMs: TTL_MS });
      storage.inject({ type: "duplicate", afterMs: 300 }, { times: 3 });
      const lease = await lock.acquire();
      await lease.renew();
      checkEqual(await lease.release(), true, "release");
      const lockB = new Lock({ storage: b, name, ttlMs: TTL_MS });
      const next = await lockB.tryAcquire();
      check(next, "the lock is free after the release");
      await pause(600);
      const { holders } = await lockB.inspect();
      checkEqual(holders.map((h) => h.fence), [next.fencingToken], "holders");
      checkEqual(await next.release(), true, "release");
      checkEqual((await lockB.inspect()).holders, [], "holders at the end");
    },
  },
  {
    name: "an acquire that is given up while its request hangs leaves nothing behind",
    covers: ["G9"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("given up");
      const storage = new FaultyStorage(a);
      const lock = new Lock({ storage, name, ttlMs: TTL_MS });
      storage.inject({ type: "hang-after" });
      const stop = new AbortController();
      const work: Promise<unknown>[] = [];
      const acquiring = lock.acquire({ signal: stop.signal, waitUntil: (p) => work.push(p) });
      await pause(200);
      stop.abort(new Error("given up"));
      checkEqual(await acquiring.catch((e) => e.message), "given up", "the reason");
      checkEqual(work.length, 1, "background work given to waitUntil");
      await Promise.all(work);
      const next = await new Lock({ storage: b, name, ttlMs: TTL_MS }).tryAcquire();
      check(next, "the lock is free");
      await next.release();
    },
  },
  {
    name: "a holder whose storage hangs learns of the loss by its deadline",
    covers: ["G5", "G6"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("hang");
      const ttlMs = 900;
      const storage = new FaultyStorage(a);
      const lease = await new Lock({ storage, name, ttlMs }).acquire();
      storage.inject({ type: "hang" }, { times: Infinity });
      const lostAt = new Promise<number>((resolve) => {
        lease.signal.addEventListener("abort", () => resolve(performance.now()), { once: true });
      });
      const deadline = performance.now() + lease.remainingMs();
      const next = await new Lock({ storage: b, name, ttlMs: TTL_MS }).acquire();
      checkEqual(lease.isHeld(), false, "the old lease when the next is granted");
      const lateMs = await lostAt - deadline;
      check(lateMs < 250, `the signal came ${lateMs} ms after the deadline`);
      checkEqual((lease.signal.reason as LeaseLostError).reason, "expired", "the reason");
      await next.release();
      storage.heal();
    },
  },
  {
    name: "an evicted holder learns of it with its next renewal, and work learns why",
    covers: ["G4", "G6"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("evicted");
      const lock = new Lock({ storage: a, name, ttlMs: 3000, renewEveryMs: 100 });
      const error = await checkRejects(
        lock.with(async (lease) => {
          checkEqual(await new Lock({ storage: b, name }).forceRelease(), 1, "evicted");
          await eventually(() => lease.signal.aborted, "the signal");
          return "done";
        }),
        LeaseLostError,
        "with()",
      );
      checkEqual(
        [error.reason, error.hasValue, error.value],
        ["evicted", true, "done"],
        "the error",
      );
    },
  },
  {
    name: "the deadline is never later than the storage's expiry, over renewals with late replies",
    covers: ["G5"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("late reply");
      const storage = new FaultyStorage(a);
      const lock = new Lock({ storage, name, ttlMs: TTL_MS, autoRenew: false });
      storage.inject({ type: "late-reply", ms: 200 }, { times: 3 });
      const lease = await lock.acquire();
      for (let i = 0; i < 3; i++) {
        const mine = lease.remainingMs();
        const { holders } = await new Lock({ storage: b, name }).inspect();
        check(mine <= holders[0]!.remainingMs + 5 + 200, "later than the storage's expiry");
        const after = lease.remainingMs();
        check(after <= holders[0]!.remainingMs, "later than the storage's expiry");
        await lease.renew();
      }
      await lease.release();
    },
  },
];
