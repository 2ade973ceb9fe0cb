/**
 * Suites in workerd: the contract, one test a request; what requests leave behind; and the recipe for
 * Cloudflare as it stands in `docs/examples`.
 *
 * @module
 */
import { assert, assertEquals, assertGreater, assertMatch } from "@std/assert";
import { Redis } from "@upstash/redis";
import { Miniflare } from "miniflare";
import { Lock } from "../../mod.ts";
import { eventually } from "../../src/testing/check.ts";
import { UpstashStorage } from "../../src/storage/upstash.ts";
import { type Ended, ended } from "../../tests/runtimes/contract_runner.ts";
import type { UpstashProxy } from "../../tests/support/upstash_proxy.ts";
import { bundle, hasAwaitUsing } from "./bundle.ts";
import { type Row, rowOf } from "./table.ts";

/** A request to a Worker. */
type Fetch = (path: string) => Promise<{ status: number; text: string }>;

/** Starts a Worker whose module is bundled. */
async function startWorker(
  folder: string,
  entry: string,
  bindings: Record<string, string> = {},
): Promise<AsyncDisposable & { readonly fetch: Fetch }> {
  const file = `${folder}/${entry.split("/").at(-1)}.mjs`;
  // workerd has `await using`, the parser in front of it has not: lowered here, as a bundler would.
  await bundle(`export { default } from "./${entry}";`, file, {
    platform: "browser",
    target: "es2022",
    conditions: ["workerd", "worker", "browser"],
  });
  const contents = await Deno.readTextFile(file);
  if (await hasAwaitUsing(file)) throw new Error("The Worker must not have `await using`");
  const miniflare = new Miniflare({
    modules: [{ type: "ESModule", path: "worker.mjs", contents }],
    compatibilityDate: "2026-01-01",
    bindings,
    cf: false,
  });
  return {
    async fetch(path) {
      const response = await miniflare.dispatchFetch(`http://worker${path}`);
      return { status: response.status, text: await response.text() };
    },
    [Symbol.asyncDispose]: () => miniflare.dispose(),
  };
}

/** A Worker's answer as JSON; throws what it says instead. */
async function json<T>(fetch: Fetch, path: string): Promise<T> {
  const { status, text } = await fetch(path);
  if (status !== 200) throw new Error(text);
  return JSON.parse(text);
}

/** The lock of that name, seen from here through the same proxy. */
function lockOn({ url, token }: UpstashProxy, name: string): Lock {
  return new Lock({ storage: new UpstashStorage(new Redis({ url, token })), name });
}

async function isFree(lock: Lock): Promise<boolean> {
  return (await lock.inspect()).holders.length === 0;
}

/** The tests of requests that end before what they began. */
function requestTests(fetch: Fetch, proxy: UpstashProxy) {
  const query = new URLSearchParams({ url: proxy.url, token: proxy.token });
  return [
    {
      name: "a request that ended while it held the gate delays another by its ttl at most",
      async run() {
        const held = await json<number>(fetch, "/hold");
        assertGreater(await json<number>(fetch, "/acquire"), held);
      },
    },
    {
      name: "what a request that gave up was granted is given back behind its response",
      async run() {
        const lock = lockOn(proxy, "given up");
        await lock.inspect();
        using fault = proxy.fault("delay-reply", { ms: 600, match: isAbout("given%20up") });
        assertEquals(await json(fetch, `/give-up?${query}`), "TimeoutError");
        assertEquals(fault.hits, 1);
        await eventually(() => isFree(lock), "the lock is free");
      },
    },
  ];
}

function isAbout(name: string): (command: string[]) => boolean {
  return (command) => command.some((word) => word.includes(name));
}

/** The tests of `docs/examples/cloudflare_worker.ts`. */
function recipeTests(fetch: Fetch, proxy: UpstashProxy) {
  const lock = lockOn(proxy, "nightly-import");
  const fenceOf = async (): Promise<number> => {
    const { status, text } = await fetch("/");
    assertMatch(text, /^imported under fence \d+$/);
    assertEquals(status, 200);
    return Number(text.split(" ").at(-1));
  };
  return [{
    name: "a request imports under the lock and gives it back, the next under a larger fence",
    async run() {
      const first = await fenceOf();
      assert(await isFree(lock));
      assertGreater(await fenceOf(), first);
    },
  }, {
    name: "a request is answered 409 while somebody else imports",
    async run() {
      const lease = await lock.acquire();
      assertEquals(await fetch("/"), { status: 409, text: "being imported" });
      await lease.release();
      assertGreater(await fenceOf(), lease.fencingToken);
    },
  }, {
    // Three requests that hang, each until the five seconds of the recipe are over.
    name: "a lock whose grants got lost is given back behind the response",
    async run() {
      using fault = proxy.fault("hang-after", { times: 3, match: isAbout("nightly-import") });
      assertEquals((await fetch("/")).status, 500);
      assertEquals(fault.hits, 3);
      await eventually(() => isFree(lock), "the lock is free", 3000);
    },
  }];
}

async function runAll(
  suite: string,
  tests: readonly { name: string; run: () => Promise<void> }[],
): Promise<Row> {
  const startMs = performance.now();
  const all: Ended[] = [];
  for (const test of tests) all.push(await ended(test));
  return rowOf("workerd", suite, all, startMs);
}

async function contractRow(fetch: Fetch, proxy: UpstashProxy): Promise<Row> {
  const startMs = performance.now();
  const count = await json<number>(fetch, "/count");
  const all = await Promise.all(Array.from({ length: count }, (_, i) => {
    const { url, token } = proxy;
    const query = new URLSearchParams({ url, token, test: String(i) });
    return json<Ended>(fetch, `/test?${query}`)
      .catch((error) => ({ name: `test ${i}`, error: String(error) }));
  }));
  return rowOf("workerd", "upstash contract", all, startMs);
}

/** Runs the suites in workerd. */
export async function workerRows(folder: string, proxy: UpstashProxy): Promise<Row[]> {
  await using worker = await startWorker(folder, "tests/runtimes/worker.ts");
  await using recipe = await startWorker(folder, "docs/examples/cloudflare_worker.ts", {
    UPSTASH_REDIS_REST_URL: proxy.url,
    UPSTASH_REDIS_REST_TOKEN: proxy.token,
  });
  const startMs = performance.now();
  const scopes = await json<Ended[]>(worker.fetch, "/await-using");
  return [
    rowOf("workerd", "await using, lowered", scopes, startMs),
    await runAll("requests that end", requestTests(worker.fetch, proxy)),
    ...await Promise.all([
      contractRow(worker.fetch, proxy),
      runAll("recipe for Cloudflare", recipeTests(recipe.fetch, proxy)),
    ]),
  ];
}
