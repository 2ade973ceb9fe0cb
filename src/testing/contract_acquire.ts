/**
 * The contract, first part: who may hold, fences, tokens, the stored record.
 *
 * @module
 */
import { HoldfastError, StaleFenceError, StorageError } from "../core/errors.ts";
import type { AcquireCommand, Granted } from "../core/record.ts";
import type { LeaseStorage } from "../core/storage.ts";
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

/** Long enough that no pause of a slow machine ends a lease in the middle of a test. */
const TTL_MS = 20_000;

/** An acquire for tests below the level of `Lock`. */
function acquire(token: string, more: Partial<AcquireCommand> = {}): AcquireCommand {
  return acquireCommand(token, { ttlMs: TTL_MS, ...more });
}

async function grant(
  storage: LeaseStorage,
  name: string,
  command: AcquireCommand,
): Promise<Granted> {
  const outcome = await storage.execute(name, command);
  check(outcome.type === "granted", `expected a grant, got ${JSON.stringify(outcome)}`);
  return outcome;
}

/** Tests of grants, fences, tokens and the record. */
export const acquireTests: readonly ContractTest[] = [
  {
    name: "a second client is refused while the first holds, and granted after its release",
    covers: ["G1", "G2"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("mutex");
      const first = await new Lock({ storage: a, name, ttlMs: TTL_MS, label: "é b" }).acquire();
      const lockB = new Lock({ storage: b, name, ttlMs: TTL_MS });
      checkEqual(await lockB.tryAcquire(), null, "a held lock");
      const view = await lockB.inspect();
      checkEqual(
        view.holders.map((h) => [h.fence, h.label]),
        [[first.fencingToken, "é b"]],
        "view",
      );
      checkEqual(await first.release(), true, "release");
      const second = await lockB.tryAcquire();
      check(second, "the lock is free after the release");
      check(second.fencingToken > first.fencingToken, "fences rise");
      checkEqual(await second.release(), true, "release");
      checkEqual((await lockB.inspect()).holders, [], "holders at the end");
    },
  },
  {
    name: "of 20 concurrent first acquires one wins",
    covers: ["G1"],
    async run({ clients }) {
      const name = uniqueName("first");
      const outcomes = await Promise.all(
        Array.from(
          { length: 20 },
          (_, i) => clients[i % 2]!.execute(name, acquire(crypto.randomUUID())),
        ),
      );
      checkEqual(outcomes.filter((o) => o.type === "granted").length, 1, "winners");
      checkEqual(outcomes.filter((o) => o.type === "held").length, 19, "refused");
    },
  },
  {
    name: "an expired holder is taken over by one of 20",
    covers: ["G1", "G2"],
    async run({ clients }) {
      const name = uniqueName("takeover");
      const old = await grant(clients[0], name, acquire(crypto.randomUUID(), { ttlMs: 50 }));
      await pause(100 + clients[0].maxClockSkewMs);
      const outcomes = await Promise.all(
        Array.from(
          { length: 20 },
          (_, i) => clients[i % 2]!.execute(name, acquire(crypto.randomUUID())),
        ),
      );
      const grants = outcomes.filter((o) => o.type === "granted");
      checkEqual(grants.length, 1, "winners");
      check(grants[0]!.fence > old.fence, "fences rise over an expiry");
    },
  },
  {
    name: "a semaphore is shared up to its capacity",
    covers: ["G1"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("semaphore");
      const options = { name, ttlMs: TTL_MS, capacity: 3, gate: false };
      const lockA = new Lock({ storage: a, ...options });
      const lockB = new Lock({ storage: b, ...options, permits: 2 });
      const one = await lockA.acquire();
      const two = await lockB.acquire();
      checkEqual(await lockA.tryAcquire(), null, "a full semaphore");
      await one.release();
      checkEqual(await lockB.tryAcquire(), null, "two permits where one is left");
      const again = await lockA.tryAcquire();
      check(again, "one permit is left");
      await Promise.all([again.release(), two.release()]);
    },
  },
  {
    name: "readers share, a writer is alone",
    covers: ["G1"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("readers");
      const options = { name, ttlMs: TTL_MS, capacity: 100, gate: false };
      const read = new Lock({ storage: a, ...options });
      const write = new Lock({ storage: b, ...options, permits: 100 });
      const readers = [await read.acquire(), await read.acquire()];
      checkEqual(await write.tryAcquire(), null, "a writer among readers");
      await Promise.all(readers.map((r) => r.release()));
      const writer = await write.tryAcquire();
      check(writer, "a writer alone");
      checkEqual(await read.tryAcquire(), null, "a reader beside a writer");
      await writer.release();
    },
  },
  {
    name: "another capacity than that of the holders is an error",
    covers: ["G1"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("capacity");
      const lease = await new Lock({ storage: a, name, ttlMs: TTL_MS, capacity: 2 }).acquire();
      const error = await checkRejects(
        new Lock({ storage: b, name, ttlMs: TTL_MS, capacity: 3 }).acquire(),
        HoldfastError,
        "another capacity",
      );
      checkEqual(error.code, "capacity-mismatch", "code");
      await lease.release();
    },
  },
  {
    name: "fences rise over releases, hand-overs and evictions by both clients",
    covers: ["G2"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("fences");
      const locks = [a, b].map((storage) => new Lock({ storage, name, ttlMs: TTL_MS }));
      const fences: number[] = [];
      for (let i = 0; i < 3; i++) {
        const given = await locks[0]!.acquire();
        const taken = await locks[1]!.resume(JSON.parse(JSON.stringify(given.detach())));
        check(taken, "resumed");
        checkEqual(await locks[0]!.forceRelease(taken.fencingToken), 1, "evicted");
        await checkRejects(taken.renew(), HoldfastError, "a renewal after the eviction");
        const last = await locks[1]!.acquire();
        fences.push(given.fencingToken, taken.fencingToken, last.fencingToken);
        await last.release();
      }
      checkEqual(fences, [...new Set(fences)].sort((x, y) => x - y), "fences in order of grant");
    },
  },
  {
    name: "fences rise although the record was lost",
    covers: ["G2"],
    needs: "forget",
    async run({ clients: [a, b], forget }) {
      const name = uniqueName("forget");
      const before = await grant(a, name, acquire(crypto.randomUUID()));
      await pause(5);
      await forget!(name);
      const after = await grant(b, name, acquire(crypto.randomUUID()));
      check(after.fence > before.fence, "the next fence is higher");
    },
  },
  {
    name: "a fenced write counts only while its holding is there",
    covers: ["G3"],
    async run(subject) {
      const { clients: [a, b] } = subject;
      const name = uniqueName("fenced");
      const resource = uniqueName("balance");
      const options = { name, ttlMs: TTL_MS };
      const lockA = new Lock({ storage: a, ...options });
      const lockB = new Lock({ storage: b, ...options });
      const write = (lease: Parameters<typeof subject.fencedWrite>[0], value: string) =>
        subject.fencedWrite(lease, resource, value);
      const refused = async (lease: Parameters<typeof subject.fencedWrite>[0], what: string) => {
        const before = await subject.readResource(resource);
        await checkRejects(write(lease, what), StaleFenceError, what);
        checkEqual(await subject.readResource(resource), before, `the resource, ${what}`);
      };

      const released = await lockA.acquire();
      await write(released, "by the holder");
      await released.renew();
      await write(released, "by the holder, renewed");
      checkEqual(await subject.readResource(resource), "by the holder, renewed", "the resource");
      await released.release();
      const evicted = await lockB.acquire();
      await write(evicted, "by the next holder");
      await refused(released, "after a release");
      await lockA.forceRelease();
      const giver = await lockA.acquire();
      await write(giver, "by the giver");
      await refused(evicted, "after an eviction");
      await evicted.release();
      const taker = await lockB.resume(giver.detach());
      check(taker, "resumed");
      await write(taker, "by the taker");
      await refused(giver, "after a hand-over");
      checkEqual(await subject.readResource(resource), "by the taker", "the resource");
      await taker.release();
    },
  },
  {
    name: "acquire is idempotent: the same token gets the same fence again",
    covers: ["G11"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("idempotent");
      const command = acquire(crypto.randomUUID());
      const first = await grant(a, name, command);
      checkEqual((await grant(b, name, command)).fence, first.fence, "the fence");
      checkEqual((await grant(a, name, command)).fence, first.fence, "the fence, once more");
    },
  },
  {
    name: "an acquire that lands after its release grants nothing",
    covers: ["G9", "G11"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("spent");
      const command = acquire(crypto.randomUUID());
      const { token } = command;
      await grant(a, name, command);
      const release = { type: "release", token, keepMs: 0, spentMs: TTL_MS } as const;
      checkEqual(await a.execute(name, release), { type: "released", freed: true }, "release");
      checkEqual(await b.execute(name, release), { type: "released", freed: true }, "its resend");
      checkEqual(await b.execute(name, command), { type: "spent" }, "the late acquire");
      const early = crypto.randomUUID();
      const released = await a.execute(name, { ...release, token: early });
      checkEqual(released, { type: "released", freed: false }, "a release before its acquire");
      checkEqual(
        await b.execute(name, acquire(early)),
        { type: "spent" },
        "the overtaken acquire",
      );
    },
  },
  {
    name: "only the holder's token changes a holding",
    covers: ["G4"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("tokens");
      const { token } = acquire(crypto.randomUUID());
      const { fence } = await grant(a, name, acquire(token));
      const other = crypto.randomUUID();
      const ttlMs = TTL_MS;
      const refusals = [
        await b.execute(name, { type: "renew", token: other, fence, ttlMs }),
        await b.execute(name, { type: "renew", token, fence: fence - 1, ttlMs }),
        await b.execute(name, { type: "adopt", token: other, fence, newToken: other, ttlMs }),
      ];
      checkEqual(refusals.map((r) => r.type), ["refused", "refused", "refused"], "by others");
      await b.execute(name, { type: "release", token: other, keepMs: 0, spentMs: ttlMs });
      const late = await b.execute(name, { type: "evict", maxFence: fence - 1 });
      checkEqual(late, { type: "evicted", count: 0 }, "a late copy of an older eviction");
      const renewed = await a.execute(name, { type: "renew", token, fence, ttlMs });
      checkEqual(renewed, { type: "renewed" }, "by the holder");
      checkEqual((await b.execute(name, { type: "evict", maxFence: fence })).count, 1, "evicted");
      checkEqual(
        await a.execute(name, { type: "renew", token, fence, ttlMs }),
        { type: "refused", reason: "evicted" },
        "the holder's renewal after the eviction",
      );
    },
  },
  {
    name: "a baton that is delivered twice has one winner",
    covers: ["G1", "G4"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("baton");
      const lease = await new Lock({ storage: a, name, ttlMs: TTL_MS }).acquire();
      const baton = lease.detach();
      const taken = await Promise.all(
        [a, b].map((storage) => new Lock({ storage, name, ttlMs: TTL_MS }).resume(baton)),
      );
      const winners = taken.filter((l) => l !== null);
      checkEqual(winners.length, 1, "winners");
      check(winners[0]!.fencingToken > lease.fencingToken, "the fence rises");
      checkEqual(lease.status, "detached", "the giver");
      await winners[0]!.release();
    },
  },
  {
    name: "expiry never moves back",
    covers: ["G5", "G11"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("expiry");
      const command = acquire(crypto.randomUUID(), { ttlMs: 500 });
      const { fence } = await grant(a, name, command);
      await a.execute(name, { type: "renew", token: command.token, fence, ttlMs: 60_000 });
      await b.execute(name, command);
      const { holders } = await b.execute(name, { type: "inspect" });
      check(
        holders[0]!.remainingMs > 30_000,
        "a late duplicate of the acquire shortened the lease",
      );
    },
  },
  {
    name: "min-hold keeps the permits taken, and nobody can use them",
    covers: ["G4"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("min-hold");
      const lock = new Lock({ storage: a, name, ttlMs: TTL_MS, minHoldMs: 700 });
      const startMs = Date.now();
      const lease = await lock.acquire();
      checkEqual(await lease.release(), true, "release");
      const { token, fencingToken: fence } = lease;
      const other = new Lock({ storage: b, name, ttlMs: TTL_MS, gate: false });
      if (Date.now() - startMs < 600) {
        checkEqual(await other.tryAcquire(), null, "a kept lock");
      }
      checkEqual(
        (await b.execute(name, { type: "renew", token, fence, ttlMs: TTL_MS })).type,
        "refused",
        "a renewal of what is kept",
      );
      const next = await other.acquire({ timeoutMs: 10_000 });
      check(Date.now() - startMs >= 690, "the lock was free before its min-hold was over");
      await next.release();
    },
  },
  {
    name: "executeAll applies each entry for itself",
    covers: ["G4"],
    async run({ clients: [a, b] }) {
      const names = Array.from({ length: 5 }, (_, i) => uniqueName(`batch ${i}`));
      const tokens = names.map(() => crypto.randomUUID());
      const fences = await Promise.all(
        names.map(async (name, i) => (await grant(a, name, acquire(tokens[i]!))).fence),
      );
      if (!a.executeAll) return;
      await b.execute(names[2]!, { type: "evict", maxFence: fences[2]! });
      const results = await a.executeAll(names.map((name, i) => ({
        name,
        command: { type: "renew", token: tokens[i]!, fence: fences[i]!, ttlMs: TTL_MS },
      })));
      const types = results.map((r) => r.status === "fulfilled" ? r.value.type : r.reason);
      checkEqual(types, ["renewed", "renewed", "refused", "renewed", "renewed"], "outcomes");
    },
  },
  {
    name: "a record takes 256 holders and no more, and they can still be renewed and released",
    covers: ["G1"],
    async run({ clients: [a] }) {
      const name = uniqueName("full");
      const capacity = 300;
      const label = "x".repeat(64);
      const tokens = Array.from({ length: 256 }, () => crypto.randomUUID());
      const fences: number[] = [];
      for (const token of tokens) {
        fences.push((await grant(a, name, acquire(token, { capacity, label }))).fence);
      }
      const more = await a.execute(name, acquire(crypto.randomUUID(), { capacity }));
      checkEqual(more.type, "full", "one more");
      const [token, fence] = [tokens[7]!, fences[7]!];
      const renewed = await a.execute(name, { type: "renew", token, fence, ttlMs: TTL_MS });
      checkEqual(renewed.type, "renewed", "a renewal");
      await a.execute(name, { type: "release", token, keepMs: 0, spentMs: TTL_MS });
      await grant(a, name, acquire(crypto.randomUUID(), { capacity, label }));
    },
  },
  {
    name: "what is not a record is an error with its key, and stays as it is",
    covers: ["G12"],
    needs: "writeRaw",
    async run({ clients: [a, b], writeRaw, readRaw }) {
      const texts = [
        "not ours",
        "",
        "holdfast 2 5\nsomething new\n",
        "holdfast 1 5\nh truncat",
        "holdfast 1 5\n",
        "holdfast 1 5\nh a b c\n.\n",
      ];
      for (const text of texts) {
        const name = uniqueName("foreign");
        await writeRaw!(name, text);
        const lock = new Lock({ storage: a, name, ttlMs: TTL_MS });
        const errors = [
          await checkRejects(lock.acquire(), StorageError, "acquire"),
          await checkRejects(lock.tryAcquire(), StorageError, "tryAcquire"),
          await checkRejects(new Lock({ storage: b, name }).inspect(), StorageError, "inspect"),
          await checkRejects(lock.forceRelease(), StorageError, "forceRelease"),
        ];
        for (const error of errors) {
          checkEqual(error.transient, false, "transient");
          check(error.message.includes("foreign"), `no key in the message: ${error.message}`);
        }
        // A background release of the failed attempt must not write either.
        await pause(50);
        checkEqual(await readRaw!(name), text, "what is stored");
      }
    },
  },
  {
    name: "lines of a later minor version are kept",
    covers: ["G12"],
    needs: "writeRaw",
    async run({ clients: [a, b], writeRaw, readRaw }) {
      const name = uniqueName("minor");
      await writeRaw!(name, "holdfast 1 5\nx something of tomorrow\n.\n");
      const lease = await new Lock({ storage: a, name, ttlMs: TTL_MS }).acquire();
      await lease.renew();
      checkEqual(await new Lock({ storage: b, name }).tryAcquire(), null, "held");
      await lease.release();
      const text = await readRaw!(name);
      check(text?.includes("\nx something of tomorrow\n"), `the line is lost: ${text}`);
    },
  },
  {
    name: "a holder stops trusting its lease before another can be granted",
    covers: ["G5", "G6"],
    async run({ clients: [a, b] }) {
      const name = uniqueName("deadline");
      const lease = await new Lock({ storage: a, name, ttlMs: 600, autoRenew: false }).acquire();
      const { signal } = lease;
      const { holders } = await new Lock({ storage: b, name }).inspect();
      check(
        lease.remainingMs() <= holders[0]!.remainingMs,
        "the local deadline is later than the storage's expiry",
      );
      const other = new Lock({ storage: b, name, ttlMs: 600 });
      let next = await other.tryAcquire();
      await eventually(async () => {
        next ??= await other.tryAcquire();
        return next !== null;
      }, "a takeover");
      checkEqual(lease.isHeld(), false, "the old lease");
      await eventually(() => signal.aborted, "the signal", 2000);
      checkEqual(lease.status, "lost", "status");
      checkEqual(await lease.release(), false, "release of a lost lease");
      check(next!.isHeld(), "the new lease");
      await next!.release();
    },
  },
];
