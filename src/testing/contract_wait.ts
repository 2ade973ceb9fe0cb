/**
 * The contract, second part: waiting, waking, order, and what is left behind.
 *
 * @module
 */
import { LockTimeoutError } from "../core/errors.ts";
import type { Lease } from "../core/lease.ts";
import { Lock } from "../core/lock.ts";
import {
  acquireCommand,
  check,
  checkEqual,
  checkRejects,
  eventually,
  pause,
  uniqueName,
} from "./check.ts";
import type { ContractTest } from "./contract.ts";
import { FaultyStorage } from "./faulty_storage.ts";

/** Long enough that no pause of a slow machine ends a lease in the middle of a test. */
const TTL_MS = 20_000;

/** What a slow, shared machine may take on top. */
const SLACK_MS = 3000;

/** Tests of waiting. */
export const waitTests: readonly ContractTest[] = [
  {
    name: "a waiter gets a released lock within one poll",
    covers: ["G8"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("wait");
      const lease = await new Lock({ storage: a, name, ttlMs: TTL_MS }).acquire();
      const waiting = new Lock({ storage: b, name, ttlMs: TTL_MS }).acquire();
      await pause(300);
      const releasedMs = Date.now();
      await lease.release();
      const next = await waiting;
      const tookMs = Date.now() - releasedMs;
      check(tookMs <= b.pollMs.max + SLACK_MS, `the waiter took ${tookMs} ms`);
      check(next.fencingToken > lease.fencingToken, "fences rise");
      check(next.waitedMs >= 250, `waitedMs is ${next.waitedMs}`);
      await next.release();
    },
  },
  {
    name: "a waiter gets the lock of a holder that died within its ttl",
    covers: ["G8"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("dead");
      const ttlMs = 500;
      const dead = await new Lock({ storage: a, name, ttlMs, autoRenew: false }).acquire();
      const startMs = Date.now();
      const next = await new Lock({ storage: b, name, ttlMs: TTL_MS }).acquire();
      const tookMs = Date.now() - startMs;
      const limitMs = ttlMs + 2 * b.maxClockSkewMs + b.pollMs.max + SLACK_MS;
      check(tookMs <= limitMs, `the waiter took ${tookMs} ms, more than ${limitMs}`);
      checkEqual(dead.isHeld(), false, "the dead lease");
      await next.release();
    },
  },
  {
    name: "a lease that is renewed outlives its ttl, and nothing is sent after its release",
    covers: ["G6", "G7"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("renewed");
      const storage = new FaultyStorage(a);
      const ttlMs = 1500;
      const lease = await new Lock({ storage, name, ttlMs }).acquire();
      const { signal } = lease;
      await pause(2 * ttlMs);
      check(lease.isHeld(), "the lease was lost although it is renewed");
      checkEqual(await new Lock({ storage: b, name, ttlMs }).tryAcquire(), null, "a held lock");
      checkEqual(await lease.release(), true, "release");
      const sent = storage.sent.length;
      check(sent >= 4, `only ${sent} requests in two lives of a lease`);
      checkEqual(await lease.release(), false, "a second release");
      await pause(ttlMs);
      checkEqual(storage.sent.length, sent, "requests after the release");
      checkEqual(signal.aborted, false, "the signal after a clean release");
    },
  },
  {
    name: "an acquire that timed out or was aborted leaves nothing behind",
    covers: ["G9"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("gone");
      const lease = await new Lock({ storage: a, name, ttlMs: TTL_MS }).acquire();
      const lock = new Lock({ storage: b, name, ttlMs: TTL_MS, fair: true });
      const startMs = Date.now();
      const error = await checkRejects(
        lock.acquire({ timeoutMs: 400 }),
        LockTimeoutError,
        "timeout",
      );
      const tookMs = Date.now() - startMs;
      check(tookMs >= 350 && tookMs < 400 + SLACK_MS, `a time-out of 400 ms took ${tookMs} ms`);
      check(error.message.includes("400 ms"), error.message);
      const stop = new AbortController();
      const aborted = lock.acquire({ signal: stop.signal });
      await pause(200);
      const reason = new Error("enough");
      stop.abort(reason);
      checkEqual((await aborted.catch((e) => e)) === reason, true, "the signal's reason");
      await eventually(async () => (await lock.inspect()).waiters === 0, "an empty queue");
      await lease.release();
      const next = await lock.tryAcquire();
      check(next, "the lock is free");
      await next.release();
    },
  },
  {
    name: "with fair, grants follow the queue",
    covers: ["G10"],
    async run({ clients }) {
      const name = uniqueName("fair");
      const locks = clients.map((storage) =>
        new Lock({ storage, name, ttlMs: TTL_MS, fair: true, gate: false })
      );
      const first = await locks[0]!.acquire();
      const order: number[] = [];
      const waiting: Promise<void>[] = [];
      for (let i = 0; i < 4; i++) {
        waiting.push(
          locks[i % 2]!.acquire().then(async (lease: Lease) => {
            order.push(i);
            await pause(20);
            await lease.release();
          }),
        );
        await eventually(async () => (await locks[0]!.inspect()).waiters === i + 1, "a ticket");
      }
      await first.release();
      checkEqual(await locks[0]!.tryAcquire(), null, "someone who passes the queue");
      await Promise.all(waiting);
      checkEqual(order, [0, 1, 2, 3], "the order of grants");
    },
  },
  {
    name: "a dead waiter delays the queue at most queueMs",
    covers: ["G10"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("dead waiter");
      const queueMs = 1000;
      const token = crypto.randomUUID();
      const lease = await new Lock({ storage: a, name, ttlMs: TTL_MS }).acquire();
      await a.execute(name, acquireCommand(token, { ttlMs: TTL_MS, queueMs, fair: true }));
      await lease.release();
      const startMs = Date.now();
      const next = await new Lock({ storage: b, name, ttlMs: TTL_MS, fair: true }).acquire();
      const tookMs = Date.now() - startMs;
      const limitMs = queueMs + 2 * b.maxClockSkewMs + b.pollMs.max + SLACK_MS;
      check(tookMs <= limitMs, `the queue stood for ${tookMs} ms, more than ${limitMs}`);
      await next.release();
    },
  },
  {
    name: "many sections of both clients lose no update",
    covers: ["G1", "G8"],
    async run({ clients }) {
      const name = uniqueName("counter");
      let counter = 0;
      const locks = clients.map((storage) => new Lock({ storage, name, ttlMs: TTL_MS }));
      await Promise.all(Array.from({ length: 20 }, (_, i) =>
        locks[i % 2]!.with(async () => {
          const read = counter;
          await pause(1);
          counter = read + 1;
        })));
      checkEqual(counter, 20, "the counter");
    },
  },
];
