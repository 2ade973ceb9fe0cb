/**
 * Checks the npm package's types as a user's compiler does, without Deno's: `deno task test:types`.
 *
 * Packs and installs the package beside the real clients, at the versions of `deno.json`, and runs
 * `tsc --strict --exactOptionalPropertyTypes` over every entry point, the README's first example, a file that
 * gives each client to its storage, and Bun's own clients. Prints one line for each, and ends with status 1 if
 * one does not hold.
 */
import config from "../deno.json" with { type: "json" };
import { buildNpmPackage } from "./build.ts";

/** Packages that are types alone, and the compilers: an older and a newer one than Deno's. */
const PACKAGES = [
  "@types/node@24.10.0",
  "@types/pg@8.23.1",
  "bun-types@1.4.5",
  "typescript-5@npm:typescript@5.9.3",
  "typescript-7@npm:typescript@7.0.2",
];

const COMPILERS = ["typescript-5", "typescript-7"];

/** Clients of `deno.json` that are only for tests. */
const NO_CLIENTS = ["@std/assert", "esbuild", "fast-check", "miniflare", "playwright-core"];

const OPTIONS = {
  strict: true,
  exactOptionalPropertyTypes: true,
  noEmit: true,
  module: "nodenext",
  target: "es2022",
  lib: ["es2022", "esnext.disposable", "dom"],
};

/** Only in Bun, whose types are not those of Node. */
const BUN = `
import { RedisClient } from "bun";
import { Database } from "bun:sqlite";
import { bunRedis, RedisStorage } from "@holdfast/lock/redis";
import { SqliteStorage } from "@holdfast/lock/sqlite";

const redis = new RedisClient("redis://localhost");
new RedisStorage(bunRedis(redis, { subscriber: "duplicate" }));
new RedisStorage(bunRedis(redis, { subscriber: await redis.duplicate() }));
new SqliteStorage(new Database("locks.db"));
`;

/** Clients given to what takes another kind: if one were accepted, its types would be no types. */
const WRONG = `
import { DynamoDB } from "@aws-sdk/client-dynamodb";
import { openKv } from "@deno/kv";
import { PGlite } from "@electric-sql/pglite";
import { Redis as Upstash } from "@upstash/redis";
import { Redis } from "ioredis";
import { MongoClient } from "mongodb";
import { DatabaseSync } from "node:sqlite";
import { Pool } from "pg";
import postgres from "postgres";
import { createClient } from "redis";
import { DenoKvStorage } from "@holdfast/lock/deno-kv";
import { DynamoDbStorage } from "@holdfast/lock/dynamodb";
import { MongoDbStorage } from "@holdfast/lock/mongodb";
import { nodePg, pglite, postgresJs } from "@holdfast/lock/postgres";
import { ioredis, nodeRedis } from "@holdfast/lock/redis";
import { SqliteStorage } from "@holdfast/lock/sqlite";
import { UpstashStorage } from "@holdfast/lock/upstash";
// @ts-expect-error -- a Collection
new MongoDbStorage(new MongoClient("").db("app"));
// @ts-expect-error -- a DynamoDB
new DynamoDbStorage(new Pool(), { table: "leases" });
// @ts-expect-error -- a Redis of Upstash
new UpstashStorage(new DynamoDB({}));
// @ts-expect-error -- a Redis of ioredis
ioredis(createClient());
// @ts-expect-error -- a client of redis
nodeRedis(new Redis());
// @ts-expect-error -- a Pool
nodePg(Upstash.fromEnv());
// @ts-expect-error -- a PGlite
pglite(await openKv(""));
// @ts-expect-error -- a sql of postgres
postgresJs(new PGlite());
// @ts-expect-error -- a DatabaseSync
new SqliteStorage(postgres());
// @ts-expect-error -- a Kv
new DenoKvStorage(new DatabaseSync(""));
`;

/** What a project of one kind checks. */
interface Project {
  readonly name: string;
  readonly source: string;
  /** Global types. */
  readonly types: readonly string[];
  /** Types of clients have mistakes of their own; ours are checked where there is no client. */
  readonly skipLibCheck: boolean;
}

/** The first example of the README. */
async function readmeExample(): Promise<string> {
  const [, source] = /```ts\n(.*?)```/s.exec(await Deno.readTextFile("README.md")) ?? [];
  if (!source?.includes("await using")) throw new Error("The README must begin with an example");
  return source;
}

async function projects(): Promise<Project[]> {
  const entries = Object.keys(config.exports).map((entry) => config.name + entry.slice(1));
  const clients = await Deno.readTextFile("tests/types/clients.ts");
  return [
    {
      name: "every entry point",
      source: entries.map((entry, i) => `export * as e${i} from "${entry}";`).join("\n"),
      // The command line speaks of Node's streams.
      types: ["node"],
      skipLibCheck: false,
    },
    {
      name: "the README's first example",
      source: await readmeExample(),
      types: [],
      skipLibCheck: false,
    },
    { name: "the clients", source: clients, types: ["node"], skipLibCheck: true },
    { name: "clients of another kind", source: WRONG, types: ["node"], skipLibCheck: true },
    { name: "Bun's clients", source: BUN, types: ["bun-types"], skipLibCheck: true },
  ];
}

async function run(command: string, args: string[], cwd: string): Promise<string | undefined> {
  const { success, stdout, stderr } = await new Deno.Command(command, { args, cwd }).output();
  const text = [stdout, stderr].map((bytes) => new TextDecoder().decode(bytes)).join("").trim();
  return success ? undefined : text || "failed";
}

async function install(folder: string): Promise<void> {
  const tarball = await buildNpmPackage(folder);
  const clients = Object.entries(config.imports).filter(([name]) => !NO_CLIENTS.includes(name))
    .map(([, specifier]) => specifier.replace("npm:", ""));
  await Deno.writeTextFile(`${folder}/package.json`, `{ "type": "module", "private": true }`);
  const flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps"];
  const failure = await run("npm", ["install", ...flags, tarball, ...clients, ...PACKAGES], folder);
  if (failure) throw new Error(`Cannot install the package as npm must succeed: ${failure}`);
}

/** Checks one project with one compiler; resolves to whether it holds. */
async function check(folder: string, compiler: string, project: Project): Promise<boolean> {
  const { name, source, types, skipLibCheck } = project;
  const startMs = performance.now();
  const file = `${compiler}_${name.replaceAll(/\W/g, "_")}`;
  await Deno.writeTextFile(`${folder}/${file}.ts`, `${source}\nexport {};\n`);
  const compilerOptions = { ...OPTIONS, types, skipLibCheck };
  const tsconfig = JSON.stringify({ compilerOptions, files: [`${file}.ts`] }, null, 2);
  await Deno.writeTextFile(`${folder}/${file}.json`, tsconfig);
  const command = [`node_modules/${compiler}/bin/tsc`, "-p", `${file}.json`];
  const failure = await run("node", command, folder);
  const seconds = ((performance.now() - startMs) / 1000).toFixed(1);
  console.log(`${compiler}: ${name} ${failure ? `FAILED\n${failure}` : "ok"} (${seconds} s)`);
  return failure === undefined;
}

/** Checks every project with every compiler, two at a time. */
async function checkAll(folder: string): Promise<boolean[]> {
  const all = await projects();
  const work = COMPILERS.flatMap((compiler) =>
    all.map((project) => () => check(folder, compiler, project))
  );
  const results: boolean[] = [];
  const takeTurns = async (): Promise<void> => {
    for (let next; (next = work.shift()) !== undefined;) results.push(await next());
  };
  await Promise.all([takeTurns(), takeTurns()]);
  return results;
}

Deno.chdir(new URL("..", import.meta.url));
const folder = await Deno.makeTempDir({ prefix: "holdfast-types-" });
let results: boolean[];
try {
  await install(folder);
  results = await checkAll(folder);
} finally {
  await Deno.remove(folder, { recursive: true });
}
const passed = results.filter(Boolean).length;
const failed = results.length - passed;
console.log(`\n${failed === 0 ? "ok" : "FAILED"} | ${passed} passed | ${failed} failed`);
Deno.exit(failed === 0 && passed > 0 ? 0 : 1);
