/**
 * A process that holds many leases, and what that costs: `holder.ts URL|memory LEASES SECONDS`, run with
 * `--v8-flags=--expose-gc`; prints a {@linkcode Held} as JSON.
 *
 * @module
 */
import process from "node:process";
import { type Lease, type LeaseStorage, Lock, MemoryStorage } from "../../mod.ts";
import { countedRedis } from "./redis_parts.ts";

/** What it costs to hold leases of 30 s. */
export interface Held {
  readonly leases: number;
  /** From the first request to the last grant, 256 at a time. */
  readonly acquireMs: number;
  /** Bytes of heap for each, after a collection. */
  readonly heapEach: number;
  /** Of the storage while they are held, per second. */
  readonly requestsPerSecond: number;
  /** Leases renewed per second. */
  readonly renewalsPerSecond: number;
  /** The part of a core that the process used meanwhile. */
  readonly cpu: number;
  /** How many were lost, which none should. */
  readonly lost: number;
}

interface Counted {
  readonly storage: LeaseStorage;
  requests(): number;
}

/** The memory storage, with its calls counted. */
function countedMemory(): Counted {
  const inner = new MemoryStorage();
  let count = 0;
  const storage: LeaseStorage = {
    pollMs: inner.pollMs,
    maxClockSkewMs: inner.maxClockSkewMs,
    wakesTickets: inner.wakesTickets,
    watch: inner.watch.bind(inner),
    execute: (name, command) => (count++, inner.execute(name, command)),
    executeAll: (entries) => (count++, inner.executeAll(entries)),
  };
  return { storage, requests: () => count };
}

function heapBytes(): number {
  const { gc } = globalThis as { gc?: () => void };
  if (!gc) throw new Error("Cannot measure the heap as gc() must be there: --v8-flags=--expose-gc");
  for (let i = 0; i < 3; i++) gc();
  return Deno.memoryUsage().heapUsed;
}

async function hold(where: string, count: number, seconds: number): Promise<Held> {
  const { storage, requests }: Counted = where === "memory" ? countedMemory() : countedRedis(where);
  let renewals = 0;
  const onEvent = ({ type }: { readonly type: string }) => void (type === "renewed" && renewals++);
  // The leases of an earlier process are not over yet.
  const run = crypto.randomUUID();
  const lockOf = (i: number) => new Lock({ storage, name: `${run}:${i}`, ttlMs: 30_000, onEvent });
  await (await lockOf(-1).acquire()).release();
  const before = heapBytes();
  const leases: Lease[] = [];
  const startMs = performance.now();
  for (let i = 0; i < count; i += 256) {
    const size = Math.min(256, count - i);
    leases.push(
      ...await Promise.all(Array.from({ length: size }, (_, j) => lockOf(i + j).acquire())),
    );
  }
  const acquireMs = performance.now() - startMs;
  for (const lease of leases) lease.hold();
  await new Promise((resolve) => setTimeout(resolve, 100));
  const heapEach = (heapBytes() - before) / count;
  const [requestsBefore, renewalsBefore] = [requests(), renewals];
  const cpuBefore = process.cpuUsage();
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const { user, system } = process.cpuUsage(cpuBefore);
  return {
    leases: count,
    acquireMs,
    heapEach,
    requestsPerSecond: (requests() - requestsBefore) / seconds,
    renewalsPerSecond: (renewals - renewalsBefore) / seconds,
    cpu: (user + system) / 1e6 / seconds,
    lost: leases.filter((lease) => !lease.isHeld()).length,
  };
}

/** Runs it in a process of its own. */
export async function measureHeld(where: string, count: number, seconds: number): Promise<Held> {
  const { stdout, success } = await new Deno.Command(Deno.execPath(), {
    args: [
      "run",
      "-A",
      "--no-check",
      "--v8-flags=--expose-gc",
      import.meta.filename!,
      where,
      `${count}`,
      `${seconds}`,
    ],
    stderr: "inherit",
  }).output();
  if (!success) throw new Error("Cannot measure held leases as the process failed");
  return JSON.parse(new TextDecoder().decode(stdout));
}

if (import.meta.main) {
  const [where, count, seconds] = Deno.args as [string, string, string];
  console.log(JSON.stringify(await hold(where, Number(count), Number(seconds))));
  Deno.exit(0);
}
