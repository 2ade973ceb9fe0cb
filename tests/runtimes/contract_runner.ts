/** Runs the contract suite without a test runner, for pages and Workers. */
import { Redis } from "@upstash/redis/cloudflare";
import { type ContractTest, contractTests } from "../../src/testing/mod.ts";
import { upstashSubject } from "../support/upstash_subject.ts";

/** How one test ended. */
export interface Ended {
  readonly name: string;
  readonly error?: string;
}

/** Where the server is. */
export interface Server {
  readonly url: string;
  readonly token: string;
  /** Whether waiters may subscribe. */
  readonly notify: boolean;
}

/** Runs a test that needs nothing. */
export async function ended({ name, run }: {
  readonly name: string;
  readonly run: () => Promise<void>;
}): Promise<Ended> {
  try {
    await run();
    return { name };
  } catch (error) {
    return { name, error: String((error as Error)?.stack ?? error) };
  }
}

/** Runs one test. */
async function runOne(test: ContractTest, server: Server): Promise<Ended> {
  const { url, token, notify } = server;
  const connect = () =>
    new Redis({
      url,
      token,
      automaticDeserialization: false,
      retry: { retries: 0 },
      // A browser gives keep-alive requests 64 KiB between them, which parallel tests pass.
      keepAlive: false,
    });
  const subject = upstashSubject(connect, notify);
  const { name } = test;
  try {
    return await ended({ name, run: () => test.run(subject) });
  } finally {
    await subject.close();
  }
}

/** How many tests there are. */
export const count = contractTests.length;

/** Runs the test at `index`. */
export function runAt(index: number, server: Server): Promise<Ended> {
  return runOne(contractTests[index]!, server);
}
