/**
 * A process of its own on a SQLite file, in whatever runtime: `sqlite_worker.ts FILE count NAME SECTIONS`
 * adds to a counter under a lock, `sqlite_worker.ts FILE hold NAME TTL_MS` takes a lock and keeps it.
 *
 * @module
 */
import process from "node:process";
import { Lock } from "../../src/core/lock.ts";
import { fenceCheck, SqliteStorage } from "../../src/storage/sqlite.ts";
import { openSqlite } from "./sqlite_subject.ts";

async function count(file: string, name: string, sections: number): Promise<void> {
  const leases = await openSqlite(file);
  const data = await openSqlite(file);
  data.prepare("PRAGMA busy_timeout = 5000").get();
  const storage = new SqliteStorage(leases);
  const lock = new Lock({ storage, name, ttlMs: 20_000 });
  for (let i = 0; i < sections; i++) {
    await lock.with(async (lease) => {
      const { n } = data.prepare("SELECT n FROM counter").get() as { n: number };
      await new Promise((resolve) => setTimeout(resolve, 1));
      data.prepare("BEGIN IMMEDIATE").run();
      fenceCheck(storage, lease, data);
      data.prepare("UPDATE counter SET n = ?").run(n + 1);
      data.prepare("COMMIT").run();
    });
  }
  for (const db of [leases, data]) db.close();
}

async function hold(file: string, name: string, ttlMs: number): Promise<void> {
  const storage = new SqliteStorage(await openSqlite(file));
  const lease = await new Lock({ storage, name, ttlMs }).acquire();
  lease.hold();
  lease.signal.addEventListener("abort", () => console.log("lost"));
  console.log(lease.fencingToken);
  setInterval(() => {}, 1000);
}

const [file, what, name, amount] = process.argv.slice(2);
if (what === "count") await count(file!, name!, Number(amount));
if (what === "hold") await hold(file!, name!, Number(amount));
