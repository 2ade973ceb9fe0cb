/**
 * The contract suite's view of a SQLite file, in every runtime that has SQLite.
 *
 * @module
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fenceCheck, type SqliteDatabase, SqliteStorage } from "../../src/storage/sqlite.ts";
import type { ContractSubject } from "../../src/testing/mod.ts";

/** A database of whatever runtime. */
export type Sqlite = SqliteDatabase & { close(): void };

/** Opens a file with what the runtime has. */
export async function openSqlite(file: string): Promise<Sqlite> {
  const isBun = "Bun" in globalThis;
  // Deno looks for modules of literal names.
  const [module, name] = isBun ? ["bun:sqlite", "Database"] : ["node:sqlite", "DatabaseSync"];
  return new (await import(module!))[name!](file);
}

/** Two connections to a new file with the given journal mode. */
export async function sqliteSubject(journal: "wal" | "delete"): Promise<ContractSubject> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-sqlite-"));
  const open = async (): Promise<Sqlite> => {
    const db = await openSqlite(join(folder, "leases.db"));
    db.prepare(`PRAGMA journal_mode = ${journal}`).get();
    return db;
  };
  const [one, two] = [await open(), await open()];
  one.prepare("CREATE TABLE resource (id TEXT PRIMARY KEY, value TEXT)").run();
  const storage = new SqliteStorage(one);
  await storage.execute("makes the table", { type: "inspect" });
  const value = (sql: string, key: string): string | undefined =>
    (two.prepare(sql).get(key) as { value: string } | null | undefined)?.value;
  return {
    clients: [storage, new SqliteStorage(two)],
    // deno-lint-ignore require-await -- a stale fence rejects
    fencedWrite: async (lease, resource, value) => {
      one.prepare("BEGIN IMMEDIATE").run();
      try {
        fenceCheck(storage, lease);
        one.prepare("INSERT OR REPLACE INTO resource VALUES (?, ?)").run(resource, value);
        one.prepare("COMMIT").run();
      } catch (error) {
        one.prepare("ROLLBACK").run();
        throw error;
      }
    },
    readResource: (resource) =>
      Promise.resolve(value("SELECT value FROM resource WHERE id = ?", resource)),
    writeRaw: (name, text) => {
      two.prepare("INSERT OR REPLACE INTO holdfast VALUES (?, ?, 0)").run(name, text);
      return Promise.resolve();
    },
    readRaw: (name) => Promise.resolve(value("SELECT value FROM holdfast WHERE name = ?", name)),
    forget: (name) => {
      two.prepare("DELETE FROM holdfast WHERE name = ?").run(name);
      return Promise.resolve();
    },
    close: () => {
      for (const db of [one, two]) db.close();
      rmSync(folder, { recursive: true });
      return Promise.resolve();
    },
  };
}
