/**
 * Runs every benchmark, and writes tables, figures and plots: `deno task bench [--quick] [--only PARTS] [--out FOLDER]`.
 *
 * `results.json` and `results.md` go into `bench/`, plots into `bench/out/`; all of them into FOLDER if one is
 * given. PARTS is a list like `redis,growth`.
 *
 * @module
 */
import * as esbuild from "esbuild";
import process from "node:process";
import { parseArgs } from "node:util";
import { buildBundles } from "../build.ts";
import { measureColdStart } from "./cold_start.ts";
import { growthPlots, growthTables, measureGrowth } from "./growth.ts";
import { peerPlots, type PeerTables, registerPlots, type RegisterTables } from "./result_plots.ts";
import { tableOf } from "./report.ts";

/** What one benchmark came to. */
interface Part {
  readonly figures: unknown;
  /** Tables in Markdown. */
  readonly markdown: string;
  /** Plots by file name. */
  readonly plots?: Readonly<Record<string, string>>;
}

/** The peers are no dependencies: they stay out of the lock file and of `node_modules`. */
const PEER_FLAGS = ["-A", "--no-check", "--no-lock", "--node-modules-dir=none"];

const { values } = parseArgs({
  args: Deno.args,
  options: {
    quick: { type: "boolean", default: false },
    only: { type: "string" },
    out: { type: "string" },
  },
});
const quick = values.quick ? ["--quick"] : [];

/** Runs a script as a process of its own; what it prints goes on, and into the result. */
async function run(
  flags: readonly string[],
  script: string,
  args: readonly string[],
): Promise<string> {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", ...flags, `scripts/${script}`, ...args],
    stdout: "piped",
    stderr: "inherit",
  }).spawn();
  let printed = "";
  for await (const text of child.stdout.pipeThrough(new TextDecoderStream())) {
    printed += text;
    process.stdout.write(text);
  }
  const { success } = await child.status;
  if (!success) throw new Error(`Cannot go on as ${script} failed`);
  return printed;
}

/** Runs a script that prints its tables, and writes its figures with `--out`. */
async function runTables(flags: readonly string[], script: string): Promise<Part> {
  const file = await Deno.makeTempFile();
  try {
    const markdown = await run(flags, script, [...quick, "--out", file]);
    return { figures: JSON.parse(await Deno.readTextFile(file)), markdown };
  } finally {
    await Deno.remove(file);
  }
}

const PARTS: Readonly<Record<string, () => Promise<Part>>> = {
  async redis() {
    const part = await runTables(PEER_FLAGS, "bench/redis.ts");
    return { ...part, plots: peerPlots(part.figures as PeerTables) };
  },
  async registers() {
    const part = await runTables(["-A", "--no-check"], "bench/registers.ts");
    return { ...part, plots: registerPlots(part.figures as RegisterTables) };
  },
  async deno_kv() {
    const printed = await run(["-A", "--no-check"], "bench_deno_kv.ts", ["--json"]);
    const figures = JSON.parse(printed) as Record<string, number>;
    const rows = Object.entries(figures).map(([what, value]) => [what, value.toFixed(3)]);
    return { figures, markdown: tableOf("Deno KV on a local file", ["what", "value"], rows) };
  },
  async growth() {
    const figures = await measureGrowth(values.quick);
    return { figures, markdown: growthTables(figures), plots: growthPlots(figures) };
  },
  async sizes() {
    const figures = await buildBundles();
    await esbuild.stop();
    const rows = figures.map(({ file, minified, gzip, adds }) => [file, minified, gzip, adds]);
    const head = ["file", "minified", "with gzip", "adds to a program with the core"];
    return { figures, markdown: tableOf("Sizes, bytes", head, rows) };
  },
  async cold_start() {
    await buildBundles();
    await esbuild.stop();
    const figures = await measureColdStart(values.quick ? 10 : 40);
    const rows = figures.map(({ what, ...times }) => [
      what,
      times.ms.toFixed(1),
      times.moreMs.toFixed(1),
      times.moreAtBestMs.toFixed(1),
    ]);
    const head = [
      "process",
      "start to end, ms",
      "more than an empty module, ms",
      "the same at best, ms",
    ];
    return { figures, markdown: tableOf("Cold start", head, rows) };
  },
};

Deno.chdir(new URL("../..", import.meta.url));
const chosen = values.only?.split(",") ?? Object.keys(PARTS);
const unknown = chosen.find((name) => !(name in PARTS));
if (unknown !== undefined) {
  console.error(`Cannot run "${unknown}" as there are only ${Object.keys(PARTS).join(", ")}`);
  Deno.exit(2);
}

const folders = values.out
  ? { results: values.out, plots: values.out }
  : { results: "bench", plots: "bench/out" };
await Deno.mkdir(folders.plots, { recursive: true });
await Deno.mkdir(folders.results, { recursive: true });

const machine = `Deno ${Deno.version.deno}, ${navigator.hardwareConcurrency} cores, ` +
  `${Deno.build.os} ${Deno.build.arch}, load ${Deno.loadavg()[0]!.toFixed(1)} at the start, ` +
  `${new Date().toISOString().slice(0, 10)}${values.quick ? ", --quick" : ""}`;
const figures: Record<string, unknown> = { machine };
const tables = [`# Benchmark\n\n${machine}. Compare figures of one table only.`];
const plots: string[] = [];
let failed = false;
for (const name of chosen) {
  console.error(`\n${name} ...`);
  try {
    const part = await PARTS[name]!();
    figures[name] = part.figures;
    tables.push(part.markdown.trim());
    for (const [file, svg] of Object.entries(part.plots ?? {})) {
      await Deno.writeTextFile(`${folders.plots}/${file}`, svg);
      plots.push(file);
    }
  } catch (error) {
    // One that fails does not take the figures of the others with it.
    console.error(error);
    failed = true;
    tables.push(`### ${name}\n\nfailed: ${error instanceof Error ? error.message : error}`);
  }
  await Deno.writeTextFile(
    `${folders.results}/results.json`,
    JSON.stringify(figures, null, 2) + "\n",
  );
  await Deno.writeTextFile(`${folders.results}/results.md`, tables.join("\n\n") + "\n");
}
console.log(tables.join("\n\n"));
console.log(
  `\nFigures and tables are in ${folders.results}/, plots in ${folders.plots}/: ${plots.join(" ")}`,
);
Deno.exit(failed ? 1 : 0);
