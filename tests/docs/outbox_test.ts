import { assertEquals, assertRejects } from "@std/assert";
import postgres from "postgres";
import { Lock, StaleFenceError } from "../../mod.ts";
import { relay, relayOnce } from "../../docs/examples/outbox.ts";
import { withService } from "../../scripts/services.ts";
import { postgresJs, PostgresStorage } from "../../src/storage/postgres.ts";

await withService("postgres", ({ test, service }) => {
  test("outbox: every message is sent and marked, by one relay at a time", async () => {
    const sql = postgres(service().url, { max: 8 });
    try {
      await sql`DROP TABLE IF EXISTS outbox`;
      await sql`CREATE TABLE outbox (id serial PRIMARY KEY, body text, sent_at timestamptz)`;
      for (let i = 0; i < 10; i++) await sql`INSERT INTO outbox (body) VALUES (${`m${i}`})`;
      const sent: string[] = [];
      const stop = new AbortController();
      const send = async (body: string) => {
        sent.push(body);
        await new Promise((resolve) => setTimeout(resolve, 5));
      };
      const relays = [1, 2].map(() =>
        relay(sql, send, stop.signal).catch((error) => {
          if (!stop.signal.aborted) throw error;
        })
      );
      const open = async () => (await sql`SELECT id FROM outbox WHERE sent_at IS NULL`).length;
      while (await open() > 0) await new Promise((resolve) => setTimeout(resolve, 20));
      stop.abort();
      await Promise.all(relays);
      assertEquals(sent, Array.from({ length: 10 }, (_, i) => `m${i}`));
    } finally {
      await sql.end();
    }
  });

  // covers: G3
  test("outbox: a relay that lost its lease marks nothing", async () => {
    const sql = postgres(service().url, { max: 8 });
    try {
      await sql`DROP TABLE IF EXISTS outbox`;
      await sql`CREATE TABLE outbox (id serial PRIMARY KEY, body text, sent_at timestamptz)`;
      await sql`INSERT INTO outbox (body) VALUES ('once')`;
      const storage = new PostgresStorage(postgresJs(sql));
      await storage.migrate();
      const lease = await new Lock({ storage, name: "outbox", autoRenew: false }).acquire();
      await assertRejects(
        () =>
          relayOnce(sql, storage, lease, async () => {
            await new Lock({ storage, name: "outbox" }).forceRelease();
          }),
        StaleFenceError,
      );
      const [row] = await sql`SELECT sent_at FROM outbox`;
      assertEquals(row!.sent_at, null);
      await lease.release();
    } finally {
      await sql.end();
    }
  });
});
