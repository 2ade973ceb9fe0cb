/** A Deno Deploy handler over Deno KV: one rebuild of the cache at a time, whoever asks. */
import { Lock } from "@holdfast/lock";
import { DenoKvStorage, fencedCommit, type KvClient } from "@holdfast/lock/deno-kv";

/** Makes the handler. On Deploy: `Deno.serve(handlerOf(await Deno.openKv()))`. */
export function handlerOf(kv: KvClient): (request: Request) => Promise<Response> {
  const storage = new DenoKvStorage(kv, { location: "remote" });
  const lock = new Lock({ storage, name: "rebuild", ttlMs: 20_000 });
  return async () => {
    const result = await lock.tryWith(async (lease) => {
      const pages = `rebuilt under fence ${lease.fencingToken}`;
      await fencedCommit(kv, lease, (op) => op.set(["pages"], pages));
      return pages;
    });
    return result.acquired ? new Response(result.value) : new Response("already rebuilding", {
      status: 409,
      headers: { "retry-after": String(Math.ceil(result.retryAfterMs / 1000)) },
    });
  };
}
