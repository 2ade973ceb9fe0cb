/**
 * Two processes over one memory, in time that stands still: what most tests of `Lock` and `Lease` start from.
 *
 * @module
 */
import {
  type AcquireOptions,
  type Entropy,
  type Lease,
  type LeaseStorage,
  Lock,
  type LockEvent,
  type LockOptions,
  MemoryStorage,
  type TryAcquireOptions,
} from "../../mod.ts";
import { FaultyStorage, ManualClock } from "../../src/testing/mod.ts";

/** The wall clock at the start. */
export const START_MS = 1_700_000_000_000;

/** Tokens that are easy to find in what must not show them, and no jitter. */
export function countingEntropy(prefix: string): Entropy {
  let count = 0;
  return { uuid: () => `${prefix}-${++count}`, random: () => 0 };
}

/** The same storage without hints: its waiters poll. */
export function withoutWatch(storage: LeaseStorage): LeaseStorage {
  return {
    pollMs: storage.pollMs,
    maxClockSkewMs: storage.maxClockSkewMs,
    execute: (name, command, options) => storage.execute(name, command, options),
  };
}

/**
 * A lock that keeps its leases: one that a test does not look at again could be collected in the middle of
 * the test, and would be abandoned.
 */
class KeepingLock extends Lock {
  readonly #options: LockOptions;
  readonly #kept: Set<unknown>;

  constructor(options: LockOptions, kept: Set<unknown>) {
    super(options);
    this.#options = options;
    this.#kept = kept;
  }

  override withName(name: string): Lock {
    return new KeepingLock({ ...this.#options, name: super.withName(name).name }, this.#kept);
  }

  override async acquire(options?: AcquireOptions): Promise<Lease> {
    const lease = await super.acquire(options);
    this.#kept.add(lease);
    return lease;
  }

  override async tryAcquire(options?: TryAcquireOptions): Promise<Lease | null> {
    const lease = await super.tryAcquire(options);
    this.#kept.add(lease);
    return lease;
  }

  override async resume(baton: unknown): Promise<Lease | null> {
    const lease = await super.resume(baton);
    this.#kept.add(lease);
    return lease;
  }
}

/** One memory, one clock, and a process of ours beside another one. */
export class World {
  readonly clock = new ManualClock(START_MS);
  readonly memory = new MemoryStorage({ clock: this.clock });
  /** What our process asks, and the faults that it suffers. */
  readonly storage = new FaultyStorage(this.memory, { clock: this.clock });
  /** Of the other process. */
  readonly otherStorage = new FaultyStorage(this.memory, { clock: this.clock });
  /** What our locks tell. */
  readonly events: LockEvent[] = [];
  /** What must not be collected. */
  readonly kept = new Set<unknown>();
  readonly #entropy = countingEntropy("secret");
  readonly #otherEntropy = countingEntropy("other");

  /** A lock of our process. */
  lock(options: Partial<LockOptions> = {}): Lock {
    const { storage, clock } = this;
    const onEvent = (event: LockEvent): void => void this.events.push(event);
    const entropy = this.#entropy;
    return new KeepingLock(
      { storage, clock, name: "job", entropy, onEvent, ...options },
      this.kept,
    );
  }

  /** A lock of the other process. */
  other(options: Partial<LockOptions> = {}): Lock {
    const { otherStorage: storage, clock } = this;
    const entropy = this.#otherEntropy;
    return new KeepingLock({ storage, clock, name: "job", entropy, ...options }, this.kept);
  }

  /** What our process asked since the last call: `acquire renew release`. */
  sent(): string {
    return this.storage.sent.splice(0).map((entry) => entry.command.type).join(" ");
  }

  /** The types of the events since the last call. */
  told(): string {
    return this.events.splice(0).map((event) => event.type).join(" ");
  }

  /** The fences of who holds, by the storage. */
  async holders(name = "job"): Promise<number[]> {
    const { holders } = await this.memory.execute(name, { type: "inspect" });
    return holders.map((h) => h.fence);
  }
}

/** Whether a promise has settled, as far as code can run without time going by. */
export async function isPending(promise: Promise<unknown>, clock: ManualClock): Promise<boolean> {
  let pending = true;
  const settle = (): void => void (pending = false);
  promise.then(settle, settle);
  await clock.advance(0);
  return pending;
}

/** What a promise rejects with; fails if it does not. */
export async function rejection<E = Error>(promise: Promise<unknown>): Promise<E> {
  let value: unknown;
  try {
    value = await promise;
  } catch (error) {
    return error as E;
  }
  throw new Error(`expected a rejection, got ${Deno.inspect(value)}`);
}
