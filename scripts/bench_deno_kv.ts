/**
 * Measures the Deno KV storage on a local file: the uncontended cycle against two bare commits, how soon a
 * waiter in another process has a lock that was released, and what a waiter costs while it waits.
 *
 * `deno run -A scripts/bench_deno_kv.ts`, with `--json` for one line of JSON, with `--check` to end with
 * status 1 beyond a limit.
 *
 * @module
 */
import process from "node:process";
import { parseArgs } from "node:util";
import { Lock } from "../mod.ts";
import { DenoKvStorage } from "../src/storage/deno_kv.ts";
import { linesOf } from "./lines.ts";
import { openKv } from "./open_kv.ts";

/** Limits, as issued: the ratio of times, milliseconds, and part of one core. */
const LIMITS = { cycleRatio: 1.25, handOverMs: 50, waiterCpu: 0.02 };

/** Turns, those before them that do not count, and cycles in each. */
const BATCHES = 300;
const WARM_UP = 200;
const CYCLES = 10;

const HAND_OVERS = 25;
const READER_MS = 4000;

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

/** Commits by hand, to one key: what is checked and written there, and nothing else. */
class Bare {
  readonly #kv: Deno.Kv;
  readonly #key: Deno.KvKey;
  #versionstamp: string | null = null;

  constructor(kv: Deno.Kv, key: Deno.KvKey) {
    this.#kv = kv;
    this.#key = key;
  }

  /** As bare as a commit can be that depends on the one before. */
  async commit(value: Uint8Array, more?: (op: Deno.AtomicOperation) => void): Promise<void> {
    const check = { key: this.#key, versionstamp: this.#versionstamp };
    const op = this.#kv.atomic().check(check).set(this.#key, value);
    more?.(op);
    const result = await op.commit();
    if (!result.ok) throw new Error("A bare commit failed");
    this.#versionstamp = result.versionstamp;
  }
}

interface Cycle {
  /** One acquire and one release, in milliseconds. */
  readonly cycleMs: number;
  /** Two bare commits of as many bytes. */
  readonly bareMs: number;
  /** The same with what a lock has to write besides: a guard that comes and goes, and an expiry. */
  readonly alikeMs: number;
  /** The cycle to two bare commits. */
  readonly cycleRatio: number;
  /** The cycle to two commits that write the same. */
  readonly alikeRatio: number;
}

/** In turns of a few milliseconds, so that whatever else the machine does meets all of them. */
async function measureCycle(path: string): Promise<Cycle> {
  const kv = await openKv(path);
  const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
  const lock = new Lock({ storage, name: "cycle" });
  const bare = new Bare(kv, ["bare"]);
  const alike = new Bare(kv, ["alike"]);
  const token = new Uint8Array(36);
  let fence = Date.now() * 1000;

  const times = { cycle: [] as number[], bare: [] as number[], alike: [] as number[] };
  for (let batch = -WARM_UP; batch < BATCHES; batch++) {
    const startMs = performance.now();
    for (let i = 0; i < CYCLES; i++) await (await lock.acquire()).release();
    const cycleMs = performance.now() - startMs;

    const { value } = await kv.get<Uint8Array>(["holdfast", "lock", "cycle"]);
    const bareStartMs = performance.now();
    for (let i = 0; i < CYCLES; i++) {
      await bare.commit(value!);
      await bare.commit(value!);
    }
    const bareMs = performance.now() - bareStartMs;

    const alikeStartMs = performance.now();
    for (let i = 0; i < CYCLES; i++) {
      const guard = ["guard", ++fence];
      await alike.commit(value!, (op) => op.set(guard, token));
      await alike.commit(value!, (op) => {
        op.set(["alike"], value!, { expireIn: 3_600_000 }).delete(guard);
      });
    }
    const alikeMs = performance.now() - alikeStartMs;
    if (batch < 0) continue;
    times.cycle.push(cycleMs / CYCLES);
    times.bare.push(bareMs / CYCLES);
    times.alike.push(alikeMs / CYCLES);
  }
  kv.close();
  return {
    cycleMs: median(times.cycle),
    bareMs: median(times.bare),
    alikeMs: median(times.alike),
    cycleRatio: median(times.cycle.map((ms, i) => ms / times.bare[i]!)),
    alikeRatio: median(times.cycle.map((ms, i) => ms / times.alike[i]!)),
  };
}

/** What the other process reports after each grant. */
interface Taken {
  /** When it had the lock. */
  readonly at: number;
  /** The part of a core that it used while it waited. */
  readonly cpu: number;
}

interface HandOver {
  /** From the release to the grant in the other process, in milliseconds; the median. */
  readonly handOverMs: number;
  /** The part of a core that the other process uses while it waits; the median. */
  readonly waiterCpu: number;
  /** The same of a loop by hand that sleeps and reads the record as often as a waiter does. */
  readonly readerCpu: number;
}

async function measureHandOver(path: string): Promise<HandOver> {
  const kv = await openKv(path);
  const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
  const lock = new Lock({ storage, name: "hand-over" });
  const waiter = new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--no-check", "--unstable-kv", import.meta.filename!, "--waiter", path],
    stdin: "piped",
    stdout: "piped",
  }).spawn();
  const writer = waiter.stdin.getWriter();
  const lines = linesOf(waiter.stdout);
  const hear = async (): Promise<string> => (await lines.next()).value as string;
  const delays: number[] = [];
  const cpus: number[] = [];
  for (let i = 0; i < HAND_OVERS; i++) {
    const lease = await lock.acquire();
    await writer.write(new TextEncoder().encode("wait\n"));
    if (await hear() !== "waiting") throw new Error("The waiter does not wait");
    await pause(1200 + 100 * Math.random());
    const releasedAt = Date.now();
    await lease.release();
    const taken: Taken = JSON.parse(await hear());
    delays.push(taken.at - releasedAt);
    cpus.push(taken.cpu);
  }
  await writer.close();
  const readerCpu = Number(await hear());
  await lines.next();
  await waiter.status;
  kv.close();
  return { handOverMs: median(delays), waiterCpu: median(cpus), readerCpu };
}

/** The other process: waits for the lock when it is told to, and gives it back at once. */
async function runWaiter(path: string): Promise<void> {
  const kv = await openKv(path);
  const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
  const lock = new Lock({ storage, name: "hand-over" });
  for await (const _ of linesOf(Deno.stdin.readable)) {
    const before = process.cpuUsage();
    const startMs = performance.now();
    console.log("waiting");
    const lease = await lock.acquire();
    const at = Date.now();
    const { user, system } = process.cpuUsage(before);
    await lease.release();
    const taken: Taken = { at, cpu: (user + system) / 1000 / (performance.now() - startMs) };
    console.log(JSON.stringify(taken));
  }
  const before = process.cpuUsage();
  const startMs = performance.now();
  while (performance.now() - startMs < READER_MS) {
    // What a waiter sleeps in the long run: 25 to 50 ms.
    await pause(25 + 25 * Math.random());
    await kv.get(["holdfast", "lock", "hand-over"]);
  }
  const { user, system } = process.cpuUsage(before);
  console.log((user + system) / 1000 / (performance.now() - startMs));
  kv.close();
}

const { values } = parseArgs({
  options: {
    waiter: { type: "string" },
    json: { type: "boolean", default: false },
    check: { type: "boolean", default: false },
  },
});
if (values.waiter !== undefined) {
  await runWaiter(values.waiter);
} else {
  const folder = await Deno.makeTempDir();
  const cycle = await measureCycle(`${folder}/kv`);
  const handOver = await measureHandOver(`${folder}/kv`);
  await Deno.remove(folder, { recursive: true });
  const result = { ...cycle, ...handOver };
  if (values.json) console.log(JSON.stringify(result));
  else {
    const ms = (value: number): string => `${value.toFixed(3)} ms`;
    const percent = (part: number): string => `${(100 * part).toFixed(2)} %`;
    console.log(`Deno KV on a local file
  acquire and release           ${ms(cycle.cycleMs)}
  two bare commits              ${ms(cycle.bareMs)}
  ratio                         ${cycle.cycleRatio.toFixed(2)}  (at most ${LIMITS.cycleRatio})
  two commits that write alike  ${ms(cycle.alikeMs)}
  ratio                         ${cycle.alikeRatio.toFixed(2)}
  release to grant elsewhere    ${handOver.handOverMs} ms median  (at most ${LIMITS.handOverMs} ms)
  a waiter's use of a core      ${percent(handOver.waiterCpu)}  (at most ${
      percent(LIMITS.waiterCpu)
    })
  a loop that reads as often    ${percent(handOver.readerCpu)}`);
  }
  const isWithin = (Object.keys(LIMITS) as (keyof typeof LIMITS)[])
    .every((key) => result[key] <= LIMITS[key]);
  if (values.check && !isWithin) Deno.exit(1);
}
