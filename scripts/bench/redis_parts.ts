/**
 * Redis and Upstash storages whose requests are counted, and what the server itself counts.
 *
 * @module
 */
import { Redis as UpstashClient } from "@upstash/redis";
import type { Redis } from "ioredis";
import { ioredis, RedisStorage } from "../../src/storage/redis.ts";
import { UpstashStorage } from "../../src/storage/upstash.ts";
import { connectIoredis } from "../../tests/support/redis_clients.ts";

/** A storage over two connections of its own. */
export interface CountedRedis extends AsyncDisposable {
  readonly storage: RedisStorage;
  /** How often it has written to its connection; the calls of a pipeline go together. */
  requests(): number;
}

/** Connects, with a second connection to listen on. */
export function countedRedis(url: string): CountedRedis {
  const [redis, subscriber] = [connectIoredis(url), connectIoredis(url)];
  const client = ioredis(redis, { subscriber });
  let count = 0;
  const storage = new RedisStorage({ ...client, send: (calls) => (count++, client.send(calls)) });
  return {
    storage,
    requests: () => count,
    async [Symbol.asyncDispose]() {
      await Promise.all([redis, subscriber].map((one) => one[Symbol.asyncDispose]()));
    },
  };
}

/** A storage over a REST server. */
export function upstash({ url, token }: { readonly url: string; readonly token: string }) {
  return new UpstashStorage(new UpstashClient({ url, token, automaticDeserialization: false }));
}

/** What says something of the server or of the connection, not of locks. */
const CHATTER = /^(info|config|hello|client|select|script|quit|command|auth|ping)\b/;

/** The commands that a server ran since the last call, those inside scripts too. */
export async function commandsSince(admin: Redis): Promise<ReadonlyMap<string, number>> {
  const text = await admin.info("commandstats");
  await admin.config("RESETSTAT");
  const all = text.matchAll(/cmdstat_([^:]+):calls=(\d+)/g);
  return new Map(
    [...all].map(([, name, calls]) => [name!, Number(calls)] as const)
      .filter(([name]) => !CHATTER.test(name)),
  );
}

/** All commands together. */
export function totalOf(commands: ReadonlyMap<string, number>): number {
  return [...commands.values()].reduce((sum, calls) => sum + calls, 0);
}

/** Those that clients sent: scripts and subscriptions. */
export function sentOf(commands: ReadonlyMap<string, number>): number {
  return ["evalsha", "eval", "subscribe", "unsubscribe"]
    .reduce((sum, name) => sum + (commands.get(name) ?? 0), 0);
}
