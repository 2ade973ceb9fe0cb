import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import { DatabaseSync } from "node:sqlite";
import { StaleFenceError, StorageError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import type { Granted } from "../../src/core/record.ts";
import {
  fenceCheck,
  type SqliteDatabase,
  SqliteStorage,
  type SqliteStorageOptions,
} from "../../src/storage/sqlite.ts";
import { ManualClock } from "../../src/testing/manual_clock.ts";
import {
  acquire,
  adopt,
  evict,
  inspect,
  release,
  renew,
  token,
  TTL_MS,
  uniqueName,
} from "../support/commands.ts";
import { contend } from "../support/storage_cases.ts";

type Open = (options?: SqliteStorageOptions) => { storage: SqliteStorage; db: DatabaseSync };

/** Runs a test with connections to one new file. */
async function onFile(run: (open: Open, file: string) => Promise<void>): Promise<void> {
  const folder = Deno.makeTempDirSync();
  const file = `${folder}/leases.db`;
  const opened: DatabaseSync[] = [];
  try {
    await run((options) => {
      const db = new DatabaseSync(file);
      opened.push(db);
      db.exec("PRAGMA journal_mode = wal");
      return { db, storage: new SqliteStorage(db, options) };
    }, file);
  } finally {
    for (const db of opened) if (db.isOpen) db.close();
    Deno.removeSync(folder, { recursive: true });
  }
}

async function grant(
  storage: SqliteStorage,
  name: string,
  more: Parameters<typeof acquire>[1] = {},
): Promise<Fenced> {
  const command = acquire(token(), more);
  const outcome = await storage.execute(name, command);
  assertEquals(outcome.type, "granted");
  return { name, token: command.token, fencingToken: (outcome as Granted).fence };
}

async function storageErrorOf(work: Promise<unknown>): Promise<[string, boolean]> {
  const error = await assertRejects(() => work, StorageError);
  return [error.message, error.transient];
}

/** Runs work in a transaction, as a user would. */
function transact<T>(db: DatabaseSync, work: () => T, begin = "BEGIN IMMEDIATE"): T {
  db.exec(begin);
  try {
    const result = work();
    db.exec("COMMIT");
    return result;
  } catch (error) {
    if (db.isTransaction) db.exec("ROLLBACK");
    throw error;
  }
}

Deno.test("acquire, renew and release are one transaction each, a look is none", () =>
  onFile(async (open) => {
    const { db } = open();
    let begun = 0;
    const counting: SqliteDatabase = {
      prepare(sql) {
        if (sql.startsWith("BEGIN")) begun++;
        return db.prepare(sql);
      },
      get isTransaction() {
        return db.isTransaction;
      },
    };
    const storage = new SqliteStorage(counting);
    const name = uniqueName("counted");
    const count = async <T>(work: () => Promise<T>): Promise<[number, T]> => {
      begun = 0;
      const result = await work();
      return [begun, result];
    };
    const [acquired, lease] = await count(() => grant(storage, name));
    const { token: mine, fencingToken: fence } = lease;
    const counts = [acquired];
    for (
      const command of [
        renew(mine, fence),
        acquire(token()),
        inspect,
        renew(token(), fence),
        release(mine),
      ]
    ) {
      counts.push((await count(() => storage.execute(name, command)))[0]);
    }
    assertEquals(counts, [1, 1, 0, 0, 0, 1]);
    const entries = [1, 2, 3].map((n) => ({ name: `${name}${n}`, command: acquire(token()) }));
    const [begunForAll, results] = await count(() => storage.executeAll(entries));
    assertEquals(begunForAll, 1);
    assertEquals(
      results.map((r) => r.status === "fulfilled" && r.value.type),
      ["granted", "granted", "granted"],
    );
  }));

// covers: G12
Deno.test("executeAll() applies what it can beside what is not a record", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    await grant(storage, "foreign");
    db.exec("UPDATE holdfast SET value = 'hello'");
    const results = await storage.executeAll([
      { name: "a", command: acquire(token()) },
      { name: "foreign", command: acquire(token()) },
      { name: "b", command: acquire(token()) },
    ]);
    assertEquals(results.map(({ status }) => status), ["fulfilled", "rejected", "fulfilled"]);
    assertEquals(
      (results[1] as PromiseRejectedResult).reason.message,
      'Cannot use key "foreign" as its value is not a Holdfast record',
    );
    assertEquals((await storage.execute("b", inspect)).holders.length, 1);
  }));

// covers: G1
// covers: S4.1
Deno.test("of 20 concurrent acquires on 4 connections one wins, first and after an expiry", () =>
  onFile(async (open) => {
    const storages = [1, 2, 3, 4].map(() => open().storage);
    const name = uniqueName("race");
    for (const ttlMs of [20, TTL_MS]) {
      await contend(name, (i) => storages[i % 4]!, { ttlMs });
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
  }));

// covers: S4.6
Deno.test("a holding is renewed up to the instant of its expiry, and taken over from then on", () =>
  onFile(async (open) => {
    const clock = new ManualClock();
    const a = open({ clock }).storage;
    const b = open({ clock }).storage;
    const lease = await grant(a, "edge", { ttlMs: 100 });
    await clock.advance(99);
    assertEquals((await b.execute("edge", acquire(token()))).type, "held");
    assertEquals(
      (await a.execute("edge", renew(lease.token, lease.fencingToken, 100))).type,
      "renewed",
    );
    await clock.advance(100);
    assertEquals(
      await a.execute("edge", renew(lease.token, lease.fencingToken)),
      { type: "refused", reason: "expired" },
    );
    const next = await grant(b, "edge");
    assert(next.fencingToken > lease.fencingToken);
  }));

// covers: G8
// covers: S5.7
Deno.test("a holder that died is taken over in time although the wall clock was set back", () =>
  onFile(async (open) => {
    const clock = new ManualClock();
    const { storage } = open({ clock });
    const dead = await grant(storage, "stepped", { ttlMs: 1000 });
    clock.stepWall(-3_600_000);
    assertEquals((await storage.execute("stepped", acquire(token()))).type, "held");
    await clock.advance(1009);
    assertEquals((await storage.execute("stepped", acquire(token()))).type, "held");
    await clock.advance(1);
    const next = await grant(storage, "stepped");
    assert(next.fencingToken > dead.fencingToken);
  }));

Deno.test("who looks or is refused does not wait for a writer, who writes does", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    const other = open().storage;
    const lease = await grant(storage, "busy");
    db.exec("BEGIN IMMEDIATE");
    assertEquals((await other.execute("busy", acquire(token()))).type, "held");
    assertEquals((await other.execute("busy", inspect)).holders.length, 1);
    let isDone = false;
    const renewing = other.execute("busy", renew(lease.token, lease.fencingToken))
      .finally(() => isDone = true);
    await new Promise((resolve) => setTimeout(resolve, 100));
    assertEquals(isDone, false);
    db.exec("COMMIT");
    assertEquals(await renewing, { type: "renewed" });
  }));

// covers: S4.2
Deno.test("a file that is busy for 5 s is an error, and an abort ends the wait", () =>
  onFile(async (open) => {
    const clock = new ManualClock();
    const { storage } = open({ clock });
    const { db } = open();
    await storage.execute("busy", inspect);
    db.exec("BEGIN IMMEDIATE");
    const failing = storageErrorOf(storage.execute("busy", acquire(token())));
    await clock.advance(5100);
    assertEquals(await failing, [
      'Cannot acquire lock "busy" as another transaction is open on the database: keep transactions ' +
      "shorter than 5000 ms, and those with an await on a connection of their own",
      true,
    ]);
    const stop = new AbortController();
    const aborted = storage.execute("busy", acquire(token()), { signal: stop.signal });
    const reason = new Error("enough");
    stop.abort(reason);
    assertEquals(await aborted.catch((e) => e), reason);
    assertEquals(clock.pendingTimers, 0);
  }));

Deno.test("a transaction of the user's on the same connection neither sees nor undoes a command", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    await storage.execute("mine", inspect);
    db.exec("BEGIN");
    const acquiring = grant(storage, "mine");
    const all = storage.executeAll([{ name: "other", command: acquire(token()) }]);
    await new Promise((resolve) => setTimeout(resolve, 50));
    assertEquals(db.prepare("SELECT count(*) AS n FROM holdfast").get(), { n: 0 } as never);
    db.exec("ROLLBACK");
    await acquiring;
    assertEquals((await all)[0]!.status, "fulfilled");
    assertEquals((await storage.execute("mine", inspect)).holders.length, 1);
  }));

const LOSSES: Readonly<
  Record<string, (storage: SqliteStorage, lease: Fenced, clock: ManualClock) => Promise<unknown>>
> = {
  "was released": (storage, { name, token }) => storage.execute(name, release(token)),
  "was evicted": (storage, { name }) => storage.execute(name, evict()),
  "was handed over": (storage, { name, token: old, fencingToken }) =>
    storage.execute(name, adopt(old, fencingToken, token())),
  "expired": (_, __, clock) => clock.advance(TTL_MS),
  "was replaced": async (storage, { name }, clock) => {
    await clock.advance(TTL_MS);
    await grant(storage, name);
  },
};

for (const [how, lose] of Object.entries(LOSSES)) {
  // covers: G3
  // covers: S3.4
  Deno.test(`nothing is written under a lease that ${how}`, () =>
    onFile(async (open) => {
      const clock = new ManualClock();
      const { db, storage } = open({ clock });
      db.exec("CREATE TABLE resource (value TEXT)");
      const lease = await grant(storage, "fenced");
      const write = (value: string, through: DatabaseSync) =>
        transact(through, () => {
          fenceCheck(storage, lease, through);
          through.prepare("INSERT INTO resource VALUES (?)").run(value);
        });
      const another = open().db;
      write("one", db);
      write("two", another);
      await lose(storage, lease, clock);
      for (const through of [db, another]) {
        const error = assertThrows(() => write("stale", through), StaleFenceError);
        assertEquals(
          error.message,
          `Cannot write under lock "fenced" as fence ${lease.fencingToken} is not held any more`,
        );
        assertEquals(error.fence, lease.fencingToken);
      }
      const rows = db.prepare("SELECT value FROM resource").all();
      assertEquals(rows.map((row) => row["value"]), ["one", "two"]);
    }));
}

// covers: G3
Deno.test("another token or another fence than the holder's is stale", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    const lease = await grant(storage, "other");
    for (const change of [{ token: token() }, { fencingToken: 1 }, { name: "another" }]) {
      assertThrows(
        () => transact(db, () => fenceCheck(storage, { ...lease, ...change })),
        StaleFenceError,
      );
    }
    transact(db, () => fenceCheck(storage, lease));
  }));

// covers: G3
Deno.test("a transaction that only read before it was overtaken cannot write", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    const other = open().storage;
    db.exec("CREATE TABLE resource (value TEXT)");
    const lease = await grant(storage, "deferred");
    db.exec("BEGIN");
    fenceCheck(storage, lease);
    await other.execute("deferred", evict());
    assertThrows(
      () => db.exec("INSERT INTO resource VALUES ('stale')"),
      Error,
      "database is locked",
    );
    db.exec("ROLLBACK");
  }));

Deno.test("an open fenced transaction keeps takers and its own holder waiting", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    const other = open().storage;
    const lease = await grant(storage, "open");
    db.exec("BEGIN IMMEDIATE");
    fenceCheck(storage, lease);
    const order: string[] = [];
    const evicting = other.execute("open", evict()).then(() => order.push("evicted"));
    await new Promise((resolve) => setTimeout(resolve, 50));
    order.push("committed");
    db.exec("COMMIT");
    await evicting;
    assertEquals(order, ["committed", "evicted"]);
  }));

Deno.test("fenceCheck() outside a transaction, and an old runtime, are type errors", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    const lease = await grant(storage, "outside");
    assertThrows(
      () => fenceCheck(storage, lease),
      TypeError,
      'Cannot check lock "outside" as it must be done within a transaction',
    );
    assertThrows(
      () => new SqliteStorage({ prepare: (sql) => db.prepare(sql) }),
      TypeError,
      "Cannot use db as it must be a DatabaseSync with isTransaction (Node 22.16) or a Database of " +
        "bun:sqlite",
    );
    assertThrows(
      () => new SqliteStorage(db, { table: "" }),
      RangeError,
      "Cannot use table as it must have 1 to 63 UTF-8 bytes: current value has 0",
    );
  }));

// covers: G12
Deno.test("a hand-edited or truncated record is an error that names the key, and stays as it is", () =>
  onFile(async (open) => {
    const { db, storage } = open();
    const lease = await grant(storage, "foreign");
    const read = () => db.prepare("SELECT * FROM holdfast").get() as Record<string, unknown>;
    const value = read()["value"] as string;
    const edits = [
      "",
      "hello",
      value.slice(0, -3),
      value.replace("h ", "h  "),
      new Uint8Array(3),
      7,
    ];
    for (const text of edits) {
      db.prepare("UPDATE holdfast SET value = ?").run(text);
      const before = read();
      for (
        const command of [
          acquire(token()),
          renew(lease.token, lease.fencingToken),
          release(lease.token),
          inspect,
          evict(),
        ]
      ) {
        assertEquals(await storageErrorOf(storage.execute("foreign", command)), [
          'Cannot use key "foreign" as its value is not a Holdfast record',
          false,
        ]);
      }
      assertThrows(() => transact(db, () => fenceCheck(storage, lease)), StorageError);
      assertEquals(read(), before);
    }
  }));

Deno.test("a fault says in one sentence what to do", () =>
  onFile(async (open, file) => {
    const { db, storage } = open({ table: 'a "table"' });
    await grant(storage, "x");
    db.exec('DROP TABLE "a ""table"""');
    assertEquals(await storageErrorOf(storage.execute("x", acquire(token()))), [
      'Cannot acquire lock "x" as table "a ""table""" is missing or has another shape: make a new ' +
      "SqliteStorage, or name another table",
      false,
    ]);
    await grant(new SqliteStorage(db, { table: 'a "table"' }), "x");

    db.exec("CREATE TABLE other (name TEXT)");
    const [other] = await storageErrorOf(
      new SqliteStorage(db, { table: "other" }).execute("x", inspect),
    );
    assert(other.startsWith('Cannot inspect lock "x" as table "other" is '), other);

    const readOnly = new DatabaseSync(file, { readOnly: true });
    assertEquals(
      await storageErrorOf(
        new SqliteStorage(readOnly, { table: 'a "table"' }).execute("x", evict()),
      ),
      [
        'Cannot evict lock "x" as table "a ""table""" is read-only: open the file for writing',
        false,
      ],
    );
    readOnly.close();

    Deno.writeTextFileSync(`${file}.txt`, "This is no database. ".repeat(100));
    const text = new DatabaseSync(`${file}.txt`);
    const [message, transient] = await storageErrorOf(
      new SqliteStorage(text).execute("x", inspect),
    );
    assert(message.startsWith('Cannot inspect lock "x" as table "holdfast" is '), message);
    assertEquals(transient, false);
    text.close();

    db.close();
    assertEquals(await storageErrorOf(storage.execute("x", inspect)), [
      'Cannot inspect lock "x" as table "a ""table""" is refused by SQLite: database is not open',
      false,
    ]);
  }));

Deno.test("each new name removes two records that are out of use, and never a live one", () =>
  onFile(async (open) => {
    const clock = new ManualClock(1_800_000_000_000);
    const { db, storage } = open({ clock, retentionMs: 0 });
    await grant(storage, "live", { ttlMs: 24 * 3_600_000 });
    for (const name of ["a", "b", "c"]) await grant(storage, name, { ttlMs: 10 });
    const names = () =>
      db.prepare("SELECT name FROM holdfast ORDER BY name").all().map((row) => row["name"]);
    await clock.advance(3_600_000 - 1);
    await grant(storage, "d");
    assertEquals(names(), ["a", "b", "c", "d", "live"]);
    await clock.advance(3_600_000);
    await grant(storage, "e");
    assertEquals(names().length, 4);
    await grant(storage, "f");
    assertEquals(names(), ["d", "e", "f", "live"]);
  }));

Deno.test("two tables in one file are two storages", () =>
  onFile(async (open) => {
    await grant(open().storage, "x");
    await grant(open({ table: "other" }).storage, "x");
  }));
