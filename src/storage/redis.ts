/**
 * Leases in Redis 5 or later, and what speaks its protocol and runs its scripts, by the server's clock:
 * one round trip each for acquire, renew and release.
 *
 * Give it the client that you have: {@linkcode ioredis}, {@linkcode nodeRedis} and {@linkcode bunRedis} say
 * which it is. With a second connection to listen on, a waiter is woken by the release; without, it polls.
 * The user needs `EVALSHA`, `EVAL`, `GET`, `SET`, `TIME`, `PEXPIRE`, `DEL` and `PUBLISH` on keys and channels
 * that begin with the prefix.
 *
 * Redis acknowledges a write before its replicas have it. When one of them is promoted without it, two
 * clients can hold the same lock: the fencing token of the later one is larger, if the new server's clock is
 * not behind. Guard what must not happen twice with {@linkcode fencedExec} or the token.
 *
 * @example
 * ```ts ignore
 * import { Redis } from "ioredis";
 * import { Lock } from "@holdfast/lock";
 * import { ioredis, RedisStorage } from "@holdfast/lock/redis";
 *
 * const storage = new RedisStorage(ioredis(new Redis(), { subscriber: "duplicate" }));
 * const lock = new Lock({ storage, name: "invoice:42" });
 * await lock.with(async (lease) => {
 *   console.log(`held with fence ${lease.fencingToken}`);
 * });
 * ```
 *
 * @module
 */
import type { Fenced } from "../core/lease.ts";
import type { RedisClient } from "./_redis_clients.ts";
import { channelsOver } from "./_redis_pubsub.ts";
import { ScriptStorage, type ScriptStorageOptions } from "./_redis_storage.ts";
import { Channels } from "./_redis_watch.ts";
import {
  type FencedCommand,
  type FencedExecOptions,
  type FencedReply,
  runFenced,
} from "./redis_fence.ts";

export {
  bunRedis,
  type BunRedisClient,
  type BunRedisSubscriber,
  ioredis,
  type IoredisClient,
  type IoredisSubscriber,
  type ListenOptions,
  nodeRedis,
  type NodeRedisClient,
  type NodeRedisSubscriber,
  type RedisClient,
} from "./_redis_clients.ts";
export type { Subscriber, SubscriberEvents, Subscription } from "./_redis_pubsub.ts";
export type { Script, ScriptCall, SendCalls } from "./_redis_run.ts";
export type { ScriptStorage, ScriptStorageOptions } from "./_redis_storage.ts";
export type { FencedCommand, FencedExecOptions, FencedReply } from "./redis_fence.ts";

/** Options of a {@linkcode RedisStorage}; `pollMs` is 50 to 1000 ms unless given. */
export type RedisStorageOptions = ScriptStorageOptions;

/**
 * Keeps each lock in one key of a Redis. Atomic by one script; the same record as `UpstashStorage` writes.
 *
 * @example
 * ```ts ignore
 * import { createClient } from "redis";
 * import { nodeRedis, RedisStorage } from "@holdfast/lock/redis";
 *
 * const client = await createClient().connect();
 * const storage = new RedisStorage(nodeRedis(client), { prefix: "app" });
 * ```
 */
export class RedisStorage extends ScriptStorage {
  /** The client that it was given. */
  readonly client: RedisClient;

  /**
   * Takes a client.
   *
   * @param client what {@linkcode ioredis}, {@linkcode nodeRedis} or {@linkcode bunRedis} made of a client
   * @param options prefix, retention, polling
   * @throws {RangeError} if an option is out of range
   */
  constructor(client: RedisClient, options: RedisStorageOptions = {}) {
    const { send, subscriber } = client;
    super({
      send,
      channels: subscriber && new Channels(channelsOver(subscriber)),
      publishes: true,
      pollMs: { min: 50, max: 1000 },
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
 * import { Redis } from "ioredis";
 * import { Lock } from "@holdfast/lock";
 * import { fencedExec, ioredis, RedisStorage } from "@holdfast/lock/redis";
 *
 * const storage = new RedisStorage(ioredis(new Redis()));
 * await new Lock({ storage, name: "invoice:42" }).with(async (lease) => {
 *   const key = `paid:${storage.hashTag("invoice:42")}`;
 *   const [count] = await fencedExec(storage, lease, [["INCR", key]], { keys: [key] });
 * });
 * ```
 *
 * @param storage the storage of the lock, or its client (then say the prefix, unless it is "holdfast")
 * @param lease the lease, or its name, token and fencing token
 * @param commands each the name of a command and its arguments, in order
 * @param options `keys`: every key that the commands touch
 * @returns the replies, in order
 * @throws {StaleFenceError} if the holding is not in the record any more: none has run
 * @throws {StorageError} if a command failed (`index` says which; the earlier ones stay), Redis refused, or
 *   nobody knows what became of it
 */
export function fencedExec(
  storage: RedisStorage | RedisClient,
  lease: Fenced,
  commands: readonly FencedCommand[],
  options: FencedExecOptions,
): Promise<FencedReply[]> {
  return "hashTag" in storage
    ? runFenced(storage.client.send, lease, commands, { prefix: storage.prefix, ...options })
    : runFenced(storage.send, lease, commands, options);
}
