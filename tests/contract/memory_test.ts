import { FenceGate, type LeaseStorage, MemoryStorage } from "../../mod.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { gaps } from "./gaps.ts";

/** A second client of the same memory: another object, so that gates and heartbeats are not shared. */
function clientOf(storage: MemoryStorage): LeaseStorage {
  return {
    pollMs: storage.pollMs,
    maxClockSkewMs: storage.maxClockSkewMs,
    wakesTickets: storage.wakesTickets,
    execute: (name, command, options) => storage.execute(name, command, options),
    executeAll: (entries) => storage.executeAll(entries),
    watch: (name, wake) => storage.watch(name, wake),
  };
}

// The same suite on every storage: one lease type, one contract of a storage, a memory for tests.
// covers: S2.16 S3.1 S4.12
await testLeaseStorage({
  name: "memory",
  test: Deno.test,
  skip: gaps.memory,
  setup: () => {
    const storage = new MemoryStorage();
    const gate = new FenceGate();
    const values = new Map<string, string>();
    return {
      clients: [clientOf(storage), clientOf(storage)],
      fencedWrite: async (lease, resource, value) => {
        await gate.check(resource, lease);
        values.set(resource, value);
      },
      readResource: (resource) => Promise.resolve(values.get(resource)),
      close: () => Promise.resolve(),
    };
  },
});
