/**
 * The products that are a file.
 *
 * @module
 */
import { DenoKvStorage } from "../../src/storage/deno_kv.ts";
import { SqliteStorage } from "../../src/storage/sqlite.ts";
import { KvSpy } from "../../tests/support/kv_spy.ts";
import { openSqlite } from "../../tests/support/sqlite_subject.ts";
import { openKv } from "../open_kv.ts";
import { ABSENT, type Bare, type Product, type Running } from "./product.ts";

/** A folder that ends with its product. */
async function folder(): Promise<Running> {
  const path = await Deno.makeTempDir({ prefix: "holdfast-bench-" });
  return {
    place: `${path}/file`,
    [Symbol.asyncDispose]: () => Deno.remove(path, { recursive: true }),
  };
}

/** Asks a file again that another process has locked. */
async function patiently<T>(work: () => T | Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof Error && error.message.includes("locked"))) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1 + 4 * Math.random()));
    }
  }
}

/** A SQLite file with write-ahead logging. */
export const sqlite: Product = {
  name: "SQLite",
  unit: "transactions",
  async start() {
    const running = await folder();
    const db = await openSqlite(running.place);
    db.prepare("PRAGMA journal_mode = WAL").get();
    db.prepare("CREATE TABLE bare (key TEXT PRIMARY KEY, v INTEGER NOT NULL)").run();
    await new SqliteStorage(db).execute("makes the table", { type: "inspect" });
    db.close();
    return running;
  },
  async open(place, pollMs) {
    const [leases, data] = [await openSqlite(place), await openSqlite(place)];
    let count = 0;
    const counted = {
      prepare(sql: string) {
        if (sql.startsWith("BEGIN")) count++;
        return leases.prepare(sql);
      },
      get isTransaction() {
        return leases.isTransaction!;
      },
    };
    data.prepare("PRAGMA busy_timeout = 5000").get();
    const read = data.prepare("SELECT v FROM bare WHERE key = ?");
    const insert = data.prepare("INSERT INTO bare VALUES (?, ?) ON CONFLICT DO NOTHING");
    const update = data.prepare("UPDATE bare SET v = ? WHERE key = ? AND v = ?");
    const put = data.prepare("INSERT OR REPLACE INTO bare VALUES (?, ?)");
    const bare: Bare = {
      read: (key) =>
        patiently(() => {
          const row = read.get(key) as { v: number } | undefined;
          return row ? { value: row.v, version: row.v } : ABSENT;
        }),
      swap: (key, value, version) =>
        patiently(() => {
          const result = version === undefined
            ? insert.run(key, value)
            : update.run(value, key, Number(version));
          const { changes } = result as { changes: number };
          return changes > 0 ? { value, version: value } : undefined;
        }),
      put: (key, value) => patiently(() => put.run(key, value)),
    };
    return {
      storage: new SqliteStorage(counted, { pollMs }),
      bare,
      requests: () => count,
      close: () => [leases, data].forEach((db) => db.close()),
    };
  },
};

/** A Deno KV file. */
export const denoKv: Product = {
  name: "Deno KV (file)",
  unit: "requests",
  async start() {
    const running = await folder();
    (await openKv(running.place)).close();
    return running;
  },
  async open(place, pollMs) {
    const kv = await openKv(place);
    const spy = new KvSpy(kv);
    const numberOf = (value: unknown) => typeof value === "number" ? value : 0;
    const bare: Bare = {
      read: (key) =>
        patiently(async () => {
          const { value, versionstamp: version } = await kv.get(["bare", key]);
          return { value: numberOf(value), version };
        }),
      swap: (key, value, version) =>
        patiently(async () => {
          const versionstamp = (version ?? null) as string | null;
          const at = ["bare", key];
          const done = await kv.atomic().check({ key: at, versionstamp }).set(at, value).commit();
          return done.ok ? { value, version: done.versionstamp } : undefined;
        }),
      put: (key, value) => patiently(() => kv.set(["bare", key], value)),
    };
    return {
      storage: new DenoKvStorage(spy, { maxClockSkewMs: 0, pollMs }),
      bare,
      requests: () => spy.reads + spy.commits,
      close: () => kv.close(),
    };
  },
};
