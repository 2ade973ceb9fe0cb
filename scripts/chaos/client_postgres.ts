/**
 * Connections to Postgres.
 *
 * @module
 */
import postgres from "postgres";
import { fenced, postgresJs, PostgresStorage } from "../../src/storage/postgres.ts";
import { type Connected, drivers, type Query } from "../../tests/support/postgres.ts";
import { type Connect, GUARDED } from "./client.ts";

/**
 * By the package `postgres`. It is told not to fetch types: that request of its own has nobody to hear of its
 * failure, so a server that ends then ends the process (porsager/postgres, issues 1192 and 1223).
 */
function byPostgresJs(url: string): Connected {
  const sql = postgres(url, { max: 4, fetch_types: false, onnotice: () => {} });
  const queryOn = (on: postgres.Sql | postgres.TransactionSql): Query => async (text, values) =>
    await on.unsafe(text, [...values ?? []]);
  return {
    client: postgresJs(sql),
    query: queryOn(sql),
    transact: async <T>(isolation: string, work: (query: Query) => Promise<T>) =>
      await sql.begin(`ISOLATION LEVEL ${isolation}`, (tx) => work(queryOn(tx))) as T,
    [Symbol.asyncDispose]: () => sql.end({ timeout: 0.1 }),
  };
}

const SET =
  "INSERT INTO resource VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET id = excluded.id";

/** Postgres, by each of its two libraries. */
export const connectPostgres: Connect = async (url, worker) => {
  const byPg = drivers.find(({ name }) => name === "pg")!;
  const connected = worker % 2 === 0 ? byPostgresJs(url) : byPg.connect(url);
  const { client, query, transact } = connected;
  const storage = new PostgresStorage(client);
  try {
    await storage.migrate();
    // Of many who make it at once only one succeeds.
    await query("CREATE TABLE IF NOT EXISTS resource (name text PRIMARY KEY, id text)").catch(() =>
      query("SELECT FROM resource")
    );
  } catch (error) {
    await connected[Symbol.asyncDispose]();
    throw error;
  }
  return {
    storage,
    read: async () => {
      const [row] = await query("SELECT id FROM resource WHERE name = $1", [GUARDED]);
      return row ? String(row["id"]) : null;
    },
    write: async (id, lease) => {
      if (!lease) return void await query(SET, [GUARDED, id]);
      await fenced(
        storage,
        lease,
        ({ text, values }) =>
          transact("READ COMMITTED", async (query) => {
            await query(text, values);
            await query(SET, [GUARDED, id]);
          }),
      );
    },
    close: () => Promise.resolve(connected[Symbol.asyncDispose]()),
  };
};
