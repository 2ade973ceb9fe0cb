import { withService } from "../../scripts/services.ts";
import { fenced, PostgresStorage } from "../../src/storage/postgres.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { drivers } from "../support/postgres.ts";

await withService("postgres", async ({ test, service }) => {
  for (const driver of drivers) {
    await testLeaseStorage({
      name: `postgres (${driver.name})`,
      test,
      setup: async () => {
        const one = driver.connect(service().url);
        const two = driver.connect(service().url);
        const { query } = two;
        const storage = new PostgresStorage(one.client);
        await storage.migrate();
        await query("CREATE TABLE IF NOT EXISTS resource (id text PRIMARY KEY, value text)");
        return {
          clients: [storage, new PostgresStorage(two.client)],
          fencedWrite: (lease, resource, value) =>
            fenced(
              storage,
              lease,
              ({ text, values }) =>
                one.transact("READ COMMITTED", async (query) => {
                  await query(text, values);
                  await query(
                    "INSERT INTO resource VALUES ($1, $2) " +
                      "ON CONFLICT (id) DO UPDATE SET value = excluded.value",
                    [resource, value],
                  );
                }),
            ),
          readResource: async (resource) => {
            const [row] = await query("SELECT value FROM resource WHERE id = $1", [resource]);
            return row?.["value"] as string | undefined;
          },
          writeRaw: async (name, text) => {
            await query(
              "INSERT INTO holdfast VALUES ($1, gen_random_uuid(), $2, 0, now()) " +
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = excluded.version",
              [name, text],
            );
          },
          readRaw: async (name) => {
            const [row] = await query("SELECT value FROM holdfast WHERE name = $1", [name]);
            return row?.["value"] as string | undefined;
          },
          forget: async (name) => {
            await query("DELETE FROM holdfast WHERE name = $1", [name]);
          },
          close: async () => {
            await one[Symbol.asyncDispose]();
            await two[Symbol.asyncDispose]();
          },
        };
      },
    });
  }
});
