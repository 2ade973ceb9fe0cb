/** Registers the tests of `await using` with the runner that Deno, Bun and Node share. */
import { test } from "node:test";
import { awaitUsingTests } from "./await_using.ts";

for (const { name, run } of awaitUsingTests) test(name, run);
