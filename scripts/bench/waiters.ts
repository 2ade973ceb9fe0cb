/**
 * A process in which many wait for one lock, and what that costs: `waiters.ts URL WAITERS SECONDS`, run with
 * `--v8-flags=--expose-gc`; prints a {@linkcode Waiting} as JSON.
 *
 * @module
 */
import process from "node:process";
import { Lock } from "../../mod.ts";
import { countedRedis } from "./redis_parts.ts";

/** What it costs to wait. */
export interface Waiting {
  readonly waiters: number;
  /** Bytes of heap for each, after a collection. */
  readonly heapEach: number;
  /** Of all of them together while somebody else holds the lock, per second. */
  readonly requestsPerSecond: number;
  /** The part of a core that the process used meanwhile. */
  readonly cpu: number;
  /** Grants per second once the lock is free, each given back at once. */
  readonly grantsPerSecond: number;
}

function heapBytes(): number {
  const { gc } = globalThis as { gc?: () => void };
  if (!gc) throw new Error("Cannot measure the heap as gc() must be there: --v8-flags=--expose-gc");
  for (let i = 0; i < 3; i++) gc();
  return Deno.memoryUsage().heapUsed;
}

async function wait(url: string, waiters: number, seconds: number): Promise<Waiting> {
  const [other, mine] = [countedRedis(url), countedRedis(url)];
  const name = crypto.randomUUID();
  const lock = new Lock({ storage: mine.storage, name });
  await (await lock.acquire()).release();
  const held = await new Lock({ storage: other.storage, name }).acquire();
  const before = heapBytes();
  const working = Array.from({ length: waiters }, () => lock.with(() => {}));
  await new Promise((resolve) => setTimeout(resolve, 500));
  const heapEach = (heapBytes() - before) / waiters;
  const [requestsBefore, cpuBefore] = [mine.requests(), process.cpuUsage()];
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const { user, system } = process.cpuUsage(cpuBefore);
  const requestsPerSecond = (mine.requests() - requestsBefore) / seconds;
  const startMs = performance.now();
  await held.release();
  await Promise.all(working);
  const grantsPerSecond = waiters / (performance.now() - startMs) * 1000;
  const cpu = (user + system) / 1e6 / seconds;
  return { waiters, heapEach, requestsPerSecond, cpu, grantsPerSecond };
}

/** Runs it in a process of its own. */
export async function measureWaiting(
  url: string,
  waiters: number,
  seconds: number,
): Promise<Waiting> {
  const flags = ["-A", "--no-check", "--v8-flags=--expose-gc"];
  const { stdout, success } = await new Deno.Command(Deno.execPath(), {
    args: ["run", ...flags, import.meta.filename!, url, `${waiters}`, `${seconds}`],
    stderr: "inherit",
  }).output();
  if (!success) throw new Error("Cannot measure waiters as the process failed");
  return JSON.parse(new TextDecoder().decode(stdout));
}

if (import.meta.main) {
  const [url, waiters, seconds] = Deno.args as [string, string, string];
  console.log(JSON.stringify(await wait(url, Number(waiters), Number(seconds))));
  Deno.exit(0);
}
