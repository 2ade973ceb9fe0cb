/**
 * A Worker for the tests: the contract suite, one test a request; a request that ends while it holds the
 * gate of a lock that another one then acquires; and requests that leave work behind their response.
 */
import { Redis } from "@upstash/redis/cloudflare";
import { Lock, MemoryStorage, type WaitUntil } from "../../mod.ts";
import { UpstashStorage } from "../../src/storage/upstash.ts";
import { awaitUsingTests } from "./await_using.ts";
import { count, type Ended, ended, runAt } from "./contract_runner.ts";

/** Shared by the requests of this isolate, like the gate in front of it. */
const storage = new MemoryStorage();

/** The lock whose gate requests of this isolate share. */
function sharedLock(): Lock {
  return new Lock({ storage, name: "gate", ttlMs: 2000, autoRenew: "own-timer" });
}

/** What requests are answered by, by their path. */
const routes: Readonly<
  Record<string, (params: URLSearchParams, waitUntil: WaitUntil) => Promise<unknown>>
> = {
  "/count": () => Promise.resolve(count),
  "/test": (params) => {
    const [url, token] = [params.get("url")!, params.get("token")!];
    return runAt(Number(params.get("test")), { url, token, notify: false });
  },
  "/await-using": async (): Promise<Ended[]> => await Promise.all(awaitUsingTests.map(ended)),
  "/hold": async () => (await sharedLock().acquire()).fencingToken,
  "/acquire": async () => {
    const lease = await sharedLock().acquire({ timeoutMs: 10_000 });
    await lease.release();
    return lease.fencingToken;
  },
  // Gives up on a lock that is granted all the same: what takes it back goes on after the response.
  "/give-up": async (params, waitUntil) => {
    const redis = new Redis({
      url: params.get("url")!,
      token: params.get("token")!,
      retry: { retries: 0 },
    });
    const storage = new UpstashStorage(redis, { notify: false });
    const lock = new Lock({ storage, name: "given up", autoRenew: "own-timer", waitUntil });
    return await lock.acquire({ signal: AbortSignal.timeout(300) }).then(
      () => "acquired",
      (error) => (error as Error).name,
    );
  },
};

export default {
  async fetch(
    request: Request,
    _env: unknown,
    ctx: { waitUntil: WaitUntil },
  ): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    const waitUntil: WaitUntil = (work) => ctx.waitUntil(work);
    return Response.json(await routes[pathname]!(searchParams, waitUntil));
  },
};
