/**
 * A Vercel function over Upstash. What goes on after the response (a compensating release) is given to
 * `waitUntil`, so that the platform does not freeze it.
 */
import { type LeaseStorage, Lock, type WaitUntil } from "@holdfast/lock";

/**
 * Makes the handler. On Vercel: `waitUntil` from `@vercel/functions`, and
 * `new UpstashStorage(Redis.fromEnv())`.
 */
export function handlerOf(storage: LeaseStorage, waitUntil: WaitUntil) {
  const lock = new Lock({
    storage,
    name: "sync-orders",
    ttlMs: 15_000,
    maxHoldMs: 250_000,
    waitUntil,
  });
  return async function GET(request: Request): Promise<Response> {
    const result = await lock.tryWith(async (lease) => {
      await Promise.resolve(); // the work, giving lease.fencingToken along with each write
      return `synced under fence ${lease.fencingToken}`;
    }, { signal: request.signal });
    return result.acquired
      ? new Response(result.value)
      : new Response("another one is syncing", { status: 409 });
  };
}
