/**
 * Storages that are a file, and Deno KV wherever it is.
 *
 * @module
 */
import { deserialize, serialize } from "node:v8";
import { DenoKvStorage, type KvClient, type KvKey } from "../storage/deno_kv.ts";
import { type SqliteDatabase, SqliteStorage } from "../storage/sqlite.ts";
import { usage } from "./failure.ts";
import { namesOf, type Opened, PREFIX, variable } from "./opened.ts";
import { type Exports, load } from "./packages.ts";
import { defaultFile, isDeno } from "./storage_url.ts";

/** `Deno.Kv`, and `Kv` of `@deno/kv`. */
interface Kv extends KvClient {
  list(selector: { prefix: KvKey }): AsyncIterable<{ readonly key: KvKey }>;
  close(): void;
}

type OpenKv = (path: string, options?: object) => Promise<Kv>;

export async function openKvFile(url: string): Promise<Opened> {
  const path = filePath(url) || defaultFile();
  return kvOpened(await (await findOpenKv())(path, V8), "local");
}

export async function openKvRemote(url: string): Promise<Opened> {
  variable("DENO_KV_ACCESS_TOKEN");
  const kv = await (await findOpenKv())(url.slice("kv+".length), V8);
  return kvOpened(kv, "remote");
}

/** Bun has these only by another name; values that the storage writes are bytes all the same. */
const V8 = { encodeV8: serialize, decodeV8: deserialize };

async function findOpenKv(): Promise<OpenKv> {
  if (!isDeno()) return (await load("@deno/kv"))["openKv"] as OpenKv;
  const { Deno } = globalThis as unknown as { Deno: { openKv?: OpenKv } };
  if (Deno.openKv) return (path) => Deno.openKv!(path);
  throw usage(
    `Cannot open Deno KV as Deno has it only with --unstable-kv: add it after "deno run"`,
  );
}

function kvOpened(kv: Kv, location: "local" | "remote"): Opened {
  return {
    storage: new DenoKvStorage(kv, { location }),
    async list() {
      const names: string[] = [];
      for await (const { key } of kv.list({ prefix: [PREFIX, "lock"] })) names.push(`${key[2]}`);
      return names;
    },
    close: () => kv.close(),
  };
}

/** `DatabaseSync` of `node:sqlite`, and `Database` of `bun:sqlite`. */
interface Sqlite extends SqliteDatabase {
  exec(sql: string): unknown;
  prepare(sql: string): ReturnType<SqliteDatabase["prepare"]> & { all(): unknown[] };
  close(): void;
}

export async function openSqlite(url: string): Promise<Opened> {
  const path = filePath(url);
  if (!path) throw usage(`Cannot use "${url}" as it must name a file: sqlite:PATH`);
  const [from, name] = "Bun" in globalThis
    ? ["bun:sqlite", "Database"]
    : ["node:sqlite", "DatabaseSync"];
  // Computed, because each runtime knows only one of them.
  const module: Exports = await import(from!).catch(() => {
    throw usage(`Cannot use "${url}" as this runtime has no SQLite: use Node 22.16, Bun or Deno`);
  });
  const db = new (module[name!] as new (path: string) => Sqlite)(path);
  try {
    db.exec("PRAGMA journal_mode = WAL");
  } catch {
    // Somebody writes to it at this moment; it works in any mode.
  }
  return {
    storage: new SqliteStorage(db),
    list: () => Promise.resolve(namesIn(db)),
    close: () => db.close(),
  };
}

/** The table is made by the first command on a lock. */
function namesIn(db: Sqlite): string[] {
  const tables = db.prepare(`SELECT name FROM sqlite_master WHERE name = '${PREFIX}'`).all();
  return tables.length === 0 ? [] : namesOf(db.prepare(`SELECT name FROM "${PREFIX}"`).all());
}

/** What comes after the scheme, where that is a path. */
function filePath(url: string): string {
  const path = url.slice(url.indexOf(":") + 1);
  if (!path.startsWith(":memory:")) return path;
  throw usage(`Cannot use "${url}" as nobody else can see what is in the memory of this process`);
}
