/**
 * `await using` and `using` on what the library hands out, as the runtime has them or as a bundler lowers
 * them: the syntax stands here and nowhere in the library.
 *
 * @module
 */
import { LeaseLostError, Lock, type LockEvent, MemoryStorage } from "../../mod.ts";
import { check, checkEqual, checkRejects } from "../../src/testing/check.ts";

/** A lock of its own, with the types of its events. */
function lockOf(name: string): { lock: Lock; events: string[] } {
  const events: string[] = [];
  const onEvent = (event: LockEvent) => void events.push(`${event.type} ${event.name}`);
  return { lock: new Lock({ storage: new MemoryStorage(), name, onEvent }), events };
}

async function holdersOf(lock: Lock): Promise<number> {
  return (await lock.inspect()).holders.length;
}

/** One test each. */
export const awaitUsingTests: readonly { name: string; run: () => Promise<void> }[] = [
  {
    name: "the end of a scope releases its lease",
    async run() {
      const { lock } = lockOf("scope");
      {
        await using lease = await lock.acquire();
        check(lease.isHeld(), "held in the scope");
        checkEqual(await holdersOf(lock), 1, "holders in the scope");
      }
      checkEqual(await holdersOf(lock), 0, "holders after the scope");
    },
  },
  {
    name: "a scope that throws releases its lease, and its error comes out",
    async run() {
      const { lock } = lockOf("thrown");
      const scope = async () => {
        await using lease = await lock.acquire();
        throw new RangeError(`under ${lease.name}`);
      };
      await checkRejects(scope(), RangeError, "the scope");
      checkEqual(await holdersOf(lock), 0, "holders after the scope");
    },
  },
  {
    name: "leases of one scope are released in reverse order",
    async run() {
      const { lock, events } = lockOf("a");
      {
        await using _a = await lock.acquire();
        await using _b = await lock.withName("b").acquire();
      }
      const released = events.filter((event) => event.startsWith("released")).join();
      checkEqual(released, "released b,released a", "releases");
    },
  },
  {
    name: "null of tryAcquire() is nothing to release",
    async run() {
      const { lock } = lockOf("null");
      await using lease = await lock.acquire();
      {
        await using other = await lock.tryAcquire();
        checkEqual(other, null, "a second lease");
      }
      check(lease.isHeld(), "the first lease is held");
      checkEqual(await holdersOf(lock), 1, "holders");
    },
  },
  {
    name: "the end of a scope does not throw for a lease that was lost",
    async run() {
      const { lock } = lockOf("lost");
      {
        await using lease = await lock.acquire();
        await lock.forceRelease();
        await checkRejects(lease.renew(), LeaseLostError, "renew()");
      }
      checkEqual(await holdersOf(lock), 0, "holders after the scope");
    },
  },
  {
    name: "a lease that was detached outlives its scope",
    async run() {
      const { lock } = lockOf("detached");
      let baton: unknown;
      {
        await using lease = await lock.acquire();
        baton = lease.detach();
      }
      checkEqual(await holdersOf(lock), 1, "holders after the scope");
      const resumed = await lock.resume(baton);
      checkEqual(await resumed?.release(), true, "release of the resumed lease");
    },
  },
  {
    name: "`using` starts the release and gives it to waitUntil",
    async run() {
      const { lock } = lockOf("sync");
      const given: Promise<unknown>[] = [];
      {
        using lease = await lock.acquire({ waitUntil: (work) => void given.push(work) });
        check(lease.isHeld(), "held in the scope");
      }
      checkEqual(given.length, 1, "promises given");
      await Promise.all(given);
      checkEqual(await holdersOf(lock), 0, "holders after the release");
    },
  },
];
