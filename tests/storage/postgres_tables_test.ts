import { assert, assertEquals, assertThrows } from "@std/assert";
import postgres from "postgres";
import { freePort, withService } from "../../scripts/services.ts";
import { Lock } from "../../src/core/lock.ts";
import { type PostgresClient, PostgresStorage } from "../../src/storage/postgres.ts";
import { acquire, evict, inspect, release, renew, token, uniqueName } from "../support/commands.ts";
import {
  drivers,
  grant,
  guardsOf,
  observed,
  openedOn,
  storageErrorOf,
} from "../support/postgres.ts";

const [withPostgres, withPg] = drivers as [typeof drivers[0], typeof drivers[0]];

await withService("postgres", ({ test, service }) => {
  const opened = openedOn(() => service().url);

  test("options of a client that change what rows look like change nothing", async () => {
    await using connected = withPostgres.connect(service().url, { transform: postgres.camel });
    const [row] = await connected.query("SELECT 1 AS is_one");
    assertEquals(row, { isOne: 1 });
    const storage = new PostgresStorage(connected.client);
    await storage.migrate();
    const lease = await new Lock({ storage, name: uniqueName("camel") }).acquire();
    await lease.renew();
    assertEquals(await lease.release(), true);
  });

  test("every statement may run on another connection, as through a transaction pooler", async () => {
    const query: PostgresClient["query"] = async (text, values) => {
      await using connected = withPg.connect(service().url, { max: 1 });
      return await connected.query(text, values);
    };
    const storage = new PostgresStorage({ query });
    await storage.migrate();
    const name = uniqueName("pooled");
    const lock = new Lock({ storage, name });
    const lease = await lock.acquire();
    assertEquals(await new Lock({ storage, name, gate: false }).tryAcquire(), null);
    await lease.renew();
    assertEquals(await lease.release(), true);
  });

  test("migrate() may be run by many at once, and again by a role that may create nothing", async () => {
    const schema = `many "x" $$ '${crypto.randomUUID().slice(0, 8)}`;
    const table = `l"é`;
    const all = drivers.flatMap((driver) =>
      [1, 2, 3, 4].map(() => driver.connect(service().url, { max: 2 }))
    );
    try {
      const storages = all.map(({ client }) => new PostgresStorage(client, { schema, table }));
      await Promise.all(storages.flatMap((storage) => [storage.migrate(), storage.migrate()]));
      const name = uniqueName("migrated");
      const mine = await grant(storages[0]!, name);
      await storages[7]!.migrate();
      assertEquals((await storages[7]!.execute(name, acquire(token()))).type, "held");

      const { query } = all[0]!;
      const role = `poor_${crypto.randomUUID().slice(0, 8)}`;
      await query(`CREATE ROLE ${role} LOGIN`);
      await query(`GRANT USAGE ON SCHEMA "${schema.replaceAll('"', '""')}" TO ${role}`);
      const tables = [`l""é`, `l""é_guard`].map((t) => `"${schema.replaceAll('"', '""')}"."${t}"`);
      await query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables.join(", ")} TO ${role}`);
      await using poor = withPostgres.connect(service().url.replace("postgres@", `${role}@`));
      const theirs = new PostgresStorage(poor.client, { schema, table });
      await theirs.migrate();
      assertEquals(await theirs.execute(name, renew(mine.token, mine.fence)), { type: "renewed" });
      assertEquals((await theirs.execute(name, release(mine.token))).freed, true);
    } finally {
      for (const connected of all) await connected[Symbol.asyncDispose]();
    }
  });

  test("storages with different tables do not see each other", () =>
    opened(async (storage, { client }) => {
      const other = new PostgresStorage(client, { table: "holdfast_other" });
      await other.migrate();
      const name = uniqueName("table");
      await grant(storage, name);
      await grant(other, name);
    }));

  test("schema and table are checked", () => {
    const client: PostgresClient = { query: () => Promise.resolve([]) };
    const long = "x".repeat(52);
    for (
      const [options, message] of [
        [
          { schema: "" },
          "Cannot use schema as it must have 1 to 63 UTF-8 bytes: current value has 0",
        ],
        [
          { table: long },
          "Cannot use table as it must have 1 to 51 UTF-8 bytes: current value has 52",
        ],
      ] as const
    ) {
      assertThrows(() => new PostgresStorage(client, options), RangeError, message);
    }
  });

  // covers: G12
  test("a hand-edited or truncated record is an error that names the key, and stays as it is", () =>
    opened(async (storage, { query }) => {
      const name = uniqueName("foreign");
      const mine = await grant(storage, name);
      const read = async () =>
        (await query("SELECT value, version::text FROM holdfast WHERE name = $1", [name]))[0]!;
      const { value } = await read();
      for (const text of ["", "hello", `${value}`.slice(0, -3), `${value}`.replace("h ", "h  ")]) {
        await query("UPDATE holdfast SET value = $2 WHERE name = $1", [name, text]);
        const before = await read();
        for (
          const command of [
            acquire(token()),
            renew(mine.token, mine.fence),
            release(mine.token),
            inspect,
            evict(),
          ]
        ) {
          assertEquals(await storageErrorOf(storage.execute(name, command)), [
            `Cannot use key "${name}" as its value is not a Holdfast record`,
            false,
          ]);
        }
        assertEquals(await read(), before);
      }
    }));

  // covers: S4.2
  test("a fault says in one sentence what to do, and whether asking again may help", () =>
    opened(async (_, { query, client }) => {
      const tables = (table: string) => `"public"."${table}" and "public"."${table}_guard"`;
      const missing = new PostgresStorage(client, { table: "missing" });
      assertEquals(await storageErrorOf(missing.execute("x", acquire(token()))), [
        `Cannot read key "x" as ${tables("missing")} are missing or have another shape: ` +
        "run migrate() (SQLSTATE 42P01)",
        false,
      ]);
      await query("CREATE TABLE other (name text)");
      const other = new PostgresStorage(client, { table: "other" });
      assertEquals(await storageErrorOf(other.execute("x", inspect)), [
        `Cannot read key "x" as ${tables("other")} are missing or have another shape: ` +
        "run migrate() (SQLSTATE 42703)",
        false,
      ]);
      await query("CREATE ROLE nobody LOGIN");
      await using nobody = withPg.connect(service().url.replace("postgres@", "nobody@"));
      const refused = new PostgresStorage(nobody.client);
      const rights = `the role lacks rights: grant SELECT, INSERT, UPDATE, DELETE on ${
        tables("holdfast")
      } (SQLSTATE 42501)`;
      assertEquals(await storageErrorOf(refused.execute("x", inspect)), [
        `Cannot read key "x" as ${rights}`,
        false,
      ]);
      await query("GRANT SELECT ON holdfast, holdfast_guard TO nobody");
      assertEquals(await storageErrorOf(refused.execute("x", acquire(token()))), [
        `Cannot write key "x" as ${rights}`,
        false,
      ]);
      const nothing = new PostgresStorage(nobody.client, { schema: "theirs" });
      assertEquals(await storageErrorOf(nothing.migrate()), [
        `Cannot migrate table "theirs"."holdfast" as the role lacks rights: grant SELECT, INSERT, ` +
        `UPDATE, DELETE on "theirs"."holdfast" and "theirs"."holdfast_guard" (SQLSTATE 42501)`,
        false,
      ]);
    }));

  for (const driver of drivers) {
    test(`${driver.name}: a server that refuses or is not there is an error that says so`, async () => {
      const errorAt = async (url: string, parameters = {}) => {
        await using connected = driver.connect(url, { parameters });
        const storage = new PostgresStorage(connected.client);
        return await storageErrorOf(storage.execute("x", acquire(token())));
      };
      const { url } = service();
      assertEquals(await errorAt(url.replace("postgres@", "stranger@")), [
        'Cannot read key "x" as the server refuses the login: correct user and password ' +
        "(SQLSTATE 28000)",
        false,
      ]);
      assertEquals(await errorAt(url.replace(/postgres$/, "absent")), [
        'Cannot read key "x" as the database does not exist: create it, or correct its name ' +
        "(SQLSTATE 3D000)",
        false,
      ]);
      assertEquals(await errorAt(url.replace(/:\d+\//, `:${await freePort()}/`)), [
        'Cannot read key "x" as the connection to the server failed',
        true,
      ]);
      await opened(() => Promise.resolve(), driver);
      assertEquals(await errorAt(url, { default_transaction_read_only: "on" }), [
        'Cannot write key "x" as the server is a read-only replica: connect to the primary ' +
        "(SQLSTATE 25006)",
        true,
      ]);
    });
  }

  test("a replica is refused before it is believed", () =>
    opened(async (storage, { client }) => {
      const name = uniqueName("replica");
      await grant(storage, name);
      const replica = new PostgresStorage({
        query: async (text, values) =>
          (await client.query(text, values)).map((row) => ({ ...row, replica: "true" })),
      });
      assertEquals(await storageErrorOf(replica.execute(name, acquire(token()))), [
        `Cannot read key "${name}" as the server is a read-only replica: connect to the primary`,
        true,
      ]);
    }));

  test("a client that was closed is an error that stays", async () => {
    const connected = withPostgres.connect(service().url);
    const storage = new PostgresStorage(connected.client);
    await storage.migrate();
    await connected[Symbol.asyncDispose]();
    assertEquals(await storageErrorOf(storage.execute("x", inspect)), [
      'Cannot read key "x" as the client was closed: end it after the leases',
      false,
    ]);
  });

  test("a record is created only soon after it was seen to be absent", () =>
    opened(async (_, { client }) => {
      let statements = 0;
      const late = observed(client, (text, values) => {
        statements++;
        // As if the first create had been on its way for longer than a record stays purgeable.
        if (text.includes("purged") && statements === 2) {
          (values as string[])[1] = `${BigInt(values[1]!) - 31_000_000n}`;
        }
      });
      const storage = new PostgresStorage(late);
      await grant(storage, uniqueName("absent"));
      assertEquals(statements, 4);
    }));

  test("each new name removes two records that are out of use, and never a live one", () =>
    opened(async (_, { client, query }) => {
      const storage = new PostgresStorage(client, { table: "purged", retentionMs: 0 });
      await storage.migrate();
      const live = await grant(storage, "live");
      for (const name of ["a", "b", "c"]) {
        const { token: mine } = await grant(storage, name, { ttlMs: 10 });
        if (name === "a") await storage.execute(name, release(mine));
      }
      const names = async (table: string) =>
        (await query(`SELECT name FROM ${table} ORDER BY name`)).map((row) => row["name"]);
      await grant(storage, "d");
      assertEquals(await names("purged"), ["a", "b", "c", "d", "live"]);
      const [row] = await query(
        "SELECT retain_until > now() AND retain_until <= now() + interval '1 h 1 min' AS is_right " +
          "FROM purged WHERE name = 'a'",
      );
      assertEquals(row, { is_right: true });
      await query("UPDATE purged SET retain_until = now() - interval '59 s' WHERE name = 'a'");
      await query(
        "UPDATE purged SET retain_until = now() - interval '61 s' WHERE name IN ('b', 'c')",
      );
      await grant(storage, "e");
      assertEquals(await names("purged"), ["a", "d", "e", "live"]);
      assertEquals(await names("purged_guard"), ["d", "e", "live"]);
      await grant(storage, "f");
      assertEquals(await names("purged"), ["a", "d", "e", "f", "live"]);
      assertEquals((await storage.execute("live", renew(live.token, live.fence))).type, "renewed");
    }));

  // covers: G2
  test("a lost record starts with a larger fence, and takes the guards of its old holders along", () =>
    opened(async (storage, connected) => {
      const name = uniqueName("lost");
      const old = await grant(storage, name);
      await connected.query("DELETE FROM holdfast WHERE name = $1", [name]);
      const mine = await grant(storage, name);
      assert(mine.fence > old.fence);
      assertEquals(await guardsOf(connected, name), [`${mine.fence}`]);
    }));
});
