import { assert, assertEquals, assertRejects } from "@std/assert";
import { startPostgres, withService } from "../../scripts/services.ts";
import { StorageError } from "../../src/core/errors.ts";
import { Lock } from "../../src/core/lock.ts";
import type { Command, Granted, Outcome } from "../../src/core/record.ts";
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
import { type Driver, drivers } from "../support/postgres.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp_proxy.ts";

const [withPostgres, withPg] = drivers as [Driver, Driver];

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Whether a request carries the parameters of a read, or of a write, of a lock. */
function isAbout(name: string, kind: "read" | "write"): (request: Uint8Array) => boolean {
  return (request) => {
    const text = new TextDecoder().decode(request);
    return text.includes(name) && text.includes("holdfast 1 ") === (kind === "write");
  };
}

await withService("postgres", ({ test, service }) => {
  /** A storage behind a proxy, with the default behaviour of its client, and one that sees the truth. */
  async function proxied(
    driver: Driver,
    run: (storage: PostgresStorage, proxy: TcpProxy, truth: PostgresStorage) => Promise<void>,
  ): Promise<void> {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    await using connected = driver.connect(
      `postgres://postgres@127.0.0.1:${proxy.port}/postgres`,
      { listen: false },
    );
    await using direct = driver.connect(service().url);
    const truth = new PostgresStorage(direct.client);
    await truth.migrate();
    await run(new PostgresStorage(connected.client), proxy, truth);
  }

  /** What each command is tried on, and how it must answer however often its replies are lost. */
  const cases: Readonly<
    Record<string, {
      readonly command: (held: Granted & { token: string }, mine: string) => Command;
      readonly isRight: (outcome: Outcome, held: Granted) => boolean;
      readonly holders: number;
      readonly isFree?: boolean;
    }>
  > = {
    "acquire of a new name": {
      command: (_, mine) => acquire(mine),
      isRight: ({ type }) => type === "granted",
      holders: 1,
      isFree: true,
    },
    "acquire of a free lock": {
      command: (_, mine) => acquire(mine, { capacity: 2 }),
      isRight: ({ type }) => type === "granted",
      holders: 2,
    },
    "renew": {
      command: (held) => renew(held.token, held.fence),
      isRight: ({ type }) => type === "renewed",
      holders: 1,
    },
    "release": {
      command: (held) => release(held.token),
      isRight: (outcome) => outcome.type === "released" && outcome.freed,
      holders: 0,
    },
    "adopt": {
      command: (held, mine) => adopt(held.token, held.fence, mine),
      isRight: (outcome, held) => outcome.type === "granted" && outcome.fence > held.fence,
      holders: 1,
    },
    "evict": {
      command: () => evict(),
      isRight: (outcome) => outcome.type === "evicted" && outcome.count === 1,
      holders: 0,
    },
  };

  for (const driver of drivers) {
    for (const [what, { command, isRight, holders, isFree }] of Object.entries(cases)) {
      for (const kind of ["read", "write"] as const) {
        for (const drop of ["dropReplyIf", "dropRequestIf"] as const) {
          const lost = `${drop === "dropReplyIf" ? "reply" : "request"} of its ${kind}`;
          // covers: G11
          test(`${driver.name}: ${what} is right although the ${lost} was lost`, () =>
            proxied(driver, async (storage, proxy, truth) => {
              const name = `lost-${crypto.randomUUID()}`;
              const held = { type: "granted" as const, fence: 0, token: token() };
              if (!isFree) {
                const granted = await truth.execute(name, acquire(held.token, { capacity: 2 }));
                Object.assign(held, granted);
              }
              const cmd = command(held, token());
              proxy[drop](isAbout(name, kind));
              // A read is not repeated by the storage but by whoever asked; a write is read back.
              let outcome: Outcome;
              try {
                outcome = await storage.execute(name, cmd);
                assertEquals(kind, "write");
              } catch (error) {
                assertEquals(kind, "read");
                assert(error instanceof StorageError);
                assertEquals(
                  [(error as StorageError).message, (error as StorageError).transient],
                  [`Cannot read key "${name}" as the connection to the server failed`, true],
                );
                outcome = await storage.execute(name, cmd);
              }
              assertEquals(proxy.counters.dropped, 1);
              assert(isRight(outcome, held), JSON.stringify(outcome));
              const seen = await truth.execute(name, inspect);
              assertEquals(seen.holders.length, holders);
            }));
        }
      }
    }

    // covers: G11
    test(`${driver.name}: a lock is ours although every reply to its first writes was lost`, () =>
      proxied(driver, async (storage, proxy, truth) => {
        const name = `lost-${crypto.randomUUID()}`;
        proxy.dropReplyIf(isAbout(name, "write"), 3);
        proxy.dropReplyIf(isAbout(name, "read"), 1);
        await using lease = await new Lock({ storage, name }).acquire();
        assertEquals(
          (await truth.execute(name, inspect)).holders.map(({ fence }) => fence),
          [lease.fencingToken],
        );
      }));
  }

  // covers: G11
  test("an acquire whose lost write may still land is not refused when it finds itself blocked", () =>
    proxied(withPg, async (storage, proxy, truth) => {
      const name = `lost-${crypto.randomUUID()}`;
      const old = token();
      const { fence } = await truth.execute(name, acquire(old, { ttlMs: 30 })) as Granted;
      await using direct = withPg.connect(service().url);
      await direct.transact("READ COMMITTED", async (query) => {
        await query("SELECT FROM holdfast_guard WHERE name = $1 AND fence = $2 FOR SHARE", [
          name,
          `${fence}`,
        ]);
        await pause(60);
        proxy.dropRequestIf(isAbout(name, "write"));
        const error = await assertRejects(
          () => storage.execute(name, acquire(token())),
          StorageError,
        );
        assertEquals(
          error.message,
          `Cannot acquire key "${name}" as a fenced transaction of its holder is open`,
        );
        assertEquals((await storage.execute(name, acquire(token()))).type, "held");
      });
    }));

  // covers: G8
  test("a connection that hangs does not hold up those on other connections", () =>
    proxied(withPostgres, async (storage, proxy, truth) => {
      const name = uniqueName("hang");
      const { token: mine, fence } = await truth.execute(name, acquire("t1")).then((granted) => ({
        token: "t1",
        fence: (granted as Granted).fence,
      }));
      proxy.hang(true);
      const hanging = storage.execute(name, acquire(token()));
      assertEquals((await truth.execute(name, renew(mine, fence))).type, "renewed");
      proxy.hang(false);
      assertEquals((await hanging).type, "held");
    }));
});

for (const driver of drivers) {
  // covers: G8
  // covers: G11
  Deno.test({
    name: `${driver.name}: a lease outlives a server that is killed and restarted`,
    // The server that this test kills and starts again is a process of its own.
    sanitizeResources: false,
    sanitizeOps: false,
    async fn() {
      await using server = await startPostgres({ persist: true });
      await using one = driver.connect(server.url);
      await using two = driver.connect(server.url);
      const storage = new PostgresStorage(one.client);
      await storage.migrate();
      const name = uniqueName("restarted");
      const lease = await new Lock({ storage, name, ttlMs: 20_000, renewEveryMs: 100 }).acquire();
      const other = new PostgresStorage(two.client);
      const waiting = new Lock({ storage: other, name, ttlMs: 20_000 }).acquire();
      await pause(300);
      server.kill();
      await pause(200);
      await server.restart();
      let seen;
      do seen = await other.execute(name, inspect).catch(() => undefined); while (!seen);
      assertEquals(seen.holders.map(({ fence }) => fence), [lease.fencingToken]);
      assert(lease.isHeld());
      await lease.renew();
      assertEquals(await lease.release(), true);
      const next = await waiting;
      assert(next.fencingToken > lease.fencingToken);
      await next.release();
    },
  });
}
