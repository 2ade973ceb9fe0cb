/**
 * Bundles tests, which are TypeScript with the imports of this repository, for runtimes that know neither.
 *
 * @module
 */
import * as esbuild from "esbuild";

/** Imports by name, as this repository's `deno.json` has them. */
const ALIAS = {
  "@std/assert": "deno-std/assert/mod.js",
  "@holdfast/lock/testing": "./src/testing/mod.ts",
  "@holdfast/lock/upstash": "./src/storage/upstash.ts",
  "@holdfast/lock": "./mod.ts",
};

/** Packages with native parts or of modules that only Node can load: found beside the bundle. */
const EXTERNAL = ["node:test", "@deno/kv", "ioredis", "redis", "bun", "bun:*"];

/**
 * Bundles modules into one file.
 *
 * @param source a module that imports them
 * @param outfile in a folder of `node_modules`, from which what stays outside is found
 * @param options `platform` and `target` of the runtime
 */
export async function bundle(
  source: string,
  outfile: string,
  options: esbuild.BuildOptions,
): Promise<void> {
  await esbuild.build({
    stdin: { contents: source, resolveDir: Deno.cwd(), loader: "ts", sourcefile: "entry.ts" },
    bundle: true,
    format: "esm",
    outfile,
    alias: ALIAS,
    external: EXTERNAL,
    logLevel: "error",
    ...options,
  });
}

/** Whether a bundle has `await using` as it was written, and not lowered. */
export async function hasAwaitUsing(file: string): Promise<boolean> {
  return /^\s*await using /m.test(await Deno.readTextFile(file));
}
