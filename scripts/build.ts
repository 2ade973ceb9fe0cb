/**
 * Builds what is published besides the source: `dist/holdfast.js` (core and memory, browser-safe), one
 * self-contained ESM file per adapter, and with `--npm` the npm package. Prints the sizes, and fails when
 * one is over its limit or when anything under `mod.ts` reaches for a Node, Deno or Bun API.
 *
 * `deno task build [--npm] [--out FOLDER]`
 */
import * as esbuild from "esbuild";
import { gzipSync } from "node:zlib";
import { parseArgs } from "node:util";
import config from "../deno.json" with { type: "json" };

/** The most bytes, minified and with gzip, of the core, and of each adapter on top of it. */
const SIZE_BUDGET = { core: 6000, adapter: 3000 };

/** Bundles that do not keep their budget, and the most bytes that each may have until it does. */
const SIZE_LIMIT: Readonly<Record<string, number>> = {
  "holdfast.js": 10_300,
  "deno-kv.js": 4250,
  "redis.js": 8100,
  "upstash.js": 7750,
  "dynamodb.js": 4750,
  "mongodb.js": 4150,
  "postgres.js": 7550,
};

/** Entry points that are no adapter: for tests and terminals, where size does not matter. */
const OTHERS = ["./testing", "./cli"];

/** Globals that a browser does not have. */
const FOREIGN = /\b(Deno|Bun|process|Buffer|require|__dirname)\s*[.([]/;

/** The size of one bundle. */
export interface Size {
  /** The name of the file. */
  readonly file: string;
  /** Bytes, minified. */
  readonly minified: number;
  /** Bytes, minified and with gzip. */
  readonly gzip: number;
  /** Bytes with gzip that it adds to a program that has the core; for the core all of it. */
  readonly adds: number;
  /** The budget of `adds`. */
  readonly budget: number;
  /** The most that `adds` may be: the budget, or what stands for it until it is kept. */
  readonly limit: number;
}

/** Bundles one module. */
async function bundle(source: string, outfile?: string): Promise<Uint8Array> {
  const result = await esbuild.build({
    stdin: { contents: source, resolveDir: Deno.cwd(), sourcefile: "entry.ts", loader: "ts" },
    bundle: true,
    format: "esm",
    target: "es2022",
    platform: "neutral",
    minify: true,
    legalComments: "none",
    write: outfile !== undefined,
    ...outfile === undefined ? {} : { outfile, sourcemap: "linked" as const },
    logLevel: "error",
  });
  return outfile === undefined ? result.outputFiles![0]!.contents : await Deno.readFile(outfile);
}

/**
 * Writes all bundles.
 *
 * @param out the folder for them
 */
export async function buildBundles(out = "dist"): Promise<Size[]> {
  await Deno.mkdir(out, { recursive: true });
  const core = await bundle(`export * from "./mod.ts";`, `${out}/holdfast.js`);
  const foreign = FOREIGN.exec(new TextDecoder().decode(core));
  if (foreign) throw new Error(`Cannot run in a browser as mod.ts reaches for ${foreign[1]}`);
  const coreGzip = gzipSync(core, { level: 9 }).length;
  const sizes: Size[] = [
    {
      file: "holdfast.js",
      minified: core.length,
      gzip: coreGzip,
      adds: coreGzip,
      ...limits("holdfast.js", SIZE_BUDGET.core),
    },
  ];
  for (const [entry, path] of Object.entries(config.exports)) {
    if (entry === "." || OTHERS.includes(entry)) continue;
    const file = `${entry.slice(2)}.js`;
    const alone = await bundle(`export * from "${path}";`, `${out}/${file}`);
    const both = await bundle(`export * from "./mod.ts"; export * from "${path}";`);
    sizes.push({
      file,
      minified: alone.length,
      gzip: gzipSync(alone, { level: 9 }).length,
      adds: gzipSync(both, { level: 9 }).length - coreGzip,
      ...limits(file, SIZE_BUDGET.adapter),
    });
  }
  return sizes;
}

function limits(file: string, budget: number): Pick<Size, "budget" | "limit"> {
  return { budget, limit: SIZE_LIMIT[file] ?? budget };
}

/** Prints a table of sizes. */
export function printSizes(sizes: readonly Size[]): void {
  console.log("file               minified     gzip     adds   budget    limit");
  for (const { file, minified, gzip, adds, budget, limit } of sizes) {
    const numbers = [minified, gzip, adds, budget, limit];
    const remark = adds > limit ? "  OVER" : adds > budget ? "  over budget" : "";
    console.log(file.padEnd(18), numbers.map((n) => String(n).padStart(8)).join(" ") + remark);
  }
}

/**
 * Makes the npm package from what `deno pack` generates: adds the command line as a `bin`, which a
 * `deno.json` cannot name.
 *
 * @param out the folder for the tarball
 * @returns the path of the tarball
 */
export async function buildNpmPackage(out = "dist"): Promise<string> {
  const folder = await Deno.makeTempDir();
  try {
    await run(Deno.execPath(), ["pack", "--allow-dirty", "--output", `${folder}/deno.tgz`]);
    await run("tar", ["xzf", `${folder}/deno.tgz`, "-C", folder]);
    const path = `${folder}/package/package.json`;
    const manifest = JSON.parse(await Deno.readTextFile(path));
    manifest.bin = { holdfast: "./bin/holdfast.js" };
    manifest.description =
      "Distributed leases with fencing tokens, over the storage you already have";
    await Deno.writeTextFile(path, JSON.stringify(manifest, null, 2) + "\n");
    await Deno.mkdir(`${folder}/package/bin`);
    const main = manifest.exports["./cli"].default ?? manifest.exports["./cli"];
    await Deno.writeTextFile(
      `${folder}/package/bin/holdfast.js`,
      `#!/usr/bin/env node\nimport process from "node:process";\nimport { main } from "../${
        main.replace(/^\.\//, "")
      }";\nprocess.exit(await main());\n`,
    );
    const name = config.name.replace("@", "").replace("/", "-");
    const tarball = `${out}/${name}-${config.version}.tgz`;
    await Deno.mkdir(out, { recursive: true });
    await run("tar", ["czf", tarball, "-C", folder, "package"]);
    return tarball;
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

async function run(command: string, args: string[]): Promise<void> {
  const { success, stderr } = await new Deno.Command(command, { args }).output();
  if (!success) throw new Error(`Cannot run ${command}: ${new TextDecoder().decode(stderr)}`);
}

if (import.meta.main) {
  const { values } = parseArgs({
    args: Deno.args,
    options: { npm: { type: "boolean" }, out: { type: "string" } },
  });
  const sizes = await buildBundles(values.out);
  await esbuild.stop();
  printSizes(sizes);
  if (values.npm) console.log(await buildNpmPackage(values.out));
  if (sizes.some(({ adds, limit }) => adds > limit)) Deno.exit(1);
}
