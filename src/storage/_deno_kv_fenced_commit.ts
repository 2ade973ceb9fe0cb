/**
 * Writes that are applied only while a holding is there.
 *
 * @module
 */
import { backoffMs } from "../core/backoff.ts";
import { type Clock, sleep, systemClock } from "../core/clock.ts";
import { type Entropy, systemEntropy } from "../core/entropy.ts";
import { isTransient, StaleFenceError } from "../core/errors.ts";
import type { Fenced } from "../core/lease.ts";
import type { PollMs } from "../core/storage.ts";
import {
  bytesOf,
  callKv,
  checkPrefix,
  guardKey,
  type KvAtomic,
  type KvClient,
  type KvCommit,
  nonceKey,
  textOf,
} from "./_deno_kv_client.ts";

/** Options of {@linkcode fencedCommit}. */
export interface FencedCommitOptions {
  /**
   * The `prefix` of the storage that granted the lease.
   *
   * @default {"holdfast"}
   */
  readonly prefix?: string | undefined;
  /** Gives up, with the signal's reason; the commit may still be applied while the lease is held. */
  readonly signal?: AbortSignal | undefined;
  /** Where the time comes from. */
  readonly clock?: Clock | undefined;
  /** Where nonces and jitter come from. */
  readonly entropy?: Entropy | undefined;
}

/** How often a commit is sent whose outcome is not learnt. */
const TRIES = 3;

const AGAIN_MS: PollMs = { min: 25, max: 1000 };

/** For how long a copy of a commit that arrives late is recognised. */
const NONCE_MS = 3_600_000;

/**
 * Commits your own writes under a lease: atomically with the check that its holding is there. A holding is
 * there from its grant until it is released, evicted, handed over, or replaced after it expired; a lease
 * that expired and that nobody has taken over still commits.
 *
 * The runtime sends a commit again until it gets a reply (KV Connect, "Atomic Write Request": unlimited
 * retries), and then reports the failed check of a commit that was applied. So each commit carries a nonce: it
 * is applied at most once, as long as no copy of it arrives more than an hour late, and one that was applied
 * is reported as such. A commit takes two checks, two reads at most, and one key that expires.
 *
 * @example
 * ```ts
 * import { Lock, StaleFenceError } from "@holdfast/lock";
 * import { DenoKvStorage, fencedCommit } from "@holdfast/lock/deno-kv";
 * import { assert, assertRejects } from "@std/assert";
 *
 * const kv = await Deno.openKv(":memory:");
 * const lock = new Lock({ storage: new DenoKvStorage(kv), name: "account:7" });
 * const lease = await lock.acquire();
 * const balance = await kv.get<number>(["balance", 7]);
 * const { ok } = await fencedCommit(
 *   kv,
 *   lease,
 *   (op) => op.check(balance).set(["balance", 7], (balance.value ?? 0) + 10),
 * );
 * assert(ok);
 * await lease.release();
 * await assertRejects(() => fencedCommit(kv, lease, (op) => op.delete(["balance", 7])), StaleFenceError);
 * kv.close();
 * ```
 *
 * @param kv the database that has the lease, and that is written to
 * @param lease the lease, or its name, token and fencing token
 * @param build adds your checks (at most 8 on a server of your own) and your writes; what it returns is not
 *   used, but a promise is waited for
 * @param options `prefix`, `signal`
 * @returns the commit; `ok: false` if a check of your own failed, and then nothing was written
 * @throws {StaleFenceError} if the holding is over; nothing was written
 * @throws {StorageError} if the database failed; the outcome is then unknown
 */
export async function fencedCommit<A extends KvAtomic>(
  kv: KvClient<A>,
  lease: Fenced,
  build: (op: A) => unknown,
  options: FencedCommitOptions = {},
): Promise<KvCommit> {
  const { clock = systemClock, entropy = systemEntropy, signal } = options;
  const prefix = checkPrefix(options.prefix);
  const { name, fencingToken, token } = lease;
  const guard = guardKey(prefix, name, fencingToken);
  const nonce = nonceKey(prefix, name, entropy.uuid());
  const what = `commit under lease "${name}"`;
  const call = <T>(send: () => Promise<T>): Promise<T> =>
    callKv(what, () => untilAborted(send(), signal), { clock, entropy, signal });

  const held = await call(() => kv.get(guard));
  if (textOf(held.value) !== token) throw stale(lease);
  const op = kv.atomic();
  const built = build(op);
  // Deno's operation, which `build` usually returns, throws if it is awaited.
  if (built instanceof Promise) await built;
  op.check({ key: guard, versionstamp: held.versionstamp }, { key: nonce, versionstamp: null });
  op.set(nonce, bytesOf(""), { expireIn: NONCE_MS });

  for (let tries = 1;; tries++) {
    try {
      const result = await call(() => op.commit());
      return result.ok ? result : await readBack();
    } catch (error) {
      const again = isTransient(error) && tries < TRIES;
      if (!again) throw error;
    }
    await sleep(clock, backoffMs(tries, AGAIN_MS, entropy.random()), { keepAlive: true, signal });
  }

  /** Which check failed: that of the nonce means that an earlier copy of this commit was applied. */
  async function readBack(): Promise<KvCommit> {
    const applied = await call(() => kv.get(nonce));
    if (applied.versionstamp !== null) return { ok: true, versionstamp: applied.versionstamp };
    const { versionstamp } = await call(() => kv.get(guard));
    if (versionstamp !== held.versionstamp) throw stale(lease);
    return { ok: false };
  }
}

function stale({ name, fencingToken: fence }: Fenced): StaleFenceError {
  return new StaleFenceError(
    `Cannot commit under lease "${name}" as its holding is over: current value is fence ${fence}`,
    { fence },
  );
}

/** No method of Deno KV takes a signal. */
function untilAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason);
    if (signal.aborted) onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
  });
}
