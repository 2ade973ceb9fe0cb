/** Gives every held lease back on SIGTERM, so that nobody waits for a ttl after a deployment. */
import type { Lease } from "@holdfast/lock";
import process from "node:process";

const held = new Set<Lease>();

/** Remembers a lease until it is released or lost. */
export function releasedOnShutdown(lease: Lease): Lease {
  held.add(lease);
  lease.signal.addEventListener("abort", () => held.delete(lease), { once: true });
  return lease;
}

process.once("SIGTERM", async () => {
  await Promise.allSettled([...held].map((lease) => lease.release()));
  process.exit(0);
});
