/**
 * The few assertions of the contract suite, which runs under any runner, and what its commands are made of.
 *
 * @module
 */
import type { AcquireCommand } from "../core/record.ts";

/** Fails with a message unless the condition holds. */
export function check(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(message);
}

/** Fails unless two plain values are the same. */
export function checkEqual(actual: unknown, expected: unknown, what: string): void {
  const [a, e] = [JSON.stringify(actual), JSON.stringify(expected)];
  check(a === e, `${what}: expected ${e}, got ${a}`);
}

/**
 * Fails unless the work rejects with an error of a class.
 *
 * @returns the error
 */
export async function checkRejects<E extends Error>(
  work: Promise<unknown>,
  // deno-lint-ignore no-explicit-any -- any constructor will do
  errorClass: new (...args: any[]) => E,
  what: string,
): Promise<E> {
  let value: unknown;
  try {
    value = await work;
  } catch (error) {
    check(error instanceof errorClass, `${what}: expected ${errorClass.name}, got ${error}`);
    return error;
  }
  throw new Error(`${what}: expected ${errorClass.name}, got the value ${value}`);
}

/** Waits in real time. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Asks until the answer is yes; fails after a while. */
export async function eventually(
  condition: () => boolean | Promise<boolean>,
  what: string,
  withinMs = 10_000,
): Promise<void> {
  const until = Date.now() + withinMs;
  while (!await condition()) {
    check(Date.now() < until, `${what}: not within ${withinMs} ms`);
    await pause(10);
  }
}

/** A name that no other test uses, with characters that storages get wrong. */
export function uniqueName(what: string): string {
  return `${what} {é}/#?:${crypto.randomUUID().slice(0, 8)}`;
}

/** An acquire of a mutex that leaves no ticket, unless `more` says otherwise. */
export function acquireCommand(
  token: string,
  more: Partial<AcquireCommand> & { readonly ttlMs: number },
): AcquireCommand {
  return {
    type: "acquire",
    token,
    permits: 1,
    capacity: 1,
    label: "",
    queueMs: 0,
    fair: false,
    presumedDead: [],
    ...more,
  };
}
