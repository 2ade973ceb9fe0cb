/**
 * Runs the suites in every runtime, each by really running there, and prints one table: runtime by suite,
 * passed and failed. `deno task test:runtimes [--only node,bun] [--suite redis]`
 *
 * Deno, Bun and Node run the same tests, Node and Bun through a bundle; pages and Workers run the contract
 * suite on Upstash's protocol over the REST proxy of the tests. A runtime that cannot be had is a row with
 * the reason; with `HOLDFAST_REQUIRE_SERVICES=1` it fails. So does a suite without a test.
 */
import * as esbuild from "esbuild";
import { parseArgs } from "node:util";
import { startKvConnect } from "../tests/support/kv_connect.ts";
import { startUpstashProxy } from "../tests/support/upstash_proxy.ts";
import { browserRows } from "./runtimes/browser.ts";
import { bundle, hasAwaitUsing } from "./runtimes/bundle.ts";
import { countsOf, type Engine, failuresOf, programOf, testCommand } from "./runtimes/engines.ts";
import { isGreen, printTable, type Row } from "./runtimes/table.ts";
import { workerRows } from "./runtimes/workers.ts";
import { ServiceUnavailable, startRedis } from "./services.ts";

/** A suite that a test runner runs. */
interface Suite {
  readonly name: string;
  readonly engines: readonly Engine[];
  /** The modules for Deno. */
  readonly modules: readonly string[];
  /** The file below {@linkcode folder} for the others. */
  readonly bundle: string;
  readonly env?: Readonly<Record<string, string>>;
}

/** Suites that run at once: those of the core compute, the others wait most of the time. */
const AT_ONCE = { computing: 2, waiting: 3 };

const LIMIT_MS = 5 * 60_000;

const CONTRACT = "tests/runtimes/contract_suite.ts";
const SCOPES = "tests/runtimes/await_using_suite.ts";

const ALL: readonly Engine[] = ["deno", "bun", "node 20"];

Deno.chdir(new URL("..", import.meta.url));
const { values } = parseArgs({
  args: Deno.args,
  options: { only: { type: "string" }, suite: { type: "string" } },
});
const mayMiss = Deno.env.get("HOLDFAST_REQUIRE_SERVICES") !== "1";
// From here Node and Bun find the packages that this repository has.
const folder = await Deno.makeTempDir({
  dir: `${Deno.cwd()}/node_modules`,
  prefix: ".holdfast-runtimes-",
});

/** Whether the command line asks for a row; `node` stands for every version of it. */
function isWanted(runtime: string, suite: string): boolean {
  const only = values.only?.split(",") ?? [runtime];
  return only.some((one) => one === runtime || runtime.startsWith(`${one} `)) &&
    suite.includes(values.suite ?? "");
}

/** Test files that need nothing but a runner: these run everywhere. */
async function portableTests(): Promise<string[]> {
  const files = ["tests/contract/memory_test.ts"];
  for await (const { name } of Deno.readDir("tests/core")) {
    const path = `tests/core/${name}`;
    if (!name.endsWith("_test.ts")) continue;
    if (!/\bDeno\.(?!test\b)|run_script/.test(await Deno.readTextFile(path))) files.push(path);
  }
  return files.sort();
}

/** Makes the files that Node and Bun run. */
async function bundleAll(portable: readonly string[]): Promise<void> {
  const bundleTests = async (name: string, target: string, modules: readonly string[]) => {
    const source = modules.map((path) => `import "./${path}";`).join("\n");
    const file = `${folder}/${name}.test.mjs`;
    await bundle(source, file, { platform: "node", target });
    return await hasAwaitUsing(file);
  };
  await bundleTests("core", "node20", ["tests/runtimes/deno_test_shim.ts", ...portable]);
  await bundleTests("contract", "node20", [CONTRACT]);
  for (const [name, target] of [["lowered", "node20"], ["native", "esnext"]] as const) {
    const isNative = await bundleTests(name, target, [SCOPES]);
    if (isNative !== (name === "native")) throw new Error(`The bundle must be ${name}`);
  }
}

/** The contract suite on one storage. */
function contract(
  suite: string,
  engines: readonly Engine[],
  { url = "", token = "" }: { readonly url?: string; readonly token?: string } = {},
): Suite {
  const env = {
    HOLDFAST_SUITE: suite,
    HOLDFAST_URL: url,
    HOLDFAST_TOKEN: token,
    DENO_KV_ACCESS_TOKEN: "any",
  };
  return { name: `${suite} contract`, engines, modules: [CONTRACT], bundle: "contract", env };
}

/** Runs a suite in one runtime. */
async function runSuite(engine: Engine, suite: Suite): Promise<Row> {
  const startMs = performance.now();
  const files = engine === "deno" ? suite.modules : [`${folder}/${suite.bundle}.test.mjs`];
  const [command, ...args] = testCommand(engine, await programOf(engine), files);
  const { success, stdout, stderr } = await new Deno.Command(command!, {
    args,
    env: { ...suite.env, NO_COLOR: "1" },
    signal: AbortSignal.timeout(LIMIT_MS),
  }).output();
  const output = [stdout, stderr].map((bytes) => new TextDecoder().decode(bytes)).join("");
  const { passed, failed } = countsOf(engine, output);
  const isBad = !success || passed === 0;
  if (isBad) console.error(`${engine}, ${suite.name}:\n${failuresOf(output)}`);
  return {
    runtime: engine,
    suite: suite.name,
    passed,
    failed: isBad ? Math.max(failed, 1) : failed,
    ms: performance.now() - startMs,
  };
}

/** The rows of some work; where something is missing, one that says why. */
async function rowsOf(
  runtime: string,
  suite: string,
  run: () => Promise<Row[]>,
): Promise<Row[]> {
  const nothing = { runtime, suite, passed: 0, failed: 0, ms: 0 };
  try {
    return await run();
  } catch (error) {
    if (error instanceof ServiceUnavailable) return [{ ...nothing, missing: error.message }];
    console.error(`${runtime}, ${suite}:`, error);
    return [{ ...nothing, failed: 1 }];
  }
}

/** Work that makes rows. */
type Work = () => Promise<Row[]>;

/** The rows of suites that were asked for, one piece of work each. */
function workOf(suites: readonly Suite[]): Work[] {
  return suites.flatMap((suite) =>
    suite.engines.filter((engine) => isWanted(engine, suite.name)).map((engine) => () =>
      rowsOf(engine, suite.name, async () => [await runSuite(engine, suite)])
    )
  );
}

/** Does all work, some of it at once, and keeps its order. */
async function doAll(work: readonly Work[], atOnce: number): Promise<Row[]> {
  const rows: Row[][] = [];
  let next = 0;
  const takeTurns = async (): Promise<void> => {
    while (next < work.length) {
      const index = next++;
      rows[index] = await work[index]!();
    }
  };
  await Promise.all(Array.from({ length: atOnce }, takeTurns));
  return rows.flat();
}

/** The suites that need no server. */
const localSuites: readonly Suite[] = [
  { name: "await using, lowered", engines: ["node 20"], modules: [SCOPES], bundle: "lowered" },
  {
    name: "await using, native",
    engines: ["deno", "bun", "node 24"],
    modules: [SCOPES],
    bundle: "native",
  },
  contract("sqlite", ["deno", "bun", "node 22"]),
  contract("deno kv", ALL),
];

/** The contract on servers that it starts. */
async function runServerSuites(): Promise<Row[]> {
  const kv = startKvConnect();
  try {
    await using redis = await startRedis();
    await using proxy = await startUpstashProxy({ redisPort: redis.port });
    const work = workOf([
      contract("deno kv remote", ALL, { url: kv.url }),
      contract("ioredis", ALL, { url: redis.url }),
      contract("node-redis", ALL, { url: redis.url }),
      contract("bun redis", ["bun"], { url: redis.url }),
      contract("upstash", ALL, proxy),
    ]);
    // Their suites are short but for one: --suite does not choose among them.
    if (isWanted("workerd", values.suite ?? "")) {
      work.push(() => rowsOf("workerd", "all suites", () => workerRows(folder, proxy)));
    }
    if (isWanted("chromium", values.suite ?? "")) {
      work.push(() => rowsOf("chromium", "all suites", () => browserRows(folder, proxy)));
    }
    return await doAll(work, AT_ONCE.waiting);
  } finally {
    await kv.close();
  }
}

async function runEverything(): Promise<Row[]> {
  const portable = await portableTests();
  await bundleAll(portable);
  const core = { name: "core, memory", engines: ALL, modules: portable, bundle: "core" };
  return [
    ...await doAll(workOf([core]), AT_ONCE.computing),
    ...await doAll(workOf(localSuites), AT_ONCE.waiting),
    ...await rowsOf("all", "on Redis", runServerSuites),
  ];
}

const rows = await runEverything().finally(async () => {
  await esbuild.stop();
  await Deno.remove(folder, { recursive: true });
});
printTable(rows, mayMiss);
const isSomeGreen = rows.some(({ passed }) => passed > 0);
Deno.exit(isSomeGreen && rows.every((row) => isGreen(row, mayMiss)) ? 0 : 1);
