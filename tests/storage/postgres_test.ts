import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { freePort, withService } from "../../scripts/services.ts";
import { StorageError } from "../../src/core/errors.ts";
import { Lock } from "../../src/core/lock.ts";
import type { Command, Granted, OutcomeOf } from "../../src/core/record.ts";
import { type PostgresClient, PostgresStorage } from "../../src/storage/postgres.ts";
import {
  acquire,
  adopt,
  evict,
  inspect,
  release,
  renew,
  token,
  uniqueName,
} from "../support/commands.ts";
import { type Connected, drivers, observed, soon } from "../support/postgres.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

const [withPostgres, withPg] = drivers as [typeof drivers[0], typeof drivers[0]];

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function grant(
  storage: PostgresStorage,
  name: string,
  more: Parameters<typeof acquire>[1] & { token?: string } = {},
): Promise<Granted & { token: string }> {
  const command = acquire(more.token ?? token(), more);
  const outcome = await storage.execute(name, command);
  assertEquals(outcome.type, "granted");
  return { ...outcome as Granted, token: command.token };
}

async function storageErrorOf(work: Promise<unknown>): Promise<[string, boolean]> {
  const error = await assertRejects(() => work, StorageError);
  return [error.message, error.transient];
}

await withService("postgres", ({ test, service }) => {
  /** A storage on connections of its own. */
  async function opened(
    run: (storage: PostgresStorage, connected: Connected) => Promise<void>,
    driver = withPostgres,
  ): Promise<void> {
    await using connected = driver.connect(service().url);
    const storage = new PostgresStorage(connected.client);
    await storage.migrate();
    await run(storage, connected);
  }

  async function guardsOf({ query }: Connected, name: string): Promise<string[]> {
    const rows = await query(
      "SELECT fence::text FROM holdfast_guard WHERE name = $1 ORDER BY fence",
      [name],
    );
    return rows.map((row) => row["fence"] as string);
  }

  for (const driver of drivers) {
    // covers: G2
    // covers: G4
    // covers: S5.10
    test(`${driver.name}: a lock goes through its commands, with a guard for each holding`, () =>
      opened(async (storage, connected) => {
        const name = uniqueName("all");
        const first = await grant(storage, name);
        assertEquals(await guardsOf(connected, name), [`${first.fence}`]);
        assertEquals((await storage.execute(name, acquire(token()))).type, "held");
        assertEquals(await storage.execute(name, renew(first.token, first.fence)), {
          type: "renewed",
        });
        assertEquals((await storage.execute(name, renew(token(), first.fence))).type, "refused");
        assertEquals((await storage.execute(name, inspect)).holders.length, 1);
        const taker = token();
        const adopted = await storage.execute(name, adopt(first.token, first.fence, taker));
        const taken = adopted as Granted;
        assert(taken.fence > first.fence);
        assertEquals(await guardsOf(connected, name), [`${taken.fence}`]);
        assertEquals(await storage.execute(name, release(first.token)), {
          type: "released",
          freed: false,
        });
        assertEquals(await storage.execute(name, evict()), { type: "evicted", count: 1 });
        assertEquals(await guardsOf(connected, name), []);
        const last = await grant(storage, name);
        assert(last.fence > taken.fence);
        assertEquals(await storage.execute(name, release(last.token)), {
          type: "released",
          freed: true,
        });
        assertEquals(await guardsOf(connected, name), []);
      }, driver));

    test(`${driver.name}: acquire, renew and release are 2 statements and 2 round trips each`, async () => {
      await using proxy = await startTcpProxy({ targetPort: service().port });
      await using connected = driver.connect(
        `postgres://postgres@127.0.0.1:${proxy.port}/postgres`,
        { max: 1, listen: false },
      );
      let statements = 0;
      let roundTrips = 0;
      proxy.dropRequestIf(() => (roundTrips++, false), Infinity);
      const storage = new PostgresStorage(observed(connected.client, () => void statements++));
      await storage.migrate();
      const cycle = async (name: string): Promise<number[][]> => {
        const counts: number[][] = [];
        const counted = async <C extends Command>(command: C): Promise<OutcomeOf<C>> => {
          statements = roundTrips = 0;
          const outcome = await storage.execute(name, command);
          counts.push([statements, roundTrips]);
          return outcome;
        };
        const mine = token();
        const granted = await counted(acquire(mine)) as Granted;
        await counted(acquire(token()));
        await counted(renew(mine, granted.fence));
        await counted(inspect);
        await counted(release(mine));
        return counts;
      };
      const name = uniqueName("counted");
      // The first statements of a connection are also prepared, or described.
      await cycle(uniqueName("warm"));
      await cycle(name);
      assertEquals(await cycle(name), [[2, 2], [1, 1], [2, 2], [1, 1], [2, 2]]);
    });

    // covers: G1
    // covers: S4.13
    test(`${driver.name}: of 20 concurrent first acquires one wins`, () =>
      opened((one, connected) =>
        opened(async (two) => {
          const name = uniqueName("first");
          const outcomes = await Promise.all(
            Array.from(
              { length: 20 },
              (_, i) => [one, two][i % 2]!.execute(name, acquire(token())),
            ),
          );
          assertEquals(outcomes.filter((o) => o.type === "granted").length, 1);
          assertEquals(outcomes.filter((o) => o.type === "held").length, 19);
          assertEquals((await guardsOf(connected, name)).length, 1);
        }, driver), driver));

    // covers: G1
    // covers: G3
    // covers: S1.20
    // covers: S4.1
    test(`${driver.name}: of 20 that take over from an expired holder one wins`, () =>
      opened((one, connected) =>
        opened(async (two) => {
          const name = uniqueName("takeover");
          const dead = await grant(one, name, { ttlMs: 10 });
          await pause(30);
          const outcomes = await Promise.all(
            Array.from(
              { length: 20 },
              (_, i) => [one, two][i % 2]!.execute(name, acquire(token())),
            ),
          );
          const granted = outcomes.filter((o) => o.type === "granted") as Granted[];
          assertEquals(granted.length, 1);
          assertEquals(outcomes.filter((o) => o.type === "held").length, 19);
          assert(granted[0]!.fence > dead.fence);
          assertEquals(await guardsOf(connected, name), [`${granted[0]!.fence}`]);
        }, driver), driver));
  }

  // covers: G4
  for (const driver of drivers) {
    test(`${driver.name}: 300 renewals are 2 statements, and each stands for itself`, () =>
      opened(async (storage, { client, query }) => {
        const held = await Promise.all(
          Array.from({ length: 300 }, async (_, i) => {
            const name = uniqueName(`"${i}" \\ ,`);
            return { name, ...await grant(storage, name, { capacity: 2 }) };
          }),
        );
        const [evicted, foreign, lost, shared, raced] = held as [
          typeof held[0],
          typeof held[0],
          typeof held[0],
          typeof held[0],
          typeof held[0],
        ];
        await storage.execute(evicted.name, evict());
        const write = "UPDATE holdfast SET value = $2 WHERE name = $1";
        await query(write, [foreign.name, "hello"]);
        await query("DELETE FROM holdfast WHERE name = $1", [lost.name]);
        const second = await grant(storage, shared.name, { capacity: 2 });
        const entries = [...held, { name: shared.name, ...second }].map((lease) => ({
          name: lease.name,
          command: renew(lease.token, lease.fence),
        }));
        let statements: string[] = [];
        const counting = observed(client, async (text, values) => {
          statements.push(text);
          // Somebody else writes between the read and the write of this one.
          if (values[0]?.startsWith("[{")) {
            await storage.execute(raced.name, renew(raced.token, raced.fence));
          }
        });
        const results = await new PostgresStorage(counting).executeAll(entries);
        const seen = results.map((result) =>
          result.status === "fulfilled" ? result.value.type : result.reason.message
        );
        const expected: string[] = entries.map(() => "renewed");
        expected[0] = "refused";
        expected[1] = `Cannot use key "${foreign.name}" as its value is not a Holdfast record`;
        expected[2] = "refused";
        assertEquals(seen, expected);
        assertEquals(
          (results[0] as PromiseFulfilledResult<unknown>).value,
          { type: "refused", reason: "evicted" },
        );
        // The two of all, and for what goes alone: a read each, and one write.
        assertEquals(statements.length, 2 + 3 + 1);
        const { holders } = await storage.execute(shared.name, inspect);
        assertEquals(holders.map(({ remainingMs }) => remainingMs > 0), [true, true]);

        statements = [];
        const longer = entries.filter(({ name }) =>
          ![foreign, lost, raced].some((h) => h.name === name)
        )
          .map(({ name, command }) => ({
            name,
            command: { ...command, ttlMs: 10 * command.ttlMs },
          }));
        await new PostgresStorage(counting).executeAll(longer);
        assertEquals(statements.length, 2);
        for (const { name } of longer.slice(-2)) {
          const { holders } = await storage.execute(name, inspect);
          assert(holders.at(-1)!.remainingMs > 500_000);
        }
      }, driver));
  }

  test("renewals whose reply is lost are an error for all, and can be sent again", () =>
    opened(async (storage, { client }) => {
      const names = [uniqueName("a"), uniqueName("b")];
      const held = await Promise.all(names.map((name) => grant(storage, name)));
      const entries = names.map((name, i) => ({
        name,
        command: renew(held[i]!.token, held[i]!.fence),
      }));
      let isLost = true;
      const losing = new PostgresStorage({
        query: async (text, values) => {
          const rows = await client.query(text, values);
          if (values[0]?.startsWith("[{") && isLost) {
            isLost = false;
            throw new Error("Connection terminated unexpectedly");
          }
          return rows;
        },
      });
      assertEquals(await storageErrorOf(losing.executeAll(entries)), [
        "Cannot write 2 keys as the connection to the server failed",
        true,
      ]);
      const results = await losing.executeAll(entries);
      assertEquals(results.map(({ status }) => status), ["fulfilled", "fulfilled"]);
    }));

  test("a semaphore has a guard for each holder, and loses none of 20 concurrent acquires", () =>
    opened((one, connected) =>
      opened(async (two) => {
        const name = uniqueName("semaphore");
        const outcomes = await Promise.all(
          Array.from(
            { length: 20 },
            (_, i) => [one, two][i % 2]!.execute(name, acquire(token(), { capacity: 20 })),
          ),
        );
        assertEquals(outcomes.map((o) => o.type), Array(20).fill("granted"));
        assertEquals((await guardsOf(connected, name)).length, 20);
      })
    ));

  for (const isolation of ["repeatable read", "serializable"]) {
    test(`sessions that default to ${isolation} change nothing`, async () => {
      await using connected = withPg.connect(service().url, {
        max: 16,
        parameters: { default_transaction_isolation: isolation },
      });
      const storage = new PostgresStorage(connected.client);
      await storage.migrate();
      const [shown] = await connected.query("SHOW transaction_isolation");
      assertEquals(shown, { transaction_isolation: isolation });
      const name = uniqueName("isolated");
      const dead = await grant(storage, name, { ttlMs: 10, capacity: 16 });
      await pause(30);
      const outcomes = await Promise.all(
        Array.from({ length: 20 }, () => storage.execute(name, acquire(token(), { capacity: 16 }))),
      );
      assertEquals(outcomes.filter((o) => o.type === "granted").length, 16);
      assertEquals(outcomes.filter((o) => o.type === "held").length, 4);
      assert((await storage.execute(name, inspect)).fence > dead.fence);
    });
  }

  for (const [code, outcome] of [["40001", "granted"], ["40P01", "granted"], ["55P03", "held"]]) {
    test(`a write that fails with ${code} was not applied: the answer is "${outcome}"`, () =>
      opened(async (_, { client }) => {
        let failures = 3;
        const failing = observed(client, (text) => {
          if (text.includes("gen_random_uuid") && failures-- > 0) {
            throw Object.assign(new Error("not applied"), { code });
          }
        });
        const storage = new PostgresStorage(failing);
        const name = uniqueName("conflict");
        assertEquals((await storage.execute(name, acquire(token()))).type, outcome);
      }));
  }

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
          (await client.query(text, values)).map((row) => ({ ...row, is_replica: true })),
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

  test("nobody waits for a row that a stranger has locked", () =>
    opened(async (storage, { transact }) => {
      const name = uniqueName("row");
      const mine = await grant(storage, name);
      await transact("READ COMMITTED", async (query) => {
        await query("SELECT FROM holdfast WHERE name = $1 FOR UPDATE", [name]);
        const startMs = performance.now();
        const waiter = await soon(storage.execute(name, acquire(token())));
        assertEquals(waiter.type, "held");
        assertEquals((await storage.execute(name, inspect)).holders.length, 1);
        assert(performance.now() - startMs < 500);
        const [message, transient] = await storageErrorOf(
          soon(storage.execute(name, renew(mine.token, mine.fence))),
        );
        assertEquals(
          message,
          `Cannot write key "${name}" as others were faster: current value is 64 lost races`,
        );
        assertEquals(transient, true);
        assert(performance.now() - startMs < 10_000);
      });
      assertEquals((await storage.execute(name, renew(mine.token, mine.fence))).type, "renewed");
    }));

  test("nobody waits for a new name that a stranger has not committed", () =>
    opened(async (storage, { transact }) => {
      const name = uniqueName("uncommitted");
      await transact("READ COMMITTED", async (query) => {
        await query(
          "INSERT INTO holdfast VALUES ($1, gen_random_uuid(), 'holdfast 1 0', 0, now())",
          [name],
        );
        const startMs = performance.now();
        assertEquals(await soon(storage.execute(name, acquire(token()))), {
          type: "held",
          retryAfterMs: 1000,
          ahead: 0,
        });
        assert(performance.now() - startMs < 1000);
        await query("ROLLBACK");
      }).catch(() => {});
      await grant(storage, name);
    }));

  // covers: G1
  // covers: S5.8
  test("a renewal that races a takeover at the instant of expiry never leaves two holders", () =>
    opened((a) =>
      opened(async (b) => {
        const won = { holder: 0, taker: 0, nobody: 0 };
        const ttlMs = 40;
        /** Sends both at about the instant of expiry; each lane moves towards where either may win. */
        const lane = async (offsetMs: number): Promise<void> => {
          for (let i = 0; i < 60; i++) {
            const name = uniqueName("race");
            const mine = await grant(a, name, { ttlMs });
            const expiryMs = performance.now() + ttlMs;
            const at = async <T>(ms: number, work: () => Promise<T>): Promise<T> => {
              await pause(ms - performance.now());
              return await work();
            };
            const [renewed, taken] = await Promise.all([
              at(expiryMs + offsetMs, () => a.execute(name, renew(mine.token, mine.fence))),
              at(expiryMs - 2 + i % 5, () => b.execute(name, acquire(token()))),
            ]);
            const isRenewed = renewed.type === "renewed";
            const isTaken = taken.type === "granted";
            assert(!(isRenewed && isTaken), `two holders at ${offsetMs} ms`);
            won[isRenewed ? "holder" : isTaken ? "taker" : "nobody"]++;
            offsetMs += isRenewed ? 0.5 : -0.5;
          }
        };
        await Promise.all([-6, -5, -4, -3, -2, -1, 0, 1].map(lane));
        assert(won.holder > 40 && won.taker > 40, `the sweep missed: ${JSON.stringify(won)}`);
      })
    ));
});
