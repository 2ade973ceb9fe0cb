/**
 * One process of the benchmark with many processes on one key: `contender.ts NAME SERVERS KEY MS`. Adds 1 to a
 * counter under the lock for MS milliseconds, and prints how often it did as JSON.
 */
import { contestant } from "./peers.ts";

const [name, servers, key, ms] = Deno.args as [string, string, string, string];
const subject = await contestant(name).open(JSON.parse(servers));
const data = await contestant("bare two EVAL").open(JSON.parse(servers));
// All begin together, when the parent says so.
await Deno.stdout.write(new TextEncoder().encode("ready\n"));
await Deno.stdin.read(new Uint8Array(1));

const untilMs = performance.now() + Number(ms);
const waitsMs: number[] = [];
let count = 0;
let errors = 0;
while (performance.now() < untilMs) {
  const startMs = performance.now();
  try {
    const release = await subject.acquire(key, 10_000);
    waitsMs.push(performance.now() - startMs);
    // The section: one round trip to the data.
    await (await data.acquire(`${key}:data:${count % 2}`, 1000))();
    count++;
    await release();
  } catch {
    errors++;
  }
}
waitsMs.sort((a, b) => a - b);
const maxWaitMs = Math.round(waitsMs.at(-1) ?? 0);
console.log(JSON.stringify({ count, errors, maxWaitMs }));
Deno.exit(0);
