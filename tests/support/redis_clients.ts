/**
 * Clients of Redis for tests: each kind that the storage works with, with the defaults of its library unless
 * told otherwise. Runs in Deno, Bun and Node.
 *
 * @module
 */
import { inspect } from "node:util";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { channelOf, keyOf, waiterChannelOf } from "../../src/storage/_redis_command.ts";
import {
  bunRedis,
  type BunRedisClient,
  type BunRedisSubscriber,
  fencedExec,
  ioredis,
  nodeRedis,
  type RedisClient,
  RedisStorage,
  type RedisStorageOptions,
} from "../../src/storage/redis.ts";
import type { Fenced } from "../../src/core/lease.ts";
import type { LeaseStorage, Watch } from "../../src/core/storage.ts";
import type { ContractSubject } from "../../src/testing/mod.ts";
import { acquire } from "./commands.ts";

/** Which library; Bun's own is only there in Bun. */
export type RedisKind = "ioredis" | "node-redis" | "bun";

/** What there is in this runtime. */
export const KINDS: readonly RedisKind[] = "Bun" in globalThis
  ? ["ioredis", "node-redis", "bun"]
  : ["ioredis", "node-redis"];

/** Where hints come from. */
export type Listening = "handed in" | "duplicate" | "none";

/** Options of {@linkcode connectRedis}. */
export interface ConnectOptions extends RedisStorageOptions {
  /** @default {"duplicate"} */
  readonly listening?: Listening;
  /** Settings of ioredis. */
  readonly ioredis?: IoredisOptions;
}

/** A storage with a connection of its own; disposing it closes that. */
export interface ConnectedRedis extends AsyncDisposable {
  readonly storage: RedisStorage;
  readonly client: RedisClient;
}

/** The options of ioredis that tests set; its own type does not allow for what is left out. */
export interface IoredisOptions {
  readonly maxRetriesPerRequest?: number;
  readonly autoResendUnfulfilledCommands?: boolean;
  readonly retryStrategy?: (times: number) => number | null;
  readonly keyPrefix?: string;
  readonly username?: string;
  readonly password?: string;
  readonly stringNumbers?: boolean;
}

/** A connection of ioredis that does not print the errors that a test provokes. */
export function connectIoredis(url: string, options: IoredisOptions = {}): Redis & AsyncDisposable {
  const redis = new Redis(url, options);
  redis.on("error", () => {});
  return Object.assign(redis, {
    [Symbol.asyncDispose]: async () => {
      if (redis.status === "end") return;
      // Between two attempts to connect there is no connection whose end it would tell.
      if (redis.status === "reconnecting") await new Promise((ready) => redis.once("ready", ready));
      const ended = new Promise((resolve) => redis.once("end", resolve));
      redis.disconnect();
      await ended;
    },
  });
}

/** Connects a storage. */
export async function connectRedis(
  kind: RedisKind,
  url: string,
  options: ConnectOptions = {},
): Promise<ConnectedRedis> {
  const { listening = "duplicate" } = options;
  const handedIn = listening === "handed in";
  switch (kind) {
    case "ioredis": {
      const redis = connectIoredis(url, options.ioredis);
      const own = handedIn ? connectIoredis(url, options.ioredis) : undefined;
      const subscriber = listening === "duplicate" ? listening : own;
      return connected(ioredis(redis, { subscriber }), options, async () => {
        await redis[Symbol.asyncDispose]();
        await own?.[Symbol.asyncDispose]();
      });
    }
    case "node-redis": {
      const connect = async () => {
        const client = createClient({ url, socket: { reconnectStrategy: 50 } });
        client.on("error", () => {});
        return await client.connect();
      };
      const redis = await connect();
      const own = handedIn ? await connect() : undefined;
      const subscriber = listening === "duplicate" ? listening : own;
      return connected(nodeRedis(redis, { subscriber }), options, () => {
        redis.destroy();
        own?.destroy();
      });
    }
    case "bun": {
      const module = "bun";
      const { RedisClient } = await import(module) as {
        RedisClient: new (url: string) => BunRedisClient & BunRedisSubscriber;
      };
      const redis = new RedisClient(url);
      // A duplicate of a client that is not connected is not connected either.
      await redis.send("PING", []);
      const own = handedIn ? await redis.duplicate() : undefined;
      const subscriber = listening === "duplicate" ? listening : own;
      return connected(bunRedis(redis, { subscriber }), options, () => {
        redis.close();
        own?.close();
      });
    }
  }
}

function connected(
  client: RedisClient,
  options: ConnectOptions,
  close: () => unknown,
): ConnectedRedis {
  return {
    client,
    storage: new RedisStorage(client, options),
    [Symbol.asyncDispose]: async () => void await close(),
  };
}

/** Acquires, which must succeed. */
export async function grant(
  storage: LeaseStorage,
  name: string,
  token: string,
  more: Parameters<typeof acquire>[1] = {},
): Promise<Fenced> {
  const outcome = await storage.execute(name, acquire(token, more));
  if (outcome.type !== "granted") throw new Error(`Not granted but ${outcome.type}`);
  return { name, token, fencingToken: outcome.fence };
}

/** The mark of who only listens. */
export const LISTENER = "listener";

/** The channel of a waiter. */
export function channelOfWaiter(name: string, mark = LISTENER): string {
  return waiterChannelOf(channelOf("holdfast", name), mark);
}

/** Watches, and notes what it is told: the mark of a waiter, or "everybody". */
export function listen(
  storage: LeaseStorage,
  name: string,
  mark = LISTENER,
): Watch & { readonly told: string[] } {
  const told: string[] = [];
  const watch = storage.watch!(name, (next) => told.push(next ?? "everybody"), mark);
  return {
    told,
    get live() {
      return watch.live;
    },
    [Symbol.dispose]: () => watch[Symbol.dispose](),
  };
}

/** A value with all that a log would show of it. */
export function shown(value: unknown): string {
  return inspect(value, { depth: 9, showHidden: true });
}

/** The Redis storage as the contract suite wants it. */
export async function redisSubject(
  kind: RedisKind,
  url: string,
  listening: Listening,
): Promise<ContractSubject> {
  const a = await connectRedis(kind, url, { listening });
  const b = await connectRedis(kind, url, { listening });
  const raw = connectIoredis(url);
  return {
    clients: [a.storage, b.storage],
    fencedWrite: async (lease, resource, value) => {
      await fencedExec(a.storage, lease, [["SET", resource, value]], { keys: [resource] });
    },
    readResource: async (resource) => await raw.get(resource) ?? undefined,
    writeRaw: async (name, text) => void await raw.set(keyOf("holdfast", name), text),
    readRaw: async (name) => await raw.get(keyOf("holdfast", name)) ?? undefined,
    forget: async (name) => void await raw.del(keyOf("holdfast", name)),
    close: async () => {
      for (const it of [a, b, raw]) await it[Symbol.asyncDispose]();
    },
  };
}
