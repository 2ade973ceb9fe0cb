/**
 * A Cloudflare Worker with Upstash. Timers and promises of a Worker end with their request: a lease renews
 * on a timer of its own request (`"own-timer"`), and what goes on after the response is given to
 * `ctx.waitUntil`.
 */
import { Lock } from "@holdfast/lock";
import { UpstashStorage } from "@holdfast/lock/upstash";
import { Redis } from "@upstash/redis/cloudflare";

/** The bindings of the Worker. */
export interface Env {
  readonly UPSTASH_REDIS_REST_URL: string;
  readonly UPSTASH_REDIS_REST_TOKEN: string;
}

/** The part of the platform's context that is used. */
interface Context {
  waitUntil(work: Promise<unknown>): void;
}

export default {
  async fetch(_request: Request, env: Env, ctx: Context): Promise<Response> {
    const redis = new Redis({
      url: env.UPSTASH_REDIS_REST_URL,
      token: env.UPSTASH_REDIS_REST_TOKEN,
      retry: { retries: 0 },
      signal: () => AbortSignal.timeout(5000),
    });
    const lock = new Lock({
      storage: new UpstashStorage(redis, { notify: false }),
      name: "nightly-import",
      ttlMs: 20_000,
      autoRenew: "own-timer",
      waitUntil: (work) => ctx.waitUntil(work),
    });
    const result = await lock.tryWith(async (lease) => {
      await Promise.resolve(); // the work, giving lease.fencingToken along with each write
      return `imported under fence ${lease.fencingToken}`;
    });
    return result.acquired
      ? new Response(result.value)
      : new Response("being imported", { status: 409 });
  },
};
