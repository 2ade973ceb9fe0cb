/**
 * The Upstash storage as the contract suite wants it, with nothing but what a browser has.
 *
 * @module
 */
import type { Redis } from "@upstash/redis";
import { fencedExec, UpstashStorage } from "../../src/storage/upstash.ts";
import type { ContractSubject } from "../../src/testing/mod.ts";

/** Where the record of a lock is. */
function keyOf(name: string): string {
  return `holdfast:{${encodeURIComponent(name)}}`;
}

/**
 * Makes a subject.
 *
 * @param connect makes a client; called twice, with automatic deserialization off
 * @param notify whether waiters subscribe
 */
export function upstashSubject(connect: () => Redis, notify = true): ContractSubject {
  const [redis, other] = [connect(), connect()];
  return {
    clients: [new UpstashStorage(redis, { notify }), new UpstashStorage(other, { notify })],
    async fencedWrite(lease, resource, value) {
      await fencedExec(redis, lease, [["SET", resource, value]], { keys: [resource] });
    },
    readResource: async (resource) => await redis.get<string>(resource) ?? undefined,
    writeRaw: async (name, text) => void await redis.set(keyOf(name), text),
    readRaw: async (name) => await redis.get<string>(keyOf(name)) ?? undefined,
    forget: async (name) => void await redis.del(keyOf(name)),
    close: () => Promise.resolve(),
  };
}
