/**
 * Requests of an uncontended cycle, counted at the client.
 *
 * @module
 */
import { type LeaseStorage, Lock } from "../../mod.ts";

/** Requests of an acquire, a renewal and a release. */
export type CycleRequests = readonly [acquire: number, renew: number, release: number];

/**
 * Runs 20 cycles of a new lock.
 *
 * @param storage a storage
 * @param requests how many requests it has sent so far
 * @returns those of the first cycle, and the most of any later one
 */
export async function countCycle(
  storage: LeaseStorage,
  requests: () => number,
): Promise<{ first: CycleRequests; later: CycleRequests }> {
  const lock = new Lock({ storage, name: crypto.randomUUID(), ttlMs: 30_000 });
  const since = async <T>(work: () => Promise<T>): Promise<[number, T]> => {
    const before = requests();
    const result = await work();
    return [requests() - before, result];
  };
  const cycles: CycleRequests[] = [];
  for (let i = 0; i < 20; i++) {
    const [acquire, lease] = await since(() => lock.acquire());
    const [renew] = await since(() => lease.renew());
    const [release] = await since(() => lease.release());
    cycles.push([acquire, renew, release]);
  }
  const [first, ...rest] = cycles;
  const most = (i: 0 | 1 | 2): number => Math.max(...rest.map((counts) => counts[i]));
  return { first: first!, later: [most(0), most(1), most(2)] };
}
