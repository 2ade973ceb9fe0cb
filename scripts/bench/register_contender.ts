/**
 * One process of the benchmark with many processes on one key of a product:
 * `register_contender.ts PRODUCT PLACE KEY HOW SECTIONS POLL_MS`. Adds 1 to a number so many times, and prints how
 * long that took as JSON. `HOW` is `holdfast`, `cas lock` (the bare lock, a compare-and-swap to take it and one to
 * give it back) or `cas counter` (no lock at all: the number itself is swapped).
 *
 * @module
 */
import { Lock } from "../../mod.ts";
import type { Bare } from "./product.ts";
import { products } from "./products.ts";

async function add(bare: Bare, key: string): Promise<void> {
  const { value } = await bare.read(key);
  await bare.put(key, value + 1);
}

async function swapIn(bare: Bare, key: string): Promise<void> {
  for (;;) {
    const { value, version } = await bare.read(key);
    if (await bare.swap(key, value + 1, version)) return;
  }
}

/** Free while its number is even. */
async function underBareLock(bare: Bare, key: string, pollMs: number): Promise<void> {
  for (;;) {
    const { value, version } = await bare.read(key);
    const mine = value % 2 === 0 ? await bare.swap(key, value + 1, version) : undefined;
    if (mine) {
      await add(bare, `${key}:data`);
      await bare.swap(key, value + 2, mine.version);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, pollMs * Math.random()));
  }
}

const [name, place, key, how, sections, poll] = Deno.args as [
  string,
  string,
  string,
  string,
  string,
  string,
];
const pollMs = Number(poll);
const product = products.find((one) => one.name === name)!;
const opened = await product.open(
  place,
  pollMs > 0 ? { min: Math.ceil(pollMs / 10), max: pollMs } : undefined,
);
const lock = new Lock({ storage: opened.storage, name: key, ttlMs: 30_000 });
await opened.bare.read(key);
// All begin together, when the parent says so.
await Deno.stdout.write(new TextEncoder().encode("ready\n"));
await Deno.stdin.read(new Uint8Array(1));

const before = opened.requests();
for (let i = 0; i < Number(sections); i++) {
  if (how === "holdfast") await lock.with(() => add(opened.bare, `${key}:data`));
  else if (how === "cas lock") await underBareLock(opened.bare, key, pollMs);
  else await swapIn(opened.bare, `${key}:data`);
}
console.log(JSON.stringify({ requests: opened.requests() - before }));
await opened.close();
Deno.exit(0);
