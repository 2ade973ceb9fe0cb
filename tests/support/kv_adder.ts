/**
 * One process that adds to a sum in a Deno KV file, under a lock, with `@deno/kv`: a program for Node, Bun and
 * Deno (where that package hands over to the runtime's own Deno KV). Prints its fencing tokens as JSON.
 *
 * Arguments: path of the file, how often.
 *
 * @module
 */
import { openKv } from "@deno/kv";
import process from "node:process";
import { Lock } from "../../mod.ts";
import { DenoKvStorage, fencedCommit } from "../../src/storage/deno_kv.ts";

const [path, times] = process.argv.slice(2);

/** Everything that is stored is bytes. */
function refuse(): never {
  throw new Error("A value was stored that is not bytes");
}

const kv = await openKv(path, { encodeV8: refuse, decodeV8: refuse });
const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
const lock = new Lock({ storage, name: "sum", label: process.title });
const fences: number[] = [];
for (let i = 0; i < Number(times); i++) {
  await lock.with(async (lease) => {
    fences.push(lease.fencingToken);
    const { value } = await kv.get<Uint8Array>(["sum"]);
    const sum = value ? Number(new TextDecoder().decode(value)) : 0;
    await new Promise((resolve) => setTimeout(resolve, 2));
    const next = new TextEncoder().encode(`${sum + 1}`);
    const { ok } = await fencedCommit(kv, lease, (op) => op.set(["sum"], next));
    if (!ok) throw new Error("A commit without checks of its own failed");
  });
}
kv.close();
console.log(JSON.stringify(fences));
