/**
 * A workflow whose steps run in different processes, under one lease: a step ends by putting the baton into
 * the message for the next. Queues deliver twice; the second delivery finds the baton used.
 */
import type { Baton, Lock } from "@holdfast/lock";

/** The first step. */
export async function start(lock: Lock, send: (message: string) => Promise<void>): Promise<void> {
  const lease = await lock.acquire({ timeoutMs: 10_000 });
  const baton: Baton = lease.detach();
  await send(JSON.stringify({ order: 42, baton }));
}

/** The next step; resolves to whether it was this delivery that ran it. */
export async function next(
  lock: Lock,
  message: string,
  work: (order: number, fence: number) => Promise<void>,
): Promise<boolean> {
  const { order, baton } = JSON.parse(message);
  const lease = await lock.resume(baton);
  if (!lease) return false;
  try {
    await work(order, lease.fencingToken);
    return true;
  } finally {
    await lease.release();
  }
}
