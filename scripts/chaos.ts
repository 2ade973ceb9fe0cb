/**
 * Real processes under real faults: `deno task chaos`. Eight workers share one lock on each storage that can be
 * had here, while others kill and freeze them, cut and delay their connections and restart the server. What
 * they did is checked afterwards: see `chaos/verdict.ts` for what.
 *
 * Ends with status 1 if a promise was broken, with 2 for wrong arguments, and with 130 after Ctrl-C.
 *
 * @module
 */
import { parseArgs } from "node:util";
import { PRODUCTS } from "./chaos/products.ts";
import { drawRun, renderTable } from "./chaos/report.ts";
import { runChaos, type RunReport } from "./chaos/run.ts";
import type { Sabotage } from "./chaos/terms.ts";
import { ServiceUnavailable } from "./services.ts";

const USAGE = `Real processes under real faults, and a check of what they did.

Usage: deno task chaos [options]

  --storage NAME,...  which, by the beginning of their names [all that can be had]:
                      ${Object.keys(PRODUCTS).join(", ")}
  --for SECONDS       for how long there are faults, on each storage [8]
  --seed N            decides what is done, though not what comes of it [by chance]
  --out FOLDER        keeps histories (lines of JSON), results and timelines (SVG) there
  --json              print the results as JSON, and everything else to standard error
  --sabotage WHAT     no-lock: everybody with a lock of its own; no-fence: writes without. Must fail
  --help              print this
`;

interface Options {
  readonly storages: readonly string[];
  readonly forMs: number;
  readonly seed: number;
  readonly out: string | undefined;
  readonly json: boolean;
  readonly sabotage: Sabotage | undefined;
}

/** A wrong argument. */
class UsageError extends Error {}

function parse(args: string[]): Options {
  const { values } = parseArgs({
    args,
    options: {
      storage: { type: "string", default: "" },
      for: { type: "string", default: "8" },
      seed: { type: "string" },
      out: { type: "string" },
      json: { type: "boolean", default: false },
      sabotage: { type: "string" },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    console.log(USAGE);
    Deno.exit(0);
  }
  const { sabotage, json, out } = values;
  if (sabotage !== undefined && sabotage !== "no-lock" && sabotage !== "no-fence") {
    throw new UsageError(
      `Cannot use --sabotage as it must be no-lock or no-fence: current value is ${sabotage}`,
    );
  }
  const number = (name: "for" | "seed", value: string, max: number): number => {
    if (Number(value) > 0 && Number(value) <= max) return Number(value);
    throw new UsageError(
      `Cannot use --${name} as it must be a number up to ${max}: current value is ${value}`,
    );
  };
  const wanted = values.storage.split(",").map((name) => name.trim());
  const storages = Object.keys(PRODUCTS).filter((name) => wanted.some((w) => name.startsWith(w)));
  const unknown = wanted.find((w) => !storages.some((name) => name.startsWith(w)));
  if (unknown !== undefined) {
    throw new UsageError(`Cannot use --storage as there must be one: current value is ${unknown}`);
  }
  const chance = `${1 + Math.floor(Math.random() * 999_999)}`;
  return {
    storages,
    forMs: number("for", values.for, 3600) * 1000,
    seed: number("seed", values.seed ?? chance, 1e15),
    out,
    json,
    sabotage,
  };
}

async function keep(folder: string, name: string, report: RunReport): Promise<void> {
  await Deno.mkdir(folder, { recursive: true });
  const { verdict, trace, journal } = report;
  await Deno.writeTextFile(`${folder}/${name}.jsonl`, journal);
  await Deno.writeTextFile(`${folder}/${name}.json`, JSON.stringify(verdict, undefined, 2) + "\n");
  await Deno.writeTextFile(`${folder}/${name}.svg`, drawRun(verdict, trace));
}

/** Runs on each storage, one after the other. Returns whether all went well. */
async function run(options: Options, signal: AbortSignal): Promise<boolean> {
  const { storages, out, json, seed } = options;
  const reports: RunReport[] = [];
  let failures = 0;
  console.error(`Seed ${seed}`);
  for (const storage of storages) {
    try {
      const report = await runChaos(storage, { ...options, signal });
      reports.push(report);
      if (out) await keep(out, storage, report);
      console.error(`${storage}: ${report.verdict.violations.length === 0 ? "ok" : "FAILED"}`);
    } catch (error) {
      if (signal.aborted) throw error;
      if (error instanceof ServiceUnavailable) {
        console.error(`${storage}: left out: ${error.message}`);
      } else {
        failures++;
        console.error(`${storage}: the run itself failed:`, error);
      }
    }
  }
  const verdicts = reports.map(({ verdict }) => verdict);
  console.log(json ? JSON.stringify({ seed, verdicts }, undefined, 2) : renderTable(verdicts));
  if (verdicts.length === 0) console.error("No storage was put to the test");
  return verdicts.length > 0 && failures === 0 &&
    verdicts.every(({ violations }) => violations.length === 0);
}

const interrupted = new AbortController();
for (const name of ["SIGINT", "SIGTERM"] as const) {
  Deno.addSignalListener(name, () => interrupted.abort());
}
try {
  const isWell = await run(parse(Deno.args), interrupted.signal);
  Deno.exit(isWell ? 0 : 1);
} catch (error) {
  if (interrupted.signal.aborted) Deno.exit(130);
  if (
    !(error instanceof UsageError || (error as { code?: string }).code?.startsWith("ERR_PARSE"))
  ) {
    throw error;
  }
  console.error(`${(error as Error).message}\n\n${USAGE}`);
  Deno.exit(2);
}
