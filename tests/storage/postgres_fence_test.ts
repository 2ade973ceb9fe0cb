import { assert, assertEquals, assertRejects } from "@std/assert";
import { withService } from "../../scripts/services.ts";
import { StaleFenceError, StorageError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import { Lock } from "../../src/core/lock.ts";
import type { Granted } from "../../src/core/record.ts";
import { fenceCheck, fenced, PostgresStorage } from "../../src/storage/postgres.ts";
import { acquire, adopt, evict, release, renew, token, uniqueName } from "../support/commands.ts";
import {
  type Connected,
  type Driver,
  drivers,
  type Isolation,
  ISOLATIONS,
  type Query,
  soon,
} from "../support/postgres.ts";

const withPg = drivers.find(({ name }) => name === "pg")!;

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function grant(
  storage: PostgresStorage,
  name: string,
  more: Parameters<typeof acquire>[1] = {},
): Promise<Fenced> {
  const command = acquire(token(), more);
  const outcome = await storage.execute(name, command);
  assertEquals(outcome.type, "granted");
  return { name, token: command.token, fencingToken: (outcome as Granted).fence };
}

/** What a holder can lose its lock by. */
const LOSSES: Readonly<
  Record<string, (storage: PostgresStorage, lease: Fenced) => Promise<unknown>>
> = {
  "was released": (storage, { name, token }) => storage.execute(name, release(token)),
  "was evicted": (storage, { name }) => storage.execute(name, evict()),
  "was handed over": (storage, { name, token: old, fencingToken }) =>
    storage.execute(name, adopt(old, fencingToken, token())),
  "expired": () => pause(60),
  "was replaced": async (storage, { name }) => {
    await pause(60);
    await grant(storage, name);
  },
};

await withService("postgres", ({ test, service }) => {
  /** Runs a test with a storage, and a resource that each of its values is written to. */
  async function opened(
    run: (
      storage: PostgresStorage,
      connected: Connected,
      resource: {
        write: (query: Query, value: string) => Promise<unknown>;
        read(): Promise<unknown>;
      },
    ) => Promise<void>,
    driver: Driver = withPg,
  ): Promise<void> {
    await using connected = driver.connect(service().url);
    const { query } = connected;
    const storage = new PostgresStorage(connected.client);
    await storage.migrate();
    await query("CREATE TABLE IF NOT EXISTS resource (id text PRIMARY KEY, value text)");
    const id = crypto.randomUUID();
    await query("INSERT INTO resource VALUES ($1, 'old')", [id]);
    await run(storage, connected, {
      write: (query, value) => query("UPDATE resource SET value = $2 WHERE id = $1", [id, value]),
      read: async () =>
        (await query("SELECT value FROM resource WHERE id = $1", [id]))[0]?.["value"],
    });
  }

  function sqlStateOf(work: Promise<unknown>): Promise<string> {
    return work.then(() => "", (error) => (error as { code: string }).code);
  }

  for (const driver of drivers) {
    for (const isolation of ISOLATIONS) {
      test(`${driver.name}, ${isolation}: a fenced transaction of the holder is applied`, () =>
        opened(async (storage, { transact }, { write, read }) => {
          const lease = await grant(storage, uniqueName("fenced"));
          const value = await fenced(
            storage,
            lease,
            ({ text, values }) =>
              transact(isolation, async (query) => {
                await query(text, values);
                await write(query, "new");
                return "result";
              }),
          );
          assertEquals(value, "result");
          assertEquals(await read(), "new");
        }, driver));

      for (const [how, lose] of Object.entries(LOSSES)) {
        // covers: G3
        // covers: S3.4
        test(`${driver.name}, ${isolation}: nothing is written under a lease that ${how}`, () =>
          opened(async (storage, { transact }, { write, read }) => {
            const lease = await grant(storage, uniqueName("stale"), { ttlMs: 50 });
            await lose(storage, lease);
            const work = () =>
              fenced(storage, lease, ({ text, values }) =>
                transact(isolation, async (query) => {
                  await query(text, values);
                  await write(query, "stale");
                }));
            const error = await assertRejects(work, StaleFenceError);
            assertEquals(
              error.message,
              `Cannot write under lock "${lease.name}" as fence ${lease.fencingToken} ` +
                "is not held any more",
            );
            assertEquals((error.cause as { code: string }).code, "HF001");
            assertEquals(error.message, (error.cause as Error).message);
            assert(!`${error.stack}`.includes(lease.token));
            assertEquals(await read(), "old");
          }, driver));
      }
    }
  }

  for (const isolation of ISOLATIONS) {
    for (
      const [what, change] of Object.entries<Partial<Fenced>>({
        "another token": { token: token() },
        "another fence": { fencingToken: 1 },
        "a token that is a pattern": { token: ".*" },
      })
    ) {
      // covers: G3
      test(`${isolation}: ${what} than the holder's is stale`, () =>
        opened(async (storage, { transact }) => {
          const lease = { ...await grant(storage, uniqueName("other")), ...change };
          const { text, values } = fenceCheck(storage, lease);
          assertEquals(await sqlStateOf(transact(isolation, (q) => q(text, values))), "HF001");
        }));
    }

    // covers: G3
    test(`${isolation}: nothing is written under a lease whose record was lost`, () =>
      opened(async (storage, { transact, query }) => {
        const lease = await grant(storage, uniqueName("lost"));
        await query("DELETE FROM holdfast WHERE name = $1", [lease.name]);
        const { text, values } = fenceCheck(storage, lease);
        assertEquals(await sqlStateOf(transact(isolation, (q) => q(text, values))), "HF001");
      }));

    // covers: G3
    // covers: G1
    test(`${isolation}: an open fenced transaction keeps takers out, and lets its holder renew`, () =>
      opened((storage, { transact }, { write, read }) =>
        opened(async (other) => {
          const lease = await grant(storage, uniqueName("open"), { ttlMs: 500 });
          const { name, fencingToken } = lease;
          const { text, values } = fenceCheck(storage, lease);
          await transact(isolation, async (query) => {
            await query(text, values);
            const renewed = await storage.execute(name, renew(lease.token, fencingToken, 600));
            assertEquals(renewed, { type: "renewed" });
            await pause(650);
            const startMs = performance.now();
            const held = await soon(other.execute(name, acquire(token())));
            assertEquals(held, { type: "held", retryAfterMs: 1000, ahead: 0 });
            for (const command of [evict(), release(lease.token)]) {
              const error = await assertRejects(
                () => soon(other.execute(name, command)),
                StorageError,
              );
              assertEquals(
                [error.message, error.transient],
                [
                  `Cannot ${command.type} key "${name}" as a fenced transaction of its holder is open`,
                  true,
                ],
              );
            }
            assert(performance.now() - startMs < 3000, "somebody waited for the transaction");
            await write(query, "new");
          });
          assertEquals(await read(), "new");
          const next = await grant(other, name);
          assert(next.fencingToken > fencingToken);
        })
      ));
  }

  // covers: G3
  test("a heartbeat goes on, and a waiter waits, while a fenced transaction outlives the ttl", () =>
    opened((storage, { transact }) =>
      opened(async (other) => {
        const name = uniqueName("heartbeat");
        await using lease = await new Lock({ storage, name, ttlMs: 1200 }).acquire();
        const { text, values } = fenceCheck(storage, lease);
        const waiting = new Lock({ storage: other, name, ttlMs: 1200 }).acquire();
        await transact("READ COMMITTED", async (query) => {
          await query(text, values);
          await pause(2500);
          assert(lease.isHeld());
        });
        assert(lease.isHeld());
        await lease.release();
        await (await waiting).release();
      })
    ));

  for (const isolation of ["REPEATABLE READ", "SERIALIZABLE"] as const) {
    /** Runs work in a transaction whose snapshot is older than what `between` does. */
    const lateCheck = async (
      storage: PostgresStorage,
      { transact }: Connected,
      leaseOf: () => Promise<Fenced>,
      between: (lease: Fenced) => Promise<unknown>,
      write: (query: Query) => Promise<unknown>,
    ): Promise<[Fenced, unknown]> => {
      let lease!: Fenced;
      const error = await transact(isolation, async (query) => {
        await query("SELECT count(*) FROM holdfast");
        lease = await leaseOf();
        await between(lease);
        await fenced(storage, lease, async ({ text, values }) => {
          await query(text, values);
          await write(query);
        });
      }).catch((e) => e);
      return [lease, error];
    };

    // covers: G3
    test(`${isolation}: a lease that is lost after the snapshot is stale, not a conflict`, () =>
      opened(async (storage, connected, { write, read }) => {
        const lease = await grant(storage, uniqueName("snapshot"), { ttlMs: 50 });
        const [, error] = await lateCheck(
          storage,
          connected,
          () => Promise.resolve(lease),
          (lease) => LOSSES["was replaced"]!(storage, lease),
          (query) => write(query, "stale"),
        );
        assert(error instanceof StaleFenceError);
        assertEquals(((error as Error).cause as { code: string }).code, "40001");
        assertEquals(await read(), "old");
      }));

    test(`${isolation}: a lease that is renewed after the snapshot is a conflict, not stale`, () =>
      opened(async (storage, connected, { write, read }) => {
        const lease = await grant(storage, uniqueName("renewed"), { ttlMs: 700 });
        const [, error] = await lateCheck(
          storage,
          connected,
          () => Promise.resolve(lease),
          async ({ name, token, fencingToken }) => {
            await storage.execute(name, renew(token, fencingToken));
            await pause(750);
          },
          (query) => write(query, "too soon"),
        );
        assertEquals((error as { code: string }).code, "40001");
        assertEquals(
          (error as Error).message,
          `Cannot check lock "${lease.name}" as the snapshot of the transaction is too old`,
        );
        assertEquals(await read(), "old");
      }));

    test(`${isolation}: a lease that is granted after the snapshot is a conflict, not stale`, () =>
      opened(async (storage, connected, { write, read }) => {
        const name = uniqueName("granted");
        const [lease, error] = await lateCheck(
          storage,
          connected,
          () => grant(storage, name),
          () => Promise.resolve(),
          (query) => write(query, "too soon"),
        );
        assertEquals((error as { code: string }).code, "40001");
        assertEquals(await read(), "old");
        await fenced(
          storage,
          lease,
          ({ text, values }) => connected.transact(isolation, (query) => query(text, values)),
        );
      }));
  }

  for (const isolation of ISOLATIONS) {
    // covers: G3
    test(`${isolation}: no fenced write lands after the next holder's first read`, () =>
      opened((storage, { transact }, { write, read }) =>
        opened(async (other) => {
          const seen = { applied: 0, stale: 0 };
          /** Moves towards where either may win, whatever the machine has to do besides. */
          let aheadMs = 10;
          const isEnough = () => seen.applied >= 15 && seen.stale >= 15;
          for (let i = 0; i < 400 && !(i >= 60 && isEnough()); i++) {
            const lease = await grant(storage, uniqueName("late"), { ttlMs: 60 });
            const expiryMs = performance.now() + 60;
            await write(
              (text, values) => transact("READ COMMITTED", (q) => q(text, values)),
              "old",
            );
            const late = (async () => {
              await pause(expiryMs - performance.now() - aheadMs);
              return await fenced(storage, lease, ({ text, values }) =>
                transact(isolation as Isolation, async (query) => {
                  await query(text, values);
                  await pause(i % 5);
                  await write(query, "late");
                })).then(() =>
                  "applied" as const, (error) => {
                  assert(error instanceof StaleFenceError, `${error}`);
                  return "stale" as const;
                });
            })();
            let next;
            do next = await other.execute(lease.name, acquire(token())); while (
              next.type !== "granted"
            );
            const first = await read();
            const outcome = await late;
            assertEquals(first, outcome === "applied" ? "late" : "old");
            assertEquals(await read(), first);
            seen[outcome]++;
            aheadMs += outcome === "applied" ? -2 : 2;
          }
          assert(isEnough(), `the sweep missed: ${JSON.stringify(seen)}`);
        })
      ));
  }

  test("holders of one semaphore are fenced each for itself", () =>
    opened(async (storage, { transact }) => {
      const name = uniqueName("semaphore");
      const capacity = 2;
      const first = await grant(storage, name, { capacity });
      const second = await grant(storage, name, { capacity });
      const check = (lease: Fenced, query: Query) => {
        const { text, values } = fenceCheck(storage, lease);
        return query(text, values);
      };
      await transact("READ COMMITTED", async (query) => {
        await check(first, query);
        await transact("READ COMMITTED", (other) => check(second, other));
        await storage.execute(name, release(second.token));
      });
      assertEquals(
        await sqlStateOf(transact("READ COMMITTED", (query) => check(second, query))),
        "HF001",
      );
      await transact("READ COMMITTED", (query) => check(first, query));
    }));

  test("an error of the user's own comes out of fenced() as it is", () =>
    opened(async (storage) => {
      const lease = await grant(storage, uniqueName("own"));
      const own = new Error("own");
      assertEquals(await fenced(storage, lease, () => Promise.reject(own)).catch((e) => e), own);
    }));
});
