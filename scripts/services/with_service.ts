/**
 * Registers tests that need a real server, so that a missing server is always seen.
 *
 * @module
 */

import process from "node:process";
import { ServiceUnavailable } from "./install.ts";
import { PRODUCTS, type ServiceName } from "./products.ts";
import { type Service, type ServiceOptions, startService } from "./service.ts";

/** The part of `Deno.test` that suites take as their `test`. */
export interface TestFunction {
  (name: string, fn: (t: Deno.TestContext) => void | Promise<void>): void;
  (definition: Deno.TestDefinition): void;
}

/** What {@linkcode withService} hands to the function that registers the tests. */
export interface ServiceTests {
  readonly test: TestFunction;
  /** The running server; to be called inside a test, because it starts with the first one. */
  readonly service: () => Service;
}

/**
 * Registers tests that share one server, which runs from before the first test of the file to
 * after its last. A missing server is treated as {@linkcode testsFor} says.
 *
 * The server starts in `beforeAll`, the only hook outside the window that Deno's resource
 * sanitizer watches. A test that kills or restarts the shared server would end a process that it
 * did not start, and the sanitizer says so: such a test uses `testsFor()` and a server of its own.
 *
 * @example
 * ```ts ignore
 * await withService("redis", ({ test, service }) => {
 *   test("PING answers", async () => {
 *     const redis = new Redis(service().url);
 *     assertEquals(await redis.ping(), "PONG");
 *     redis.disconnect();
 *   });
 * });
 * ```
 */
export async function withService(
  name: ServiceName,
  register: (tests: ServiceTests) => void | Promise<void>,
  options?: ServiceOptions,
): Promise<void> {
  let running: Service | undefined;
  const test = await testsFor(name);
  if (test === Deno.test) {
    Deno.test.beforeAll(async () => {
      running = await startService(PRODUCTS[name], options);
    });
    Deno.test.afterAll(() => running?.stop());
  }
  const service = () => {
    if (running !== undefined) return running;
    throw new Error(`Cannot use "${name}" as it runs only while tests do`);
  };
  await register({ test, service });
}

/**
 * Returns `Deno.test` where the server of `name` can be had, installing it if need be.
 *
 * Where it cannot, the result reports each test as ignored, with the reason in its name; with
 * `HOLDFAST_REQUIRE_SERVICES=1` (or a list of names, `redis,postgres`) each one fails instead. A
 * server that is there and does not start is not missing but broken, and fails its tests.
 */
export async function testsFor(name: ServiceName): Promise<TestFunction> {
  try {
    await PRODUCTS[name].install();
    return Deno.test;
  } catch (error) {
    if (!(error instanceof ServiceUnavailable)) throw error;
    return missingTest(error, isRequired(name));
  }
}

/** Whether a missing server has to fail its tests. */
export function isRequired(name: ServiceName): boolean {
  const required = process.env["HOLDFAST_REQUIRE_SERVICES"] ?? "";
  return required === "1" || required.split(",").includes(name);
}

function missingTest(reason: ServiceUnavailable, mustFail: boolean): TestFunction {
  return (test: string | Deno.TestDefinition) => {
    const name = typeof test === "string" ? test : test.name;
    if (mustFail) Deno.test(name, () => Promise.reject(reason));
    else Deno.test.ignore(`${name} (${reason.message})`, () => {});
  };
}
