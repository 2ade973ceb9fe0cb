/**
 * Holdfast over DynamoDB, Postgres, MongoDB, SQLite and Deno KV against each product's own bare minimum and other
 * libraries, in one run on one machine: requests counted, the cycle as a ratio, and 8 processes on one lock.
 * `deno task bench:registers [--quick] [--only NAME] [--out FILE]`
 *
 * @module
 */
import { parseArgs } from "node:util";
import { Lock } from "../../mod.ts";
import { ServiceUnavailable } from "../services.ts";
import { countCycle } from "./count_cycle.ts";
import { runCrowd } from "./crowd.ts";
import type { Opened, Product, Running } from "./product.ts";
import { products } from "./products.ts";
import { registerPeers, type RunningPeer, startPeer } from "./register_peers.ts";
import { median, medianMs, printTable, type Row } from "./report.ts";

const { values } = parseArgs({
  args: Deno.args,
  options: {
    quick: { type: "boolean", default: false },
    only: { type: "string" },
    out: { type: "string" },
  },
});

const sizes = values.quick
  ? { rounds: 8, cycles: 20, sections: 40 }
  : { rounds: 30, cycles: 50, sections: 400 };

/** How many processes want the hot lock. */
const PROCESSES = 8;

/** How often its waiters ask, ours and the bare ones: a billed product's default is for less hurry. */
const HOT_POLL_MS = 20;

const tables: Record<"requests" | "cycle" | "hot", Row[]> = { requests: [], cycle: [], hot: [] };

/** The requests of a lock's first cycle, and the most of those after it. */
async function countRequests(product: Product, opened: Opened): Promise<void> {
  const { first, later } = await countCycle(opened.storage, opened.requests);
  tables.requests.push([product.name, product.unit, first.join(" / "), later.join(" / ")]);
}

/** In turns, so that whatever else the machine does meets all of them. */
async function measureCycle(product: Product, { place }: Running, opened: Opened): Promise<void> {
  const lock = new Lock({ storage: opened.storage, name: crypto.randomUUID(), ttlMs: 30_000 });
  const key = crypto.randomUUID();
  const { bare } = opened;
  let seen = await bare.read(key);
  const works: Record<string, () => Promise<unknown>> = {
    "two conditional writes": async () => {
      for (let i = 0; i < 2; i++) seen = (await bare.swap(key, seen.value + 1, seen.version))!;
    },
    "holdfast": async () => (await lock.acquire()).release(),
    ...opened.others,
  };
  const contestants = new Map(
    Object.entries(works).map(([name, work]) => [name, (n: number) => medianMs(n, work)]),
  );
  const peers = await startPeers(product, place);
  for (const [name, peer] of peers) contestants.set(name, peer.cycles);
  const timesMs = new Map([...contestants.keys()].map((name) => [name, [] as number[]]));
  for (let round = -2; round < sizes.rounds; round++) {
    for (const [name, cycles] of contestants) {
      const ms = await cycles(sizes.cycles);
      if (round >= 0) timesMs.get(name)!.push(ms);
    }
  }
  for (const peer of peers.values()) await peer.stop();
  const floor = timesMs.get("two conditional writes")!;
  for (const [name, times] of timesMs) {
    const ratio = median(times.map((ms, i) => ms / floor[i]!));
    tables.cycle.push([product.name, name, median(times).toFixed(3), ratio.toFixed(2)]);
  }
}

/** The peers that run on a product; for the others the table says why not. */
async function startPeers(product: Product, place: string): Promise<Map<string, RunningPeer>> {
  const running = new Map<string, RunningPeer>();
  for (const peer of registerPeers) {
    if (peer.product !== product.name) continue;
    const started = await startPeer(peer, place);
    if (typeof started !== "string") running.set(peer.name, started);
    else tables.cycle.push([product.name, peer.name, "-", `cannot run: ${started}`]);
  }
  return running;
}

/** Eight processes add to one number: under our lock, under a bare one, and by swapping it. */
async function contend(product: Product, { place }: Running, opened: Opened): Promise<void> {
  const total = PROCESSES * sizes.sections;
  const rates = new Map<string, number>();
  for (const how of ["cas counter", "cas lock", "holdfast"]) {
    const key = crypto.randomUUID();
    const { ms, results } = await runCrowd<{ requests: number }>(
      PROCESSES,
      "./register_contender.ts",
      [product.name, place, key, how, `${sizes.sections}`, `${HOT_POLL_MS}`],
    );
    const { value } = await opened.bare.read(`${key}:data`);
    const rate = total / ms * 1000;
    rates.set(how, rate);
    const requests = results.reduce((sum, result) => sum + result.requests, 0) / total;
    tables.hot.push([
      product.name,
      how,
      Math.round(rate),
      (rate / rates.get("cas counter")!).toFixed(2),
      rates.has("cas lock") ? (rate / rates.get("cas lock")!).toFixed(2) : "-",
      total - value,
      how === "holdfast" ? requests.toFixed(1) : "-",
    ]);
    if (how !== "cas counter" && value !== total) {
      throw new Error(`${product.name}: ${total - value} of ${total} were lost under ${how}`);
    }
  }
}

for (const product of products) {
  if (values.only !== undefined && !product.name.toLowerCase().includes(values.only)) continue;
  try {
    await using running = await product.start();
    const opened = await product.open(running.place);
    await countRequests(product, opened);
    await measureCycle(product, running, opened);
    await contend(product, running, opened);
    await opened.close();
  } catch (error) {
    if (!(error instanceof ServiceUnavailable)) throw error;
    console.error(`${product.name} is left out: ${error.message}`);
  }
}

printTable("Requests of an uncontended acquire / renew / release, counted", [
  "product",
  "what is counted",
  "first cycle",
  "later cycles, at most",
], tables.requests);
printTable("Uncontended cycle, ratio to the product's own two conditional writes", [
  "product",
  "what",
  "median ms",
  "ratio",
], tables.cycle);
printTable(
  `${PROCESSES} processes on one lock, ${sizes.sections} sections each, asking within ${HOT_POLL_MS} ms`,
  [
    "product",
    "what",
    "sections/s",
    "to a bare counter",
    "to a bare lock",
    "lost",
    "requests per grant",
  ],
  tables.hot,
);
if (values.out) await Deno.writeTextFile(values.out, JSON.stringify(tables, null, 2));
Deno.exit(0);
