/**
 * Searches for a run of the simulator that breaks a guarantee.
 *
 * ```text
 * deno task simulate --for 60s           runs new seeds for a minute, and prints what happened in them
 * deno task simulate --from 1 --runs 500 runs these seeds
 * deno task simulate --seed 7            runs one again, to the byte, and prints its trace and its hash
 * deno task simulate --scenario '{...}'  runs what a failure was made smaller to
 * ```
 *
 * Exits 1 if a guarantee was broken, after printing the seed and the shortest trace that was found.
 */
import { parseArgs } from "node:util";
import {
  type Failure,
  type Scenario,
  scenarioOf,
  shrink,
  simulate,
  type SimulationResult,
} from "../src/testing/simulator.ts";

/** What a worker is told to do. */
interface Order {
  readonly from: number;
  readonly step: number;
  readonly runs: number;
  readonly untilMs: number;
}

/** What a worker has found. */
interface Finding {
  readonly runs: number;
  readonly processMs: number;
  readonly events: number;
  readonly counts: ReadonlyMap<string, number>;
  /** The seed of a run that broke a guarantee. */
  readonly broken: number | undefined;
}

/** How many runs go into making a failure smaller. */
const SHRINK_RUNS = 600;

const UNITS: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: 3_600_000 };

/** Runs seed after seed, and reports now and then. */
async function work(order: Order, report: (finding: Finding) => void): Promise<void> {
  for (let i = 0; i < order.runs && Date.now() < order.untilMs; i++) {
    const seed = order.from + i * order.step;
    const { violation, processMs, events, counts } = await simulate(scenarioOf(seed));
    report({ runs: 1, processMs, events, counts, broken: violation ? seed : undefined });
  }
}

/** Runs seeds on some workers; those that broke something. */
async function search(order: Order, workers: number): Promise<readonly number[]> {
  const startedAtMs = Date.now();
  const total = { runs: 0, processMs: 0, events: 0, counts: new Map<string, number>() };
  const broken: number[] = [];
  await Promise.all(Array.from({ length: workers }, (_, i) => {
    const worker = new Worker(new URL(import.meta.url), { type: "module" });
    const part: Order = {
      ...order,
      from: order.from + i,
      step: workers,
      runs: Math.ceil((order.runs - i) / workers),
    };
    worker.postMessage(part);
    return new Promise<void>((resolve, reject) => {
      worker.onerror = (event) => reject(new Error(event.message));
      worker.onmessage = ({ data }: MessageEvent<Finding | "done">) => {
        if (data === "done") {
          worker.terminate();
          return resolve();
        }
        total.runs += data.runs;
        total.processMs += data.processMs;
        total.events += data.events;
        for (const [what, n] of data.counts) {
          total.counts.set(what, (total.counts.get(what) ?? 0) + n);
        }
        if (data.broken !== undefined) broken.push(data.broken);
      };
    });
  }));
  print(total, (Date.now() - startedAtMs) / 1000);
  console.log(`seeds from ${order.from} on, each worker its own`);
  return broken;
}

/** What happened, as a table. */
function print(total: Omit<Finding, "broken">, seconds: number): void {
  const hours = total.processMs / 3_600_000;
  const rows: [string, string][] = [
    ["runs", String(total.runs)],
    ["process-hours", hours.toFixed(1)],
    ["process-hours a minute", (hours / seconds * 60).toFixed(0)],
    ["virtual to real time", `${(hours * 3600 / seconds).toFixed(0)} : 1`],
    ["events a second", (total.events / seconds).toFixed(0)],
    ...[...total.counts].sort(([a], [b]) => a < b ? -1 : 1)
      .map(([what, n]): [string, string] => [what, String(n)]),
  ];
  const width = Math.max(...rows.map(([what]) => what.length));
  for (const [what, value] of rows) console.log(`${what.padEnd(width)}  ${value.padStart(12)}`);
}

/** One run, with its trace. */
async function replay(scenario: Scenario): Promise<SimulationResult> {
  const result = await simulate(scenario, { trace: true });
  console.log(result.trace!.join("\n"));
  console.log(`scenario ${JSON.stringify(scenario)}`);
  console.log(`trace hash ${result.traceHash}`);
  console.log(result.violation ? `broken: ${result.violation.message}` : "nothing is broken");
  return result;
}

/** Prints a failure, and the shortest one like it. */
async function explain(seed: number): Promise<void> {
  const scenario = scenarioOf(seed);
  const { violation, events } = await simulate(scenario);
  console.log(`\nseed ${seed} breaks ${violation!.message}`);
  const failure: Failure = { scenario, violation: violation!, events };
  const smallest = await shrink(failure, simulate, SHRINK_RUNS);
  console.log(`the shortest run that breaks ${violation!.guarantee}:`);
  await replay(smallest.scenario);
  console.log(`again: deno task simulate --seed ${seed}`);
  console.log(`or:    deno task simulate --scenario '${JSON.stringify(smallest.scenario)}'`);
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    args: Deno.args,
    options: {
      seed: { type: "string" },
      scenario: { type: "string" },
      for: { type: "string", default: "60s" },
      from: { type: "string" },
      runs: { type: "string" },
      workers: { type: "string", default: "2" },
    },
  });
  if (values.seed !== undefined || values.scenario !== undefined) {
    const scenario = values.scenario
      ? JSON.parse(values.scenario)
      : scenarioOf(Number(values.seed));
    return (await replay(scenario)).violation ? 1 : 0;
  }
  const [, amount, unit] = /^(\d+)([smh])$/.exec(values.for) ?? [];
  if (!amount) throw new RangeError(`Cannot use --for as it must be like 60s: ${values.for}`);
  const order: Order = {
    from: Number(values.from ?? Date.now()),
    step: 1,
    runs: Number(values.runs ?? Infinity),
    untilMs: values.runs ? Infinity : Date.now() + Number(amount) * UNITS[unit!]!,
  };
  const broken = await search(order, Number(values.workers));
  if (broken.length === 0) return 0;
  console.log(`broken by seeds ${broken.join(" ")}`);
  await explain(broken[0]!);
  return 1;
}

if ("DedicatedWorkerGlobalScope" in globalThis) {
  const scope = globalThis as unknown as {
    onmessage: (event: MessageEvent<Order>) => void;
    postMessage: (message: Finding | "done") => void;
  };
  scope.onmessage = async ({ data }) => {
    await work(data, (finding) => scope.postMessage(finding));
    scope.postMessage("done");
  };
} else {
  Deno.exit(await main());
}
