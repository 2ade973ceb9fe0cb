/**
 * Runs the suites in every runtime, each by really running there, and prints one table: runtime by suite,
 * passed and failed. `deno task test:runtimes [--only node,bun]`
 *
 * Node and Bun get the same tests through a bundle, pages and Workers get the contract suite on Upstash's
 * protocol over the REST proxy of the tests.
 */
import * as esbuild from "esbuild";
import { Miniflare } from "miniflare";
import { chromium } from "playwright-core";
import { parseArgs } from "node:util";
import { startUpstashProxy, type UpstashProxy } from "../tests/support/upstash_proxy.ts";
import type { Ended } from "../tests/runtimes/contract_runner.ts";
import { startRedis } from "./services.ts";
import { debianProgram } from "./services/install.ts";

/** How a suite ended in a runtime. */
interface Row {
  readonly runtime: string;
  readonly suite: string;
  readonly passed: number;
  readonly failed: number;
  readonly ms: number;
}

const rows: Row[] = [];
const folder = await Deno.makeTempDir({ prefix: "holdfast-runtimes-" });
const { values } = parseArgs({ args: Deno.args, options: { only: { type: "string" } } });
const only = values.only?.split(",");

/** Imports by name, as this repository's `deno.json` has them. */
const alias = {
  "@std/assert": "deno-std/assert/mod.js",
  "@holdfast/lock/testing": "./src/testing/mod.ts",
  "@holdfast/lock": "./mod.ts",
};

/** Test files that need nothing but a runner: these run everywhere. */
async function portableTests(): Promise<string[]> {
  const files: string[] = [];
  for (const dir of ["tests/core", "tests/contract"]) {
    for await (const { name } of Deno.readDir(dir)) {
      const path = `${dir}/${name}`;
      if (!name.endsWith("_test.ts") || (dir === "tests/contract" && name !== "memory_test.ts")) {
        continue;
      }
      const text = await Deno.readTextFile(path);
      if (!/\bDeno\.(?!test\b)|run_script/.test(text)) files.push(path);
    }
  }
  return files.sort();
}

/** Bundles modules for a runtime into one file. */
async function bundle(
  source: string,
  file: string,
  options: esbuild.BuildOptions,
): Promise<string> {
  const outfile = `${folder}/${file}`;
  await esbuild.build({
    stdin: { contents: source, resolveDir: Deno.cwd(), loader: "ts", sourcefile: "entry.ts" },
    bundle: true,
    format: "esm",
    outfile,
    alias,
    external: ["node:test"],
    logLevel: "error",
    ...options,
  });
  return outfile;
}

/** Runs a command, and reads how many tests passed and failed from what it prints. */
async function runTests(
  runtime: string,
  suite: string,
  command: string[],
  env: Record<string, string> = {},
): Promise<void> {
  const startMs = performance.now();
  const { success, stdout, stderr } = await new Deno.Command(command[0]!, {
    args: command.slice(1),
    env: { ...env, NO_COLOR: "1" },
  }).output();
  const output = new TextDecoder().decode(stdout) + new TextDecoder().decode(stderr);
  const number = (pattern: RegExp): number => Number(pattern.exec(output)?.[1] ?? 0);
  const passed = number(/(\d+) passed/) || number(/^# pass (\d+)/m) || number(/^\s*(\d+) pass$/m);
  const failed = number(/(\d+) failed/) || number(/^# fail (\d+)/m) || number(/^\s*(\d+) fail$/m);
  const ms = performance.now() - startMs;
  const wrong = !success || passed === 0;
  if (wrong) console.error(failuresOf(output));
  rows.push({ runtime, suite, passed, failed: wrong ? Math.max(failed, 1) : failed, ms });
}

/** The part of a runner's output that says what failed. */
function failuresOf(output: string): string {
  const lines = output.split("\n");
  const at = lines.flatMap((line, i) =>
    /^not ok|^\(fail\)|\bFAILED\b|^error:/.test(line) ? [i] : []
  );
  const parts = at.slice(0, 10).map((i) => lines.slice(Math.max(i - 12, 0), i + 14).join("\n"));
  return parts.join("\n...\n") || output.slice(-3000);
}

function wanted(runtime: string): boolean {
  return only?.includes(runtime) ?? true;
}

function note(runtime: string, suite: string, ended: readonly Ended[], startMs: number): void {
  const failures = ended.filter((e) => e.error !== undefined);
  for (const { name, error } of failures) console.error(`${runtime}: ${name}\n${error}`);
  const [passed, failed] = [ended.length - failures.length, failures.length];
  rows.push({ runtime, suite, passed, failed, ms: performance.now() - startMs });
}

/** Core and memory, where there is a test runner. */
async function coreSuites(): Promise<void> {
  const files = await portableTests();
  const source = ["tests/runtimes/deno_test_shim.ts", ...files]
    .map((file) => `import "./${file}";`).join("\n");
  const suite = "core, memory";
  if (wanted("deno")) {
    await runTests("deno", suite, [Deno.execPath(), "test", "-A", "--no-check", ...files]);
  }
  const file = await bundle(source, "core.test.mjs", { platform: "node", target: "node20" });
  if (wanted("bun")) await runTests("bun", suite, [...BUN, "test", "--timeout", "60000", file]);
  if (wanted("node")) {
    await runTests("node", suite, ["node", "--test-reporter=tap", "--test", file]);
  }
}

const BUN = ["npx", "-y", "bun@1.4.5"];

/** The contract on Upstash's protocol, where there is a test runner. */
async function upstashSuites(proxy: UpstashProxy): Promise<void> {
  const suite = "upstash contract";
  const env = { UPSTASH_REDIS_REST_URL: proxy.url, UPSTASH_REDIS_REST_TOKEN: proxy.token };
  const source = `
    import { Redis } from "@upstash/redis";
    import { testLeaseStorage } from "./src/testing/mod.ts";
    import { upstashSubject } from "./tests/support/upstash_subject.ts";
    await testLeaseStorage({
      name: "upstash",
      setup: () => upstashSubject(() => Redis.fromEnv({ automaticDeserialization: false })),
    });
  `;
  const file = await bundle(source, "upstash.test.mjs", { platform: "node", target: "node20" });
  if (wanted("deno")) await runTests("deno", suite, [Deno.execPath(), "test", "-A", file], env);
  if (wanted("bun")) {
    await runTests("bun", suite, [...BUN, "test", "--timeout", "60000", file], env);
  }
  if (wanted("node")) {
    await runTests("node", suite, ["node", "--test-reporter=tap", "--test", file], env);
  }
}

/** The contract in a page of a real browser, with \`await using\` as the engine has it. */
async function browserSuite(proxy: UpstashProxy): Promise<void> {
  const file = await bundle(
    `
      import { count, runAt } from "./tests/runtimes/contract_runner.ts";
      import { Lock, MemoryStorage } from "./mod.ts";
      globalThis.contract = { count, runAt };
      globalThis.scope = async () => {
        const lock = new Lock({ storage: new MemoryStorage(), name: "scope" });
        { await using lease = await lock.acquire(); if (!lease.isHeld()) return "not held"; }
        return (await lock.inspect()).holders.length;
      };
    `,
    "page.js",
    { platform: "browser", target: "esnext" },
  );
  const server = Deno.serve(
    { hostname: "127.0.0.1", port: 0, onListen: () => {} },
    async (request) =>
      new URL(request.url).pathname === "/page.js"
        ? new Response(await Deno.readFile(file), {
          headers: { "content-type": "text/javascript" },
        })
        : new Response(`<!doctype html><script type="module" src="/page.js"></script>`, {
          headers: { "content-type": "text/html" },
        }),
  );
  const browser = await chromium.launch({
    executablePath: await debianProgram("chromium", "chromium", "chromium"),
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"],
  });
  try {
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${server.addr.port}/`);
    await page.waitForFunction("globalThis.contract !== undefined");
    const startMs = performance.now();
    const left = await page.evaluate("scope()");
    note("chromium", "await using", [
      left === 0 ? { name: "scope" } : { name: "scope", error: `${left}` },
    ], startMs);
    const { url, token } = proxy;
    const ended = await page.evaluate(
      `Promise.all(Array.from({ length: contract.count }, (_, i) =>
        contract.runAt(i, ${JSON.stringify({ url, token, notify: false })})))`,
    ) as Ended[];
    note("chromium", "upstash contract", ended, startMs);
  } finally {
    await browser.close();
    await server.shutdown();
  }
}

/** The contract in workerd, one test a request, and a gate that a finished request left behind. */
async function workerSuite(proxy: UpstashProxy): Promise<void> {
  // workerd has \`await using\`, the parser in front of it has not: lowered here, as a bundler would.
  const file = await bundle(`export { default } from "./tests/runtimes/worker.ts";`, "worker.mjs", {
    platform: "browser",
    target: "es2022",
    conditions: ["workerd", "worker", "browser"],
  });
  const miniflare = new Miniflare({
    modules: [{ type: "ESModule", path: "worker.mjs", contents: await Deno.readTextFile(file) }],
    compatibilityDate: "2026-01-01",
    cf: false,
  });
  const get = async (path: string): Promise<unknown> => {
    const response = await miniflare.dispatchFetch(`http://worker${path}`);
    const text = await response.text();
    if (!response.ok) throw new Error(text);
    return JSON.parse(text);
  };
  try {
    const startMs = performance.now();
    const left = await get("/await-using") as unknown[];
    note("workerd", "await using", [
      left.length === 0 ? { name: "scope" } : { name: "scope", error: "left" },
    ], startMs);
    const held = await get("/hold") as number;
    const next = await get("/acquire").catch((error) => String(error));
    const name = "a request that ended while it held the gate delays another by its ttl";
    note(
      "workerd",
      "gate",
      [next as number > held ? { name } : { name, error: String(next) }],
      startMs,
    );
    const count = await get("/count") as number;
    const query = new URLSearchParams({ url: proxy.url, token: proxy.token });
    const ended = await Promise.all(
      Array.from(
        { length: count },
        (_, i) =>
          get(`/?${query}&test=${i}`).catch((error) => ({ name: String(i), error: String(error) })),
      ),
    ) as Ended[];
    note("workerd", "upstash contract", ended, startMs);
  } finally {
    await miniflare.dispose();
  }
}

function printTable(): void {
  console.log("\nruntime     suite                passed  failed   seconds");
  for (const { runtime, suite, passed, failed, ms } of rows) {
    console.log(
      `${runtime.padEnd(11)} ${suite.padEnd(20)} ${String(passed).padStart(6)} ` +
        `${String(failed).padStart(7)} ${(ms / 1000).toFixed(1).padStart(9)}`,
    );
  }
}

try {
  await coreSuites();
  await using redis = await startRedis();
  await using proxy = await startUpstashProxy({ redisPort: redis.port });
  await upstashSuites(proxy);
  if (wanted("workerd")) await workerSuite(proxy);
  if (wanted("chromium")) await browserSuite(proxy);
} finally {
  await esbuild.stop();
  await Deno.remove(folder, { recursive: true });
}
printTable();
Deno.exit(rows.length > 0 && rows.every((row) => row.failed === 0 && row.passed > 0) ? 0 : 1);
