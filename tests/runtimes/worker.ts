/**
 * A Worker for the tests: the contract suite, one test a request, and a request that ends while it holds the
 * gate of a lock that another one then acquires.
 */
import { Lock, MemoryStorage } from "../../mod.ts";
import { count, runAt } from "./contract_runner.ts";

/** Shared by the requests of this isolate, like the gate in front of it. */
const storage = new MemoryStorage();

export default {
  async fetch(request: Request): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/count") return Response.json(count);
    if (pathname === "/await-using") {
      const lock = new Lock({ storage: new MemoryStorage(), name: "scope" });
      {
        await using lease = await lock.acquire();
        if (!lease.isHeld()) return Response.json("not held");
      }
      return Response.json((await lock.inspect()).holders);
    }
    const ttlMs = 2000;
    const lock = new Lock({ storage, name: "gate", ttlMs, autoRenew: "own-timer" });
    if (pathname === "/hold") {
      const lease = await lock.acquire();
      return Response.json(lease.fencingToken);
    }
    if (pathname === "/acquire") {
      const lease = await lock.acquire({ timeoutMs: 10_000 });
      await lease.release();
      return Response.json(lease.fencingToken);
    }
    const url = searchParams.get("url")!;
    const token = searchParams.get("token")!;
    const index = Number(searchParams.get("test"));
    return Response.json(await runAt(index, { url, token, notify: false }));
  },
};
