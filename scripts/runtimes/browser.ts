/**
 * Suites in a page of a real browser, with `await using` as the engine has it.
 *
 * @module
 */
import { chromium, type Page } from "playwright-core";
import type { Ended } from "../../tests/runtimes/contract_runner.ts";
import type { UpstashProxy } from "../../tests/support/upstash_proxy.ts";
import { debianProgram } from "../services/install.ts";
import { bundle, hasAwaitUsing } from "./bundle.ts";
import { type Row, rowOf } from "./table.ts";

const PAGE = `
  import { awaitUsingTests } from "./tests/runtimes/await_using.ts";
  import { count, ended, runAt } from "./tests/runtimes/contract_runner.ts";
  globalThis.suites = {
    awaitUsing: () => Promise.all(awaitUsingTests.map(ended)),
    contract: (server) => Promise.all(Array.from({ length: count }, (_, i) => runAt(i, server))),
  };
`;

/** Serves the page and its one script, on a port of its own. */
function servePage(file: string): Deno.HttpServer<Deno.NetAddr> {
  const html = `<!doctype html><script type="module" src="/page.js"></script>`;
  return Deno.serve(
    { hostname: "127.0.0.1", port: 0, onListen: () => {} },
    async (request) => {
      const [body, type] = new URL(request.url).pathname === "/page.js"
        ? [await Deno.readFile(file), "text/javascript"] as const
        : [html, "text/html"] as const;
      return new Response(body, { headers: { "content-type": type } });
    },
  );
}

/** Runs the suites in Chromium; throws `ServiceUnavailable` where there is none. */
export async function browserRows(folder: string, proxy: UpstashProxy): Promise<Row[]> {
  const executablePath = await debianProgram("chromium", "chromium", "chromium");
  const file = `${folder}/page.js`;
  await bundle(PAGE, file, { platform: "browser", target: "esnext" });
  if (!await hasAwaitUsing(file)) {
    throw new Error("The page must have `await using` as it is written");
  }
  const server = servePage(file);
  const browser = await chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"],
  });
  try {
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${server.addr.port}/`);
    await page.waitForFunction("globalThis.suites !== undefined");
    const { url, token } = proxy;
    return [
      await run(page, "await using, native", "suites.awaitUsing()"),
      await run(
        page,
        "upstash contract",
        `suites.contract(${JSON.stringify({ url, token, notify: false })})`,
      ),
    ];
  } finally {
    await browser.close();
    await server.shutdown();
  }
}

async function run(page: Page, suite: string, script: string): Promise<Row> {
  const startMs = performance.now();
  return rowOf("chromium", suite, await page.evaluate(script) as Ended[], startMs);
}
