/**
 * One contract suite for every storage: what {@linkcode LeaseStorage} promises, tested through two clients
 * on the real product, in real time with margins for a slow machine. Each test says which guarantees
 * (G1 to G12) it shows.
 *
 * @module
 */
import type { LeaseStorage } from "../core/storage.ts";
import type { Fenced } from "../core/lease.ts";
import { acquireTests } from "./contract_acquire.ts";
import { faultTests } from "./contract_faults.ts";
import { waitTests } from "./contract_wait.ts";

/** A product under test. */
export interface ContractSubject {
  /** Two storages over the same data, each with a connection of its own. */
  readonly clients: readonly [LeaseStorage, LeaseStorage];
  /**
   * Writes `value` to `resource` guarded by the lease, the strongest way that the product has (in its own
   * transaction, or through a `FenceGate`); rejects with a `StaleFenceError` if the lease is stale.
   */
  fencedWrite(lease: Fenced, resource: string, value: string): Promise<void>;
  /** Reads what {@linkcode ContractSubject.fencedWrite} wrote last. */
  readResource(resource: string): Promise<string | undefined>;
  /** Puts `text` where the record of `name` is, behind the library's back. */
  writeRaw?(name: string, text: string): Promise<void>;
  /** Reads what is there. */
  readRaw?(name: string): Promise<string | undefined>;
  /** Removes the record of `name`, as an eviction would. */
  forget?(name: string): Promise<void>;
  /** Closes the connections. */
  close(): Promise<void>;
}

/** One test of the suite. */
export interface ContractTest {
  /** A sentence. */
  readonly name: string;
  /** The guarantees that it shows. */
  readonly covers: readonly string[];
  /** Which hook of the subject it needs. */
  readonly needs?: "writeRaw" | "forget" | undefined;
  /** Passes, or throws. */
  readonly run: (subject: ContractSubject) => Promise<void>;
}

/** Options of {@linkcode testLeaseStorage}. */
export interface ContractOptions {
  /** The storage, for the names of the tests. */
  readonly name: string;
  /** Connects; called before each test. */
  readonly setup: () => Promise<ContractSubject> | ContractSubject;
  /**
   * Registers a test.
   *
   * @default {test of node:test}
   */
  readonly test?: ((name: string, run: () => Promise<void>) => unknown) | undefined;
  /** Tests that do not apply, by a part of their name, and why. */
  readonly skip?: readonly { readonly test: string; readonly reason: string }[] | undefined;
}

/** All tests of the suite. */
export const contractTests: readonly ContractTest[] = [
  ...acquireTests,
  ...waitTests,
  ...faultTests,
];

/**
 * Registers the contract suite for one storage with a test runner.
 *
 * @param options the storage, and how to get at it
 * @example
 * ```ts ignore
 * import { FenceGate, MemoryStorage } from "@holdfast/lock";
 * import { testLeaseStorage } from "@holdfast/lock/testing";
 *
 * await testLeaseStorage({
 *   name: "memory",
 *   setup: () => {
 *     const storage = new MemoryStorage();
 *     const gate = new FenceGate();
 *     const values = new Map<string, string>();
 *     return {
 *       clients: [storage, storage],
 *       fencedWrite: async (lease, resource, value) => {
 *         await gate.check(resource, lease);
 *         values.set(resource, value);
 *       },
 *       readResource: (resource) => Promise.resolve(values.get(resource)),
 *       close: () => Promise.resolve(),
 *     };
 *   },
 * });
 * ```
 */
export async function testLeaseStorage(options: ContractOptions): Promise<void> {
  const test = options.test ?? (await import("node:test")).test;
  for (const { name, covers, needs, run } of contractTests) {
    if (options.skip?.some((skip) => name.includes(skip.test))) continue;
    test(`contract ${options.name} [${covers.join(" ")}] ${name}`, async () => {
      const subject = await options.setup();
      try {
        if (needs && !subject[needs]) {
          throw new Error(`The subject must have ${needs}(), or skip this test with a reason`);
        }
        await run(subject);
      } finally {
        await subject.close();
      }
    });
  }
}
