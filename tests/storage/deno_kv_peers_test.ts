/**
 * Deno KV between real processes, and between runtimes: Deno with its own Deno KV, Node and Bun with
 * `@deno/kv`, all on one file.
 */
import { assertEquals } from "@std/assert";
import * as esbuild from "esbuild";
import { Lock } from "../../mod.ts";
import { DenoKvStorage } from "../../src/storage/deno_kv.ts";

const ROOT = new URL("../../", import.meta.url).pathname;

const IS_BUN_HERE = await new Deno.Command("bun", { args: ["--version"] }).output()
  .then(({ success }) => success, () => false);

/** How each runtime runs a file. */
const RUNTIMES: Record<string, string[]> = {
  deno: [Deno.execPath(), "run", "-A", "--unstable-kv", "--no-check"],
  node: ["node"],
  bun: IS_BUN_HERE ? ["bun"] : ["npx", "-y", "bun@1.4.5"],
};

/** The program as one file, in a folder from which Node and Bun find `@deno/kv`. */
async function bundleAdder(folder: string): Promise<string> {
  const outfile = `${folder}/kv_adder.mjs`;
  await esbuild.build({
    entryPoints: [`${ROOT}tests/support/kv_adder.ts`],
    bundle: true,
    format: "esm",
    platform: "node",
    target: "node20",
    external: ["@deno/kv"],
    logLevel: "error",
    outfile,
  });
  await esbuild.stop();
  return outfile;
}

/** Runs the program in some runtimes at once, on one file. */
async function addTogether(runtimes: readonly string[], times: number): Promise<number[][]> {
  const folder = await Deno.makeTempDir({ dir: `${ROOT}node_modules`, prefix: ".holdfast-" });
  try {
    const path = `${folder}/kv`;
    const kv = await Deno.openKv(path);
    const program = await bundleAdder(folder);
    const outputs = await Promise.all(runtimes.map((runtime) => {
      const [command, ...args] = RUNTIMES[runtime]!;
      return new Deno.Command(command!, { args: [...args, program, path, `${times}`] }).output();
    }));
    const decode = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
    for (const { success, stderr } of outputs) assertEquals(success, true, decode(stderr));
    const { value } = await kv.get<Uint8Array>(["sum"]);
    assertEquals(decode(value!), `${runtimes.length * times}`, "the sum");
    const lock = new Lock({ storage: new DenoKvStorage(kv), name: "sum" });
    assertEquals((await lock.inspect()).holders, []);
    kv.close();
    return outputs.map(({ stdout }) => JSON.parse(decode(stdout)));
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

function assertFences(fences: number[][]): void {
  for (const mine of fences) {
    assertEquals(mine, mine.toSorted((a, b) => a - b), "fences rise in each process");
  }
  const all = fences.flat();
  assertEquals(new Set(all).size, all.length, "no fence was granted twice");
}

// covers: G1 G2 S5.14
Deno.test("four processes add to one sum under the lock, and no update is lost", async () => {
  assertFences(await addTogether(["deno", "deno", "deno", "deno"], 25));
});

// covers: G1 G2
Deno.test("Deno, Node and Bun share one file, and no update is lost", async () => {
  assertFences(await addTogether(["deno", "node", "bun"], 25));
});
