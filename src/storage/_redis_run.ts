/**
 * How a script gets to a server: by its hash, and by its text where the server does not know it.
 *
 * @module
 */
import { errorCode, errorText } from "./_redis_errors.ts";
import { sha1Hex } from "./_sha1.ts";

/** A Lua script and its name in the server's cache. */
export interface Script {
  /** The text. */
  readonly text: string;
  /** Its SHA-1 in hexadecimal. */
  readonly sha1: string;
}

/** One run of a script, as EVALSHA or EVAL. */
export interface ScriptCall {
  /** What to run. */
  readonly script: Script;
  /** Every key that it touches. */
  readonly keys: readonly string[];
  /** Its arguments. */
  readonly args: readonly string[];
  /** Whether to send the text instead of the hash. */
  readonly asText?: boolean | undefined;
}

/**
 * Sends calls in their order without waiting in between, each standing alone, and never rejects: a call that
 * failed has an entry that says so.
 */
export type SendCalls = (
  calls: readonly ScriptCall[],
) => Promise<readonly PromiseSettledResult<unknown>[]>;

/**
 * Checks a client before its first use, so that the wrong one is not taken for a server that is away.
 *
 * @param what who takes the client
 * @param client the client
 * @param methods what is called of it
 * @throws {TypeError} if a method is missing
 */
export function checkClient(what: string, client: object, methods: readonly string[]): void {
  const missing = methods.find((name) =>
    typeof (client as Record<string, unknown> | undefined)?.[name] !== "function"
  );
  if (missing === undefined) return;
  throw new TypeError(`Cannot use client as ${what} needs another kind: it has no ${missing}()`);
}

/**
 * Makes a script of a text.
 *
 * @param text Lua
 * @returns the script; its hash is computed when it is first asked for
 */
export function scriptOf(text: string): Script {
  let sha1: string | undefined;
  return {
    text,
    get sha1() {
      return sha1 ??= sha1Hex(text);
    },
  };
}

/**
 * Runs calls by hash. Servers forget scripts when they restart or are told to (SCRIPT FLUSH): those calls
 * are sent again, the first with the text, which the server keeps for the ones behind it. On a cluster each
 * node has a cache of its own, hence one more round, all with the text.
 *
 * @param send the client
 * @param calls the calls
 * @returns how each ended, in the same order
 */
export async function runCalls(
  send: SendCalls,
  calls: readonly ScriptCall[],
): Promise<readonly PromiseSettledResult<unknown>[]> {
  const results = [...await send(calls)];
  for (let round = 0; round < 2; round++) {
    const missing = calls.map((_, i) => i).filter((i) => isUnknownScript(results[i]!));
    if (missing.length === 0) break;
    const again = missing.map((i, n) => ({ ...calls[i]!, asText: round > 0 || n === 0 }));
    const answers = await send(again);
    missing.forEach((i, n) => results[i] = answers[n]!);
  }
  return results;
}

function isUnknownScript(result: PromiseSettledResult<unknown>): boolean {
  return result.status === "rejected" && errorCode(errorText(result.reason)) === "NOSCRIPT";
}
