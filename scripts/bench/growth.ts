/**
 * How cost grows with the leases that a process holds, and with the waiters in it.
 *
 * @module
 */
import { startRedis } from "../services.ts";
import { type Held, measureHeld } from "./holder.ts";
import { lines } from "./plot.ts";
import { type Row, tableOf } from "./report.ts";
import { measureWaiting, type Waiting } from "./waiters.ts";

/** All that was measured. */
export interface Growth {
  readonly memory: readonly Held[];
  readonly redis: readonly Held[];
  readonly waiting: readonly Waiting[];
}

/** Leases of 30 s are renewed every 10 s: one round of it. */
const HELD_SECONDS = 10;

/** Measures, each in a process of its own. */
export async function measureGrowth(isQuick: boolean): Promise<Growth> {
  const counts = isQuick ? [1, 100, 10_000] : [1, 10, 100, 1000, 10_000];
  await using server = await startRedis();
  const held = async (where: string): Promise<Held[]> => {
    const all: Held[] = [];
    for (const count of counts) all.push(await measureHeld(where, count, HELD_SECONDS));
    return all;
  };
  const waiting: Waiting[] = [];
  for (const count of isQuick ? [1, 100, 1000] : [1, 10, 100, 1000]) {
    waiting.push(await measureWaiting(server.url, count, isQuick ? 2 : 10));
  }
  return { memory: await held("memory"), redis: await held(server.url), waiting };
}

/** The tables. */
export function growthTables({ memory, redis, waiting }: Growth): string {
  const rowOf = (where: string, held: Held): Row => [
    where,
    held.leases,
    (held.acquireMs / held.leases).toFixed(3),
    Math.round(held.heapEach),
    held.renewalsPerSecond.toFixed(1),
    held.requestsPerSecond.toFixed(1),
    (held.cpu * 100).toFixed(2),
    held.lost,
  ];
  return [
    tableOf(
      "Held leases, ttl 30 s",
      [
        "storage",
        "leases",
        "acquire each, ms",
        "heap each, bytes",
        "renewals/s",
        "requests/s",
        "CPU, % of a core",
        "lost",
      ],
      [
        ...memory.map((held) => rowOf("memory", held)),
        ...redis.map((held) => rowOf("Redis", held)),
      ],
    ),
    tableOf(
      "Waiters in one process, Redis",
      ["waiters", "heap each, bytes", "requests/s", "CPU, % of a core", "grants/s once free"],
      waiting.map((one) => [
        one.waiters,
        Math.round(one.heapEach),
        one.requestsPerSecond.toFixed(2),
        (one.cpu * 100).toFixed(2),
        Math.round(one.grantsPerSecond),
      ]),
    ),
  ].join("\n");
}

/** The plots by file name. */
export function growthPlots({ memory, redis, waiting }: Growth): Record<string, string> {
  const curve = <T>(
    label: string,
    all: readonly T[],
    x: (one: T) => number,
    y: (one: T) => number,
  ) => ({
    label,
    points: all.map((one) => [x(one), y(one)] as const).filter(([, value]) => value > 0),
  });
  const leases = (held: Held) => held.leases;
  const waiters = (one: Waiting) => one.waiters;
  return {
    "renewals.svg": lines({
      title: "Renewals go together (Redis, ttl 30 s)",
      x: "leases held by one process",
      y: "per second",
    }, [
      curve("renewals", redis, leases, (held) => held.renewalsPerSecond),
      curve("requests", redis, leases, (held) => held.requestsPerSecond),
    ]),
    "held_cost.svg": lines({
      title: "What holding costs (ttl 30 s)",
      x: "leases held by one process",
      y: "% of a core",
    }, [
      curve("memory", memory, leases, (held) => held.cpu * 100),
      curve("Redis", redis, leases, (held) => held.cpu * 100),
    ]),
    "held_heap.svg": lines({
      title: "Heap of held leases",
      x: "leases held by one process",
      y: "bytes in all",
    }, [
      curve("memory", memory, leases, (held) => held.heapEach * held.leases),
      curve("Redis", redis, leases, (held) => held.heapEach * held.leases),
    ]),
    "waiters.svg": lines({
      title: "Waiters of one process on one lock (Redis)",
      x: "waiters",
      y: "heap in kB; requests and grants per second",
    }, [
      curve("heap, kB", waiting, waiters, (one) => one.heapEach * one.waiters / 1000),
      curve("requests/s", waiting, waiters, (one) => one.requestsPerSecond),
      curve("grants/s", waiting, waiters, (one) => one.grantsPerSecond),
    ]),
  };
}
