/**
 * An outbox relay: one process at a time sends what others have written into a table, and marks it as sent
 * in a transaction that the lease guards. A relay that was frozen and replaced marks nothing.
 */
import { type Lease, Lock } from "@holdfast/lock";
import { fenced, postgresJs, PostgresStorage } from "@holdfast/lock/postgres";
import type { Sql } from "postgres";

/** Sends one batch; resolves to how many messages it was. */
export async function relayOnce(
  sql: Sql,
  storage: PostgresStorage,
  lease: Lease,
  send: (body: string, fence: number) => Promise<void>,
): Promise<number> {
  const rows = await sql`SELECT id, body FROM outbox WHERE sent_at IS NULL ORDER BY id LIMIT 100`;
  for (const { id, body } of rows) {
    lease.assertHeld();
    await send(body, lease.fencingToken);
    await fenced(storage, lease, (check) =>
      sql.begin(async (tx) => {
        await tx.unsafe(check.text, check.values);
        await tx`UPDATE outbox SET sent_at = now() WHERE id = ${id}`;
      }));
  }
  return rows.length;
}

/** Relays until `signal` aborts, on whichever process holds the lock. */
export async function relay(
  sql: Sql,
  send: (body: string, fence: number) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const storage = new PostgresStorage(postgresJs(sql));
  await storage.migrate();
  const lock = new Lock({ storage, name: "outbox", ttlMs: 10_000 });
  while (!signal.aborted) {
    await lock.with(async (lease) => {
      while (!signal.aborted && await relayOnce(sql, storage, lease, send) > 0);
    }, { signal });
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
