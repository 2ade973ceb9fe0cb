/**
 * One process of a crowd on one lock in Redis: `redis_contender.ts URL NAME MS`. Takes and gives it back for MS
 * milliseconds, and prints how often as JSON.
 *
 * @module
 */
import { Lock } from "../../mod.ts";
import { countedRedis } from "./redis_parts.ts";

const [url, name, ms] = Deno.args as [string, string, string];
const redis = countedRedis(url);
const lock = new Lock({ storage: redis.storage, name });
await lock.inspect();
// All begin together, when the parent says so.
await Deno.stdout.write(new TextEncoder().encode("ready\n"));
await Deno.stdin.read(new Uint8Array(1));

const untilMs = performance.now() + Number(ms);
let grants = 0;
while (performance.now() < untilMs) {
  await using _ = await lock.acquire();
  grants++;
  await new Promise((resolve) => setTimeout(resolve, 1));
}
console.log(JSON.stringify({ grants }));
await redis[Symbol.asyncDispose]();
Deno.exit(0);
