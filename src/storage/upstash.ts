/**
 * Leases in Upstash Redis over REST, by the server's clock: one request each for acquire, renew and release.
 * Any build of `@upstash/redis` (1.34.9 or later) with any of its settings will do.
 *
 * Recommended for the client: `Redis.fromEnv({ retry: { retries: 0 }, signal: () => AbortSignal.timeout(5000) })`.
 * By default it has no time-out and sends a request up to six times over more than four seconds; that is
 * safe here, because what is sent twice is applied once, but slow to fail. Give `signal` as a function: with
 * a plain signal the client makes up answers when it is aborted.
 *
 * Upstash can fork: when a partition splits a database both sides may take writes, and of a key that both
 * have written the newer value stays. Two clients can then hold the same lock. The fencing token of one of
 * them is larger: guard what must not happen twice with it, or with {@linkcode fencedExec}, which holds for
 * data in the same database. Turn eviction off for a database with locks.
 *
 * @example
 * ```ts ignore
 * import { Redis } from "@upstash/redis";
 * import { Lock } from "@holdfast/lock";
 * import { UpstashStorage } from "@holdfast/lock/upstash";
 *
 * const storage = new UpstashStorage(Redis.fromEnv());
 * const lock = new Lock({ storage, name: "invoice:42" });
 * await lock.tryWith(async (lease) => {
 *   console.log(`held with fence ${lease.fencingToken}`);
 * });
 * ```
 *
 * @module
 */
import type { Clock } from "../core/clock.ts";
import { systemClock } from "../core/clock.ts";
import type { Fenced } from "../core/lease.ts";
import { ScriptStorage, type ScriptStorageOptions } from "./_redis_storage.ts";
import { type UpstashRedis, upstashSend } from "./_upstash_client.ts";
import { upstashChannels } from "./_upstash_events.ts";
import {
  type FencedCommand,
  type FencedExecOptions,
  type FencedReply,
  runFenced,
} from "./redis_fence.ts";

export type { UpstashPipeline, UpstashRedis, UpstashSubscriber } from "./_upstash_client.ts";
export type { ScriptStorage, ScriptStorageOptions } from "./_redis_storage.ts";
export type { FencedCommand, FencedExecOptions, FencedReply } from "./redis_fence.ts";

/** Options of an {@linkcode UpstashStorage}; `pollMs` is 250 to 5000 ms unless given. */
export interface UpstashStorageOptions extends ScriptStorageOptions {
  /**
   * Whether waiters listen for releases (server-sent events, one request per waiter, at most two at a time
   * per client; more waiters poll) and releases tell them. With `gate` a process has one waiter per lock.
   *
   * @default {true}
   */
  readonly notify?: boolean | undefined;
  /** Sets the timers of the subscriptions. */
  readonly clock?: Clock | undefined;
}

/**
 * Keeps each lock in one key of an Upstash database. Atomic by one script; the same record as
 * `RedisStorage` writes.
 *
 * @example
 * ```ts ignore
 * import { Redis } from "@upstash/redis";
 * import { UpstashStorage } from "@holdfast/lock/upstash";
 *
 * const storage = new UpstashStorage(Redis.fromEnv(), { prefix: "app", notify: false });
 * ```
 */
export class UpstashStorage extends ScriptStorage {
  /** The client that it was given. */
  readonly client: UpstashRedis;

  /**
   * Takes a client.
   *
   * @param client a `Redis` of `@upstash/redis`
   * @param options prefix, retention, polling, notification
   * @throws {RangeError} if an option is out of range
   */
  constructor(client: UpstashRedis, options: UpstashStorageOptions = {}) {
    const { notify = true, clock = systemClock } = options;
    super({
      send: upstashSend(client),
      channels: notify ? upstashChannels(client, clock) : undefined,
      publishes: notify,
      pollMs: { min: 250, max: 5000 },
    }, options);
    this.client = client;
  }
}

/**
 * Runs commands of yours if the lease is still held, in one step that nothing can come between.
 *
 * Guarantees that none of them runs unless this very holding (token *and* fence) is live by the server's
 * clock, and that they run at most once per call, however often the request is sent. Does *not* undo the
 * earlier ones when one fails: Redis cannot.
 *
 * @example
 * ```ts ignore
 * import { Redis } from "@upstash/redis";
 * import { Lock } from "@holdfast/lock";
 * import { fencedExec, UpstashStorage } from "@holdfast/lock/upstash";
 *
 * const storage = new UpstashStorage(Redis.fromEnv());
 * await new Lock({ storage, name: "invoice:42" }).with(async (lease) => {
 *   const [count] = await fencedExec(storage, lease, [["INCR", "paid"]], { keys: ["paid"] });
 * });
 * ```
 *
 * @param storage the storage of the lock, or its client (then say the prefix, unless it is "holdfast")
 * @param lease the lease, or its name, token and fencing token
 * @param commands each the name of a command and its arguments, in order
 * @param options `keys`: every key that the commands touch
 * @returns the replies, in order
 * @throws {StaleFenceError} if the holding is not in the record any more: none has run
 * @throws {StorageError} if a command failed (`index` says which; the earlier ones stay), Upstash refused, or
 *   nobody knows what became of it
 */
export function fencedExec(
  storage: UpstashStorage | UpstashRedis,
  lease: Fenced,
  commands: readonly FencedCommand[],
  options: FencedExecOptions,
): Promise<FencedReply[]> {
  return "hashTag" in storage
    ? runFenced(upstashSend(storage.client), lease, commands, {
      prefix: storage.prefix,
      ...options,
    })
    : runFenced(upstashSend(storage), lease, commands, options);
}
