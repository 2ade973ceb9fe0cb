/**
 * Clients of products, loaded only when their storage is used, and from the user's own project: the library
 * depends on none of them.
 *
 * @module
 */
import { createRequire } from "node:module";
import { join } from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";
import { EXIT, Failure } from "./failure.ts";
import { isDeno } from "./storage_url.ts";

/** The packages, with the major versions that Deno fetches where the project has none of its own. */
const VERSIONS = {
  "@aws-sdk/client-dynamodb": "3",
  "@deno/kv": "0.14",
  "@upstash/redis": "1",
  "ioredis": "6",
  "mongodb": "7",
  "postgres": "3",
} as const;

/** What a package exports, also where it came as CommonJS. */
export type Exports = Readonly<Record<string, unknown>>;

/**
 * Loads a package: the one of the project, and under Deno otherwise the one of npm, by the version above.
 *
 * @param name the package
 * @returns its exports
 * @throws {Failure} with status 74 and what to install, if it is not there
 */
export async function load(name: keyof typeof VERSIONS): Promise<Exports> {
  // Computed, so that bundlers leave the packages out and nothing is fetched that is not used.
  const places = isDeno()
    ? [() => name, () => `npm:${name}@${VERSIONS[name]}`]
    : [() => name, () => inProject(name)];
  for (const place of places) {
    try {
      const module: Exports = await import(place());
      const { default: whole } = module;
      return typeof whole === "object" && whole !== null ? { ...whole, ...module } : module;
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }
  throw new Failure(
    EXIT.storage,
    `Cannot load the package "${name}", which this storage needs: run "${install(name)}"`,
  );
}

/** For a command line that is installed beside the project, not in it. */
function inProject(name: string): string {
  return pathToFileURL(createRequire(join(process.cwd(), "_")).resolve(name)).href;
}

function isMissing(error: unknown): boolean {
  const { code, message } = error as { readonly code?: unknown; readonly message?: unknown };
  return code === "ERR_MODULE_NOT_FOUND" || code === "MODULE_NOT_FOUND" ||
    /not a dependency|Could not find|Cannot find/.test(`${message}`);
}

function install(name: string): string {
  if (isDeno()) return `deno add npm:${name}`;
  return "Bun" in globalThis ? `bun add ${name}` : `npm install ${name}`;
}
