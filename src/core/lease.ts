/**
 * The handle of one held lease.
 *
 * @module
 */
import { asyncDispose, dispose } from "./disposable.ts";
import type { Holding, LeaseStatus } from "./holding.ts";
import { checkMs, MIN_TTL_MS } from "./validate.ts";

/** What identifies a holding towards a resource that the lease guards. */
export type Fenced = Pick<Lease, "name" | "token" | "fencingToken">;

/** A lease on its way to another process; plain JSON, and a credential: whoever has it can take over. */
export interface Baton {
  /** Version of this shape. */
  readonly v: 1;
  /** The lock. */
  readonly name: string;
  /** The giver's token. */
  readonly token: string;
  /** The giver's fencing token. */
  readonly fencingToken: number;
}

/** Whoever keeps a signal keeps its lease: the registry below must not take the handle for forgotten. */
const leaseOfSignal = new WeakMap<AbortSignal, Lease>();

const forgotten = typeof FinalizationRegistry === "function"
  ? new FinalizationRegistry<Holding>((holding) => holding.abandon())
  : undefined;

/** A lease that is over need not be watched; its error would keep its handle, which is in the stack trace. */
function stopWatching(holding: Holding): void {
  forgotten?.unregister(holding);
}

/**
 * One held lease. It renews itself while it is used, and ends with its scope (`await using`), with
 * {@linkcode Lease.release}, or by being lost: then {@linkcode Lease.signal} aborts, no later than the
 * deadline. What is *not* guaranteed is that nothing you started still takes effect after the loss: check
 * {@linkcode Lease.fencingToken} where the effect takes place.
 *
 * @example
 * ```ts
 * import { Lock, MemoryStorage } from "@holdfast/lock";
 * import { assert } from "@std/assert";
 *
 * const lock = new Lock({ storage: new MemoryStorage(), name: "report" });
 * await using lease = await lock.acquire();
 * assert(lease.isHeld());
 * ```
 */
export class Lease implements AsyncDisposable, Disposable {
  readonly #holding: Holding;
  #controller: AbortController | undefined;

  /** Made by `Lock`; not by hand. */
  constructor(holding: Holding) {
    this.#holding = holding;
    forgotten?.register(this, holding, holding);
    holding.onEnd = stopWatching;
  }

  /** The lock. */
  get name(): string {
    return this.#holding.name;
  }

  /** The secret identity of this holding, stable over renewals. A credential: do not log it. */
  get token(): string {
    return this.#holding.grant.token;
  }

  /** Rises with every grant of the lock; give it along with each write. */
  get fencingToken(): number {
    return this.#holding.grant.fence;
  }

  /** How long `acquire()` waited, in milliseconds. */
  get waitedMs(): number {
    return this.#holding.grant.waitedMs;
  }

  /** Where the lease is in its life, by the local clock. */
  get status(): LeaseStatus {
    return this.#holding.status;
  }

  /**
   * Aborts with a `LeaseLostError` when the lease is lost, no later than its deadline; never
   * after a release. Whoever keeps the signal keeps the lease renewed; whoever keeps only a listener, or an
   * `AbortSignal.any()` of it, does not, and is not told either when the lease is collected.
   */
  get signal(): AbortSignal {
    if (!this.#controller) {
      const controller = this.#controller = new AbortController();
      leaseOfSignal.set(controller.signal, this);
      if (this.status === "lost") controller.abort(this.#holding.error);
      else {
        const weak = new WeakRef(controller);
        this.#holding.onLost = (error) => weak.deref()?.abort(error);
        // Without renewal nobody looks at the clock yet.
        this.#holding.watchOver();
      }
    }
    return this.#controller.signal;
  }

  /**
   * For how long the lease can still be used without a renewal, by the local clock.
   *
   * @returns milliseconds; 0 when it is not held
   */
  remainingMs(): number {
    const { clock } = this.#holding.settings;
    return this.status === "held" ? Math.max(0, this.#holding.leftMs(clock.read())) : 0;
  }

  /**
   * Whether the lease is held, by the local clock: right also after a freeze, before any timer ran.
   *
   * @param minMs for how much longer it has to be held, in milliseconds
   */
  isHeld(minMs = 0): boolean {
    return this.status === "held" && this.remainingMs() > minMs;
  }

  /**
   * Throws unless {@linkcode Lease.isHeld}. Call it right before an effect that cannot be fenced.
   *
   * @param minMs for how much longer it has to be held, in milliseconds
   * @throws {LeaseLostError} if it is not held for that long
   */
  assertHeld(minMs = 0): void {
    if (!this.isHeld(minMs)) throw this.#holding.error ?? this.#holding.tooShort(minMs);
  }

  /**
   * Extends the lease once, now; the regular renewal goes on when less than the lock's own `ttlMs` is left.
   * A shorter time than what is left changes nothing.
   *
   * @param ttlMs from now, in milliseconds: 10 to 30 days; the lock's own if absent
   * @throws {LeaseLostError} if the storage refused, or the lease is not held
   * @throws {StorageError} if the storage failed; the lease stays held until its deadline
   */
  async renew(ttlMs?: number): Promise<void> {
    const ms = ttlMs === undefined
      ? this.#holding.settings.ttlMs
      : checkMs("ttlMs", ttlMs, MIN_TTL_MS);
    await this.#holding.renewNow(ms);
  }

  /**
   * Gives the lease back. After it settled nothing more is sent; a second call makes no traffic.
   *
   * @returns whether the lease was given back; `false` if it was already gone
   * @throws {StorageError} if the storage failed three times; the ttl frees the lock, and the release may
   *   be tried again
   */
  release(): Promise<boolean> {
    return this.#holding.release();
  }

  /**
   * Ends the lease here so that another process can take it over with `Lock.resume`. From now on this
   * handle sends nothing; the lock stays held until the ttl runs out or somebody resumes.
   *
   * @returns what to hand over; plain JSON, and a credential
   * @throws {LeaseLostError} if the lease is not held
   */
  detach(): Baton {
    this.#holding.detach();
    const { name, token, fencingToken } = this;
    return { v: 1, name, token, fencingToken };
  }

  /** Keeps the lease although nothing refers to this handle: for one as long as the process. */
  hold(): void {
    if (this.status === "held") this.#holding.pinned = this;
  }

  /** Releases at the end of an `await using` scope. A storage failure is an event, not an error. */
  async [asyncDispose](): Promise<void> {
    await this.release().catch(() => {});
  }

  /** Starts the release without waiting for it. Use `await using` wherever it can wait. */
  [dispose](): void {
    const { waitUntil } = this.#holding.grant;
    const work = this.#holding.release(waitUntil !== undefined).catch(() => {});
    waitUntil?.(work);
  }
}
