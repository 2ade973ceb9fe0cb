import { assert, assertEquals } from "@std/assert";
import { withService } from "../../scripts/services.ts";
import type { Command, Granted, OutcomeOf } from "../../src/core/record.ts";
import { PostgresStorage } from "../../src/storage/postgres.ts";
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
import {
  drivers,
  grant,
  guardsOf,
  observed,
  openedOn,
  pause,
  soon,
  storageErrorOf,
} from "../support/postgres.ts";
import { contend } from "../support/storage_cases.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

const [, withPg] = drivers as [typeof drivers[0], typeof drivers[0]];

await withService("postgres", ({ test, service }) => {
  const opened = openedOn(() => service().url);

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
    test(`${driver.name}: of 20 concurrent first acquires one wins`, () =>
      opened((one, connected) =>
        opened(async (two) => {
          const name = uniqueName("first");
          await contend(name, (i) => [one, two][i % 2]!);
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
          const next = await contend(name, (i) => [one, two][i % 2]!);
          assert(next.fence > dead.fence);
          assertEquals(await guardsOf(connected, name), [`${next.fence}`]);
        }, driver), driver));
  }

  for (const driver of drivers) {
    // covers: G4
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
        assert(performance.now() - startMs < 3000);
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
        assert(performance.now() - startMs < 3000);
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
