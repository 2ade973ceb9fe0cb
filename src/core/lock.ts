/**
 * A named lock over a storage.
 *
 * @module
 */
import {
  acquire,
  type AcquireOptions,
  releaseQuietly,
  type Tried,
  tryAcquire,
  type TryAcquireOptions,
} from "./acquire.ts";
import { isTransient, LeaseLostError } from "./errors.ts";
import { Gate } from "./gate.ts";
import { Holding } from "./holding.ts";
import { type Baton, Lease } from "./lease.ts";
import { ttlToAskMs } from "./lifecycle.ts";
import type { Command, HolderView, OutcomeOf } from "./record.ts";
import { insist, sendCommand } from "./request.ts";
import { checkName, type LockOptions, type Settings, settingsOf } from "./settings.ts";
import { checkInteger, checkMs } from "./validate.ts";

/** What {@linkcode Lock.tryWith} came to. */
export type TryWithResult<T> =
  | {
    /** The work ran. */
    readonly acquired: true;
    /** What it returned. */
    readonly value: T;
  }
  | {
    /** The work did not run. */
    readonly acquired: false;
    /** Somebody else has the lock or its next turn, or the storage fails (with `onUnavailable: "skip"`). */
    readonly reason: "held" | "unavailable";
    /** When it may be worth trying again, in milliseconds. */
    readonly retryAfterMs: number;
  };

/** What {@linkcode Lock.inspect} sees. */
export interface LockView {
  /** The last fencing token granted, 0 before the first. */
  readonly fence: number;
  /** Who holds the lock. */
  readonly holders: readonly HolderView[];
  /** How many wait in its queue. */
  readonly waiters: number;
}

/**
 * A named lock that holders share up to its `capacity`. The object is only an address and options: two of
 * them with the same storage and name are the same lock, in this process and in every other.
 *
 * Guarantees at most `capacity` permits of live holders at any instant of the storage's time, and a fencing
 * token that rises with every grant. Does *not* guarantee that a holder that was frozen or cut off has
 * stopped: its effects are excluded only where the resource checks the token.
 *
 * @example
 * ```ts
 * import { Lock, MemoryStorage } from "@holdfast/lock";
 * import { assertEquals } from "@std/assert";
 *
 * const lock = new Lock({ storage: new MemoryStorage(), name: "invoices" });
 * const sent = await lock.with(async (lease) => {
 *   await Promise.resolve(); // the work, giving lease.fencingToken along with each write
 *   lease.signal.throwIfAborted();
 *   return 3;
 * });
 * assertEquals(sent, 3);
 * ```
 */
export class Lock {
  readonly #settings: Settings;

  /**
   * Makes the address of a lock; nothing is sent.
   *
   * @param options where the lock lives, its name, and how its leases behave
   * @throws {TypeError | RangeError} if an option is wrong
   */
  constructor(options: LockOptions) {
    this.#settings = settingsOf(options);
  }

  /** The name, in Unicode normalization form C. */
  get name(): string {
    return this.#settings.name;
  }

  /**
   * The same storage and options under another name.
   *
   * @param name 1 to 512 UTF-8 bytes
   * @returns a new lock
   * @throws {TypeError | RangeError} if the name is wrong
   */
  withName(name: string): Lock {
    return new Lock({ ...this.#settings, name: checkName(name) });
  }

  /**
   * Acquires the lock, waiting as long as it takes.
   *
   * @param options `timeoutMs`, `signal`, `waitUntil`
   * @returns the lease
   * @throws {LockTimeoutError} if others held the lock for all of `timeoutMs`
   * @throws {StorageError} if the storage failed for all of `timeoutMs`, or in a way that stays
   * @throws {AbortSignal["reason"]} if `signal` aborts first
   */
  async acquire(options: AcquireOptions = {}): Promise<Lease> {
    if (options.timeoutMs !== undefined) checkMs("timeoutMs", options.timeoutMs, 1);
    return new Lease(await acquire(this.#settings, options));
  }

  /**
   * Acquires the lock if it is free; never waits for a holder.
   *
   * @param options `signal`, `waitUntil`
   * @returns the lease, or `null` if somebody else has the lock, or its next turn
   * @throws {StorageError} if the storage failed three times (unless `onUnavailable` is `"skip"`), or in
   *   a way that stays
   * @throws {AbortSignal["reason"]} if `signal` aborts first
   */
  async tryAcquire(options: TryAcquireOptions = {}): Promise<Lease | null> {
    const tried = await tryAcquire(this.#settings, options);
    return "holding" in tried ? new Lease(tried.holding) : null;
  }

  /**
   * Runs work under the lock, waiting for it as long as it takes, and releases it afterwards.
   *
   * @param work gets the lease
   * @param options `timeoutMs`, `signal`, `waitUntil`
   * @returns what the work returned
   * @throws whatever the work throws
   * @throws {LeaseLostError} if the lease was lost before the work settled; its `value` is what the work
   *   returned
   * @throws {LockTimeoutError | StorageError} as {@linkcode Lock.acquire}
   */
  async with<T>(work: (lease: Lease) => T | Promise<T>, options: AcquireOptions = {}): Promise<T> {
    return await run(await this.acquire(options), work);
  }

  /**
   * Runs work under the lock if it is free, and releases it afterwards.
   *
   * @param work gets the lease; not called if the lock is held
   * @param options `signal`, `waitUntil`
   * @returns whether the work ran, and what it returned
   * @throws whatever the work throws
   * @throws {LeaseLostError} as {@linkcode Lock.with}
   * @throws {StorageError} as {@linkcode Lock.tryAcquire}
   */
  async tryWith<T>(
    work: (lease: Lease) => T | Promise<T>,
    options: TryAcquireOptions = {},
  ): Promise<TryWithResult<T>> {
    const tried: Tried = await tryAcquire(this.#settings, options);
    if (!("holding" in tried)) return { acquired: false, ...tried };
    return { acquired: true, value: await run(new Lease(tried.holding), work) };
  }

  /**
   * Looks at the lock, as the storage sees it now.
   *
   * @returns the last fence, the holders (never their tokens) and the length of the queue
   * @throws {StorageError} if the storage failed
   */
  async inspect(): Promise<LockView> {
    const { type: _, ...view } = await this.#ask("inspect", () => ({ type: "inspect" }));
    return view;
  }

  /**
   * Takes the lock away from whoever holds it. Their leases are lost when they next renew; until then their
   * work overlaps with that of the next holder.
   *
   * @param fence only the holding with this fencing token; all of them if absent
   * @returns how many holdings were removed
   * @throws {TypeError | RangeError} if `fence` is not a positive integer
   * @throws {StorageError} if the storage failed
   */
  async forceRelease(fence?: number): Promise<number> {
    if (fence !== undefined) checkInteger("fence", fence, 1, Number.MAX_SAFE_INTEGER);
    const { fence: maxFence } = await this.inspect();
    const { count } = await this.#ask("release", () => ({ type: "evict", fence, maxFence }));
    return count;
  }

  /**
   * Takes over a lease that another process detached. Of several takers the first wins, with a new and
   * larger fencing token.
   *
   * @param baton what `Lease.detach` returned, after any number of trips through JSON
   * @returns the lease, or `null` if it ran out or somebody else took it
   * @throws {TypeError} if it is not a baton
   * @throws {RangeError} if it is for another lock
   * @throws {StorageError} if the storage failed
   */
  async resume(baton: unknown): Promise<Lease | null> {
    const { token, fencingToken: fence } = this.#checkBaton(baton);
    const { name, clock, permits, capacity, gate, storage, waitUntil } = this.#settings;
    const newToken = this.#settings.entropy.uuid();
    const startedAt = clock.read();
    let sentAt = startedAt;
    const ttlMs = ttlToAskMs(this.#settings.ttlMs, undefined, this.#settings, sentAt);
    const outcome = await this.#ask("resume", () => {
      sentAt = clock.read();
      return { type: "adopt", token, fence, newToken, ttlMs };
    }).catch((error) => {
      // It may have been ours all the same; nobody else can resume it then.
      if (isTransient(error)) {
        const work = releaseQuietly(this.#settings, newToken);
        waitUntil?.(work);
      }
      throw error;
    });
    if (outcome.type === "refused") return null;
    const turn = gate ? Gate.of(storage).join(name, permits, capacity, () => {}) : undefined;
    const waitedMs = clock.read().monotonicMs - startedAt.monotonicMs;
    return new Lease(
      new Holding(this.#settings, {
        token: newToken,
        fence: outcome.fence,
        sentAt,
        ttlMs,
        waitedMs,
        turn,
        waitUntil,
      }),
    );
  }

  #checkBaton(baton: unknown): Baton {
    const { v, name, token, fencingToken } = (baton ?? {}) as Partial<Record<keyof Baton, unknown>>;
    if (
      v !== 1 || typeof name !== "string" || typeof token !== "string" ||
      !Number.isSafeInteger(fencingToken)
    ) {
      throw new TypeError(
        `Cannot resume lock "${this.name}" as the baton must be what detach() returned: ` +
          `current value is of type ${baton === null ? "null" : typeof baton}`,
      );
    }
    if (name !== this.name) {
      throw new RangeError(
        `Cannot resume lock "${this.name}" as the baton is for another: current value is "${name}"`,
      );
    }
    return { v, name, token, fencingToken: fencingToken as number };
  }

  #ask<C extends Command>(verb: string, command: () => C): Promise<OutcomeOf<C>> {
    const settings = this.#settings;
    return insist(settings, () => sendCommand(settings, `${verb} lock`, command()).result);
  }
}

/** Runs work under a lease. A result is never thrown away, and neither is the work's own error. */
async function run<T>(lease: Lease, work: (lease: Lease) => T | Promise<T>): Promise<T> {
  let value: T;
  try {
    value = await work(lease);
  } catch (error) {
    const lost = await end(lease);
    throw lost && isCausedBy(error, lost) ? lost : error;
  }
  const lost = await end(lease);
  if (!lost) return value;
  throw new LeaseLostError(lost.message, { reason: lost.reason, value });
}

/**
 * Releases a lease after its work. A failed release is an event: the ttl reaps.
 *
 * @returns why the lease was lost, if it was lost before
 */
async function end(lease: Lease): Promise<LeaseLostError | undefined> {
  if (lease.status === "lost") return lease.signal.reason;
  await lease.release().catch(() => {});
  return undefined;
}

/** Whether work ended with an abort that the loss of its lease caused. */
function isCausedBy(error: unknown, lost: LeaseLostError): boolean {
  const { name, cause } = (error ?? {}) as { name?: unknown; cause?: unknown };
  return name === "AbortError" || cause === lost;
}
