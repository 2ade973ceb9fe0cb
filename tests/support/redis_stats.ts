/**
 * What a Redis has done, and what has been asked of it.
 *
 * @module
 */
import type { Redis } from "ioredis";
import type { TcpProxy } from "./tcp_proxy.ts";

/** Counts the commands that the server runs during some work, those inside scripts included. */
export async function countCommands(redis: Redis, work: () => Promise<unknown>): Promise<string> {
  const before = await commandStats(redis);
  await work();
  const after = await commandStats(redis);
  const counts: string[] = [];
  for (const [name, calls] of after) {
    const count = calls - (before.get(name) ?? 0);
    if (count > 0 && name !== "info") counts.push(`${name}=${count}`);
  }
  return counts.sort().join(" ");
}

async function commandStats(redis: Redis): Promise<Map<string, number>> {
  const info = await redis.info("commandstats");
  const lines = info.matchAll(/^cmdstat_([^:]+):calls=(\d+)/gm);
  return new Map([...lines].map(([, name, calls]) => [name!, Number(calls)]));
}

/** Notes the commands that go through a proxy from now on, resends included. */
export function commandsOf(proxy: TcpProxy): string[] {
  const commands: string[] = [];
  proxy.dropReplyIf((request) => {
    const text = new TextDecoder("latin1").decode(request);
    commands.push(...[...text.matchAll(/\*\d+\r\n\$\d+\r\n(\w+)\r\n/g)].map(([, name]) => name!));
    return false;
  }, Infinity);
  return commands;
}
