/**
 * Connections to what runs Redis's scripts.
 *
 * @module
 */
import { Redis } from "@upstash/redis";
import { fencedExec as redisFencedExec } from "../../src/storage/redis.ts";
import { fencedExec, UpstashStorage } from "../../src/storage/upstash.ts";
import { connectIoredis, connectRedis, type RedisKind } from "../../tests/support/redis_clients.ts";
import { type Connect, GUARDED } from "./client.ts";
import { UPSTASH_TOKEN } from "./terms.ts";

/** Redis, by one of its libraries, with the defaults of that. */
function connectBy(kind: RedisKind): Connect {
  return async (url) => {
    const { storage, [Symbol.asyncDispose]: close } = await connectRedis(kind, url);
    const raw = connectIoredis(url);
    return {
      storage,
      read: () => raw.get(GUARDED),
      write: async (id, lease) => {
        if (!lease) return void await raw.set(GUARDED, id);
        await redisFencedExec(storage, lease, [["SET", GUARDED, id]], { keys: [GUARDED] });
      },
      close: async () => {
        await close();
        await raw[Symbol.asyncDispose]();
      },
    };
  };
}

/** By ioredis. */
export const connectByIoredis: Connect = connectBy("ioredis");

/** By node-redis. */
export const connectByNodeRedis: Connect = connectBy("node-redis");

/** By both. */
export const connectByEither: Connect = (url, worker) =>
  (worker % 2 === 0 ? connectByIoredis : connectByNodeRedis)(url, worker);

/** Upstash, by its own client with its own retries. */
export const connectUpstash: Connect = (url) => {
  const redis = new Redis({ url, token: UPSTASH_TOKEN, automaticDeserialization: false });
  // What is free here need not be spared.
  const storage = new UpstashStorage(redis, { pollMs: { min: 50, max: 1000 } });
  return Promise.resolve({
    storage,
    read: () => redis.get<string>(GUARDED),
    write: async (id, lease) => {
      if (!lease) return void await redis.set(GUARDED, id);
      await fencedExec(storage, lease, [["SET", GUARDED, id]], { keys: [GUARDED] });
    },
    close: () => Promise.resolve(),
  });
};
