/**
 * What an error of Redis means, by the code that its text begins with (Redis: `createSharedObjects` of
 * server.c; Upstash: "Errors" of its documentation).
 *
 * @module
 */
import { StorageError } from "../core/errors.ts";
import { FOREIGN } from "./_redis_command.ts";

/**
 * Codes that asking again soon does not cure: somebody has to correct credentials, rights, the key or the
 * memory. All others say that the server cannot serve us now (LOADING, BUSY, READONLY, CLUSTERDOWN, ...),
 * and what has no code is a failure of the network, after which nobody knows the outcome.
 */
const PERMANENT_CODES = new Set(
  "NOAUTH WRONGPASS NOPERM DENIED WRONGTYPE CROSSSLOT NOPROTO OOM".split(" "),
);

/** The same, of what has no code of its own. */
const PERMANENT_TEXTS = [
  "ERR unknown command",
  "ERR Unknown Redis command",
  "ERR Command is not available",
  "ERR Error compiling script",
  "ERR Error running script",
  "ERR user_script",
  "ERR The user executing the script can't run",
  "ERR Dynamic keys are not allowed",
  "ERR invalid password",
  "ERR max requests limit exceeded",
  "ERR max daily request limit exceeded",
  "ERR DB capacity quota exceeded",
];

/** What stands before the server's text in errors of `@upstash/redis`, and what behind: our arguments. */
const UPSTASH_FRAME = /^Command failed: |, command was: .*$|, with args beginning with: .*$/gs;

/**
 * The text of an error, without arguments of ours, which include a token.
 *
 * @param error what a client threw
 * @returns what the server or the network said
 */
export function errorText(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  return text.replace(UPSTASH_FRAME, "");
}

/**
 * The code of an error reply.
 *
 * @param text the text of an error
 * @returns its first word in capitals; undefined if it is no reply of the server
 */
export function errorCode(text: string): string | undefined {
  return /^([A-Z][A-Z0-9]+) /.exec(text)?.[1];
}

/**
 * What a call came to that did not end with an answer that its caller understands.
 *
 * @param key what it was about
 * @param result how it ended
 * @returns an error that carries no argument of ours
 */
export function errorOf(key: string, result: PromiseSettledResult<unknown>): StorageError {
  if (result.status === "rejected") return storageError(key, result.reason);
  if (Array.isArray(result.value) && result.value[0] === FOREIGN) return notOurs(key);
  // Some clients make up a reply when they are aborted.
  return new StorageError(`Cannot use key "${key}" as the client gave no answer of the script`, {
    transient: true,
  });
}

function storageError(key: string, error: unknown): StorageError {
  const text = errorText(error);
  const code = errorCode(text);
  const cause = withoutArguments(error, text);
  if (code === "WRONGTYPE") return notOurs(key, { cause });
  const transient = !(code && PERMANENT_CODES.has(code)) &&
    !PERMANENT_TEXTS.some((start) => text.startsWith(start));
  const why = code ? "Redis refused" : "the request failed";
  return new StorageError(`Cannot use key "${key}" as ${why}: ${text}`, { transient, cause });
}

function notOurs(key: string, details: { cause?: unknown } = {}): StorageError {
  return new StorageError(`Cannot use key "${key}" as its value is not a Holdfast record`, {
    transient: false,
    ...details,
  });
}

/** The same error if it is harmless; else one like it. ioredis keeps the command in a property. */
function withoutArguments(error: unknown, text: string): unknown {
  if (!(error instanceof Error) || (error.message === text && !("command" in error))) return error;
  const clean: Error = Object.create(Object.getPrototypeOf(error));
  const fields = { message: text, stack: `${error.name}: ${text}` };
  for (const [name, value] of Object.entries(fields)) {
    Object.defineProperty(clean, name, { value, configurable: true, writable: true });
  }
  if (clean.name !== error.name) Object.defineProperty(clean, "name", { value: error.name });
  return clean;
}
