/**
 * The contract suite on one storage, for Deno, Bun and Node: which one is in `HOLDFAST_SUITE`, and where its
 * server is in `HOLDFAST_URL` (and `HOLDFAST_TOKEN`).
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { DenoKvStorage } from "../../src/storage/deno_kv.ts";
import { type ContractOptions, testLeaseStorage } from "../../src/testing/mod.ts";
import { denoKvSubject, type Kv } from "../support/deno_kv_subject.ts";
import { redisSubject } from "../support/redis_clients.ts";
import { sqliteSubject } from "../support/sqlite_subject.ts";
import { upstashSubject } from "../support/upstash_subject.ts";

const { HOLDFAST_SUITE: suite = "", HOLDFAST_URL: url = "", HOLDFAST_TOKEN: token = "" } =
  process.env;

/** Everything that is stored is bytes: nothing needs the format of V8, which Bun has not. */
function refuse(): never {
  throw new Error("A value was stored that is not bytes");
}

/** Opens a Deno KV: the runtime's own, or with `@deno/kv`. */
async function openKv(path: string): Promise<Kv> {
  if ("Deno" in globalThis) return await Deno.openKv(path);
  const kv = await import("@deno/kv");
  return await kv.openKv(path, { encodeV8: refuse, decodeV8: refuse }) as Kv;
}

/** Two handles on a file of its own, or on a server. */
async function openKvs(place: string): Promise<ReturnType<typeof denoKvSubject>> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-kv-"));
  const path = place === "" ? join(folder, "kv") : place;
  const [a, b] = [await openKv(path), await openKv(path)];
  const options = { maxClockSkewMs: 0, location: place === "" ? "local" : "remote" } as const;
  const clients = [new DenoKvStorage(a, options), new DenoKvStorage(b, options)] as const;
  return denoKvSubject(b, clients, () => {
    for (const kv of [a, b]) kv.close();
    rmSync(folder, { recursive: true });
    return Promise.resolve();
  });
}

const setups: Readonly<Record<string, ContractOptions["setup"]>> = {
  "upstash": async () => {
    const { Redis } = await import("@upstash/redis");
    return upstashSubject(() => new Redis({ url, token, automaticDeserialization: false }));
  },
  "deno kv": () => openKvs(""),
  "deno kv remote": () => openKvs(url),
  "sqlite": () => sqliteSubject("wal"),
  "ioredis": () => redisSubject("ioredis", url, "duplicate"),
  "node-redis": () => redisSubject("node-redis", url, "duplicate"),
  "bun redis": () => redisSubject("bun", url, "duplicate"),
};

await testLeaseStorage({
  name: suite,
  setup: setups[suite]!,
});
