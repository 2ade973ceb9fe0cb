/**
 * Connections to the storages that are files: Deno KV and SQLite.
 *
 * @module
 */
import { DatabaseSync } from "node:sqlite";
import { DenoKvStorage, fencedCommit } from "../../src/storage/deno_kv.ts";
import { fenceCheck, SqliteStorage } from "../../src/storage/sqlite.ts";
import { openKv } from "../open_kv.ts";
import { type Connect, GUARDED } from "./client.ts";
import { pause } from "./terms.ts";

/** Deno KV in a file. */
export const connectDenoKv: Connect = async (path) => {
  const kv = await openKv(path);
  return {
    storage: new DenoKvStorage(kv, { maxClockSkewMs: 0 }),
    read: async () => (await kv.get<string>([GUARDED])).value,
    write: async (id, lease) => {
      if (!lease) return void await kv.set([GUARDED], id);
      const { ok } = await fencedCommit(kv, lease, (op) => op.set([GUARDED], id));
      if (!ok) throw new Error("A commit without checks of its own failed");
    },
    close: () => Promise.resolve(kv.close()),
  };
};

/** How often a file is tried that another process writes to. */
const TRIES = 400;

/** SQLite in a file. */
export const connectSqlite: Connect = async (path) => {
  const db = new DatabaseSync(path);
  /** Waits without blocking the event loop, as a busy time-out of SQLite would. */
  const whenFree = async <T>(work: () => T): Promise<T> => {
    for (let tries = 1;; tries++) {
      try {
        return work();
      } catch (error) {
        const isBusy = error instanceof Error && error.message.includes("database is locked");
        if (!isBusy || tries === TRIES) throw error;
        await pause(10 * Math.random());
      }
    }
  };
  db.exec("PRAGMA busy_timeout = 0");
  await whenFree(() => db.prepare("PRAGMA journal_mode = wal").get());
  await whenFree(() => db.exec("CREATE TABLE IF NOT EXISTS resource (id TEXT)"));
  const storage = new SqliteStorage(db);
  return {
    storage,
    read: () =>
      whenFree(() =>
        (db.prepare("SELECT id FROM resource").get() as { id: string } | undefined)?.id ?? null
      ),
    write: (id, lease) =>
      whenFree(() => {
        db.exec("BEGIN IMMEDIATE");
        try {
          if (lease) fenceCheck(storage, lease);
          db.exec("DELETE FROM resource");
          db.prepare("INSERT INTO resource VALUES (?)").run(id);
          db.exec("COMMIT");
        } catch (error) {
          if (db.isTransaction) db.exec("ROLLBACK");
          throw error;
        }
      }),
    close: () => Promise.resolve(db.close()),
  };
};
