import { PGlite } from "@electric-sql/pglite";
import { fenced, pglite, PostgresStorage } from "../../src/storage/postgres.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";

/** One for all tests, because it takes seconds to start. */
let db: PGlite;

Deno.test.beforeAll(async () => {
  db = new PGlite();
  await new PostgresStorage(pglite(db)).migrate();
  await db.exec("CREATE TABLE resource (id text PRIMARY KEY, value text)");
});

Deno.test.afterAll(() => db.close());

await testLeaseStorage({
  name: "postgres (PGlite)",
  // PGlite has timers of its own.
  test: (name, fn) => Deno.test({ name, fn, sanitizeOps: false, sanitizeResources: false }),
  setup: () => {
    const clients = [new PostgresStorage(pglite(db)), new PostgresStorage(pglite(db))] as const;
    return {
      clients,
      fencedWrite: (lease, resource, value) =>
        fenced(clients[0], lease, ({ text, values }) =>
          db.transaction(async (tx) => {
            await tx.query(text, values);
            await tx.query(
              "INSERT INTO resource VALUES ($1, $2) " +
                "ON CONFLICT (id) DO UPDATE SET value = excluded.value",
              [resource, value],
            );
          })),
      readResource: async (resource) => {
        const { rows: [row] } = await db.query<{ value: string }>(
          "SELECT value FROM resource WHERE id = $1",
          [resource],
        );
        return row?.value;
      },
      writeRaw: async (name, text) => {
        await db.query(
          "INSERT INTO holdfast VALUES ($1, gen_random_uuid(), $2, 0, now()) " +
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = excluded.version",
          [name, text],
        );
      },
      readRaw: async (name) => {
        const { rows: [row] } = await db.query<{ value: string }>(
          "SELECT value FROM holdfast WHERE name = $1",
          [name],
        );
        return row?.value;
      },
      forget: async (name) => {
        await db.query("DELETE FROM holdfast WHERE name = $1", [name]);
      },
      close: () => Promise.resolve(),
    };
  },
});
