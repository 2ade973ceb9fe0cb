/** A leader among processes: one of them leads for as long as it can, then another. */
import type { Lease, Lock } from "@holdfast/lock";

/** Leads whenever this process can, until `signal` aborts. `lead` must stop when `lease.signal` aborts. */
export async function leaderLoop(
  lock: Lock,
  lead: (lease: Lease) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    const lease = await lock.acquire({ signal });
    lease.hold(); // as long as the process: a variable that is not read again may be collected
    await lead(lease).catch((error) => {
      if (!lease.signal.aborted) throw error;
    }).finally(() => lease.release());
  }
}
