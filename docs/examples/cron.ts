/**
 * The same schedule on many machines, and one run per tick: whoever comes first runs, the others skip.
 * `minHoldMs` keeps the lock taken while the other machines' clocks catch up, however short the work was.
 */
import { type LeaseStorage, Lock } from "@holdfast/lock";

/** One tick of the nightly report; resolves to whether this machine ran it. */
export async function tick(storage: LeaseStorage, report: () => Promise<void>): Promise<boolean> {
  const lock = new Lock({ storage, name: "cron:report", ttlMs: 60_000, minHoldMs: 30_000 });
  const { acquired } = await lock.tryWith(async (lease) => {
    lease.assertHeld();
    await report();
  });
  return acquired;
}
