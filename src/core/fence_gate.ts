/**
 * Fencing for resources that cannot check a token themselves.
 *
 * @module
 */
import { StaleFenceError } from "./errors.ts";
import type { Fenced } from "./lease.ts";
import { checkInteger } from "./validate.ts";

/** Where the highest fence seen of each resource is kept. */
export interface FenceStore {
  /**
   * Raises the mark of a resource to `fence` if that is higher, atomically.
   *
   * @returns the mark afterwards
   */
  raise(resource: string, fence: number): number | Promise<number>;
}

/** Options of a {@linkcode FenceGate}. */
export interface FenceGateOptions {
  /** Where marks are kept; memory, which guards one process, if absent. */
  readonly store?: FenceStore | undefined;
}

/**
 * Lets through whoever comes with the highest fence seen so far for a resource; for locks with a capacity
 * of 1. A new holder has to show its fence **before its first read** of the resource, otherwise a late
 * write of the one before can land between its read and its write. Does *not* make the check and the write
 * one step: a resource that can compare fences itself is better.
 *
 * Source: Kleppmann, "How to do distributed locking", 2016; Burrows, "The Chubby lock service", 2006, 2.4
 * (sequencers).
 *
 * @example
 * ```ts
 * import { FenceGate, Lock, MemoryStorage, StaleFenceError } from "@holdfast/lock";
 * import { assertRejects } from "@std/assert";
 *
 * const lock = new Lock({ storage: new MemoryStorage(), name: "printer" });
 * const gate = new FenceGate();
 * await using old = await lock.acquire();
 * await lock.forceRelease();
 * await using lease = await lock.withName("printer").acquire();
 * await gate.check("printer", lease);
 * await assertRejects(() => gate.check("printer", old), StaleFenceError);
 * ```
 */
export class FenceGate {
  readonly #store: FenceStore;

  /**
   * Makes a gate.
   *
   * @param options `store`: where marks are kept
   */
  constructor(options: FenceGateOptions = {}) {
    this.#store = options.store ?? memoryStore();
  }

  /**
   * Passes if no higher fence was seen for the resource, and remembers this one.
   *
   * @param resource what is guarded
   * @param lease the lease under which it is used
   * @throws {StaleFenceError} if a later holder was here before
   */
  async check(resource: string, lease: Pick<Fenced, "fencingToken">): Promise<void> {
    const fence = checkInteger("fencingToken", lease.fencingToken, 1, Number.MAX_SAFE_INTEGER);
    const highest = await this.#store.raise(resource, fence);
    if (highest > fence) {
      throw new StaleFenceError(
        `Cannot use resource "${resource}" with fence ${fence} as a later holder was here: ` +
          `current value is ${highest}`,
        { fence },
      );
    }
  }
}

function memoryStore(): FenceStore {
  const marks = new Map<string, number>();
  return {
    raise(resource, fence) {
      const highest = Math.max(fence, marks.get(resource) ?? 0);
      marks.set(resource, highest);
      return highest;
    },
  };
}
