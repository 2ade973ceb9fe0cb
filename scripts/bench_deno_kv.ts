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

const BATCHES = 40;
const CYCLES = 50;
const HAND_OVERS = 40;

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

/** One of two commits as bare as they can be: what a lock needs to change, and to check. */
async function bareCommit(kv: Deno.Kv, key: Deno.KvKey, value: Uint8Array): Promise<void> {
  const { versionstamp } = bare;
  const result = await kv.atomic().check({ key, versionstamp }).set(key, value).commit();
  if (!result.ok) throw new Error("A bare commit failed");
  bare.versionstamp = result.versionstamp;
}
const bare: { versionstamp: string | null } = { versionstamp: null };

/** In turns, so that whatever else the machine does meets both. */
async function measureCycle(
  path: string,
): Promise<{ cycleMs: number; bareMs: number; ratio: number }> {
  const kv = await openKv(path);
  const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
  const lock = new Lock({ storage, name: "cycle" });
  const value = new Uint8Array(180);
  const cycles: number[] = [];
  const bares: number[] = [];
  for (let batch = -3; batch < BATCHES; batch++) {
    const startMs = performance.now();
    for (let i = 0; i < CYCLES; i++) await (await lock.acquire()).release();
    const middleMs = performance.now();
    for (let i = 0; i < 2 * CYCLES; i++) await bareCommit(kv, ["bare"], value);
    const endMs = performance.now();
    if (batch < 0) continue;
    cycles.push((middleMs - startMs) / CYCLES);
    bares.push((endMs - middleMs) / CYCLES);
  }
  kv.close();
  const ratio = median(cycles.map((ms, i) => ms / bares[i]!));
  return { cycleMs: median(cycles), bareMs: median(bares), ratio };
}

/** What the other process reports after each grant. */
interface Taken {
  /** When it had the lock. */
  readonly at: number;
  /** The part of a core that it used while it waited. */
  readonly cpu: number;
}

async function measureHandOver(path: string): Promise<{ handOverMs: number; waiterCpu: number }> {
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
    await pause(600 + 200 * Math.random());
    const releasedAt = Date.now();
    await lease.release();
    const taken: Taken = JSON.parse(await hear());
    delays.push(taken.at - releasedAt);
    cpus.push(taken.cpu);
  }
  await writer.close();
  await lines.next();
  await waiter.status;
  kv.close();
  return { handOverMs: median(delays), waiterCpu: median(cpus) };
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
  const { cycleMs, bareMs, ratio } = await measureCycle(`${folder}/kv`);
  const { handOverMs, waiterCpu } = await measureHandOver(`${folder}/kv`);
  await Deno.remove(folder, { recursive: true });
  const result = { cycleMs, bareMs, cycleRatio: ratio, handOverMs, waiterCpu };
  if (values.json) console.log(JSON.stringify(result));
  else {
    const percent = (part: number): string => `${(100 * part).toFixed(2)} %`;
    console.log(`Deno KV on a local file
  acquire and release          ${cycleMs.toFixed(3)} ms
  two bare commits             ${bareMs.toFixed(3)} ms
  ratio                        ${ratio.toFixed(2)}  (at most ${LIMITS.cycleRatio})
  release to grant elsewhere   ${handOverMs} ms median  (at most ${LIMITS.handOverMs} ms)
  a waiter's use of a core     ${percent(waiterCpu)}  (at most ${percent(LIMITS.waiterCpu)})`);
  }
  const isWithin = (Object.keys(LIMITS) as (keyof typeof LIMITS)[])
    .every((key) => result[key] <= LIMITS[key]);
  if (values.check && !isWithin) Deno.exit(1);
}
