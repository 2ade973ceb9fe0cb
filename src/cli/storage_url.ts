/**
 * Where the locks are, as a URL: the argument, the environment or a file in the user's state folder; and
 * how credentials stay out of every message.
 *
 * @module
 */
import { mkdirSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import process from "node:process";
import { usage } from "./failure.ts";

/** Environment variables that hold credentials of the products. */
const SECRET_VARIABLES = [
  "UPSTASH_REDIS_REST_TOKEN",
  "DENO_KV_ACCESS_TOKEN",
  "AWS_SECRET_ACCESS_KEY",
  "AWS_SESSION_TOKEN",
  "PGPASSWORD",
];

const SECRET_PARAMETER = /([?&][^=&#]*(?:pass|pwd|secret|token|key)[^=&#]*=)([^&#]+)/gi;

/** Up to the last "@", because a password that nobody encoded may hold anything. */
const USER_INFO = /^([a-z][a-z0-9+.-]*:\/\/)(.*)@/is;

/**
 * Chooses the storage: `--storage`, then `HOLDFAST_STORAGE`, then, under Deno, a file.
 *
 * @param argument the value of `--storage`
 * @returns the URL
 * @throws {Failure} with status 64 if there is none, or the argument holds a credential
 */
export function chooseStorage(argument: string | undefined): string {
  if (argument !== undefined) {
    if (credentialsIn(argument).length === 0) return argument;
    throw usage(
      `Cannot use --storage as it holds a credential, which everyone can see who lists processes: ` +
        `give the URL in HOLDFAST_STORAGE`,
    );
  }
  const variable = process.env["HOLDFAST_STORAGE"];
  if (variable) return variable;
  if (isDeno()) return "kv:";
  throw usage(
    "Cannot choose a storage as --storage and HOLDFAST_STORAGE are absent, and outside Deno there is " +
      "no default: two runtimes must not lock two different files",
  );
}

/** Whether this runtime is Deno. */
export function isDeno(): boolean {
  return "Deno" in globalThis;
}

/**
 * The file that `kv:` without a path stands for; makes its folder.
 *
 * @returns a path in the folder where the user's programs keep their state
 */
export function defaultFile(): string {
  const path = join(stateFolder(), "holdfast", "locks.kv");
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  return path;
}

function stateFolder(): string {
  const { XDG_STATE_HOME, LOCALAPPDATA } = process.env;
  if (XDG_STATE_HOME) return XDG_STATE_HOME;
  if (process.platform === "win32" && LOCALAPPDATA) return LOCALAPPDATA;
  return process.platform === "darwin"
    ? join(homedir(), "Library", "Application Support")
    : join(homedir(), ".local", "state");
}

/**
 * Makes a function that takes credentials out of texts.
 *
 * @param urls those that may hold some
 * @returns the function
 */
export function redactor(urls: readonly (string | undefined)[]): (text: string) => string {
  const secrets = [
    ...urls.flatMap((url) => credentialsIn(url ?? "")),
    ...SECRET_VARIABLES.map((name) => process.env[name] ?? ""),
  ].filter((secret) => secret !== "").sort((a, b) => b.length - a.length);
  return (text) => secrets.reduce((rest, secret) => rest.replaceAll(secret, "***"), text);
}

/** The credentials in a URL, as they are written and as they are meant. */
function credentialsIn(url: string): string[] {
  const [, , userInfo = ""] = USER_INFO.exec(url) ?? [];
  const colon = userInfo.indexOf(":");
  const password = colon < 0 ? "" : userInfo.slice(colon + 1);
  const parameters = [...url.matchAll(SECRET_PARAMETER)].map(([, , value]) => value!);
  return [password, ...parameters].filter((secret) => secret !== "").flatMap((secret) => {
    const meant = decoded(secret);
    return meant === secret ? [secret] : [secret, meant];
  });
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * A URL without its credentials, for messages.
 *
 * @param url the URL
 * @returns the URL with `***` in their place
 */
export function shown(url: string): string {
  return url.replace(USER_INFO, "$1***@").replace(SECRET_PARAMETER, "$1***");
}
