import { assert, assertEquals, assertThrows } from "@std/assert";
import { DatabaseSync } from "node:sqlite";
import { StaleFenceError } from "../../src/core/errors.ts";
import { Lock } from "../../src/core/lock.ts";
import { fenceCheck, SqliteStorage } from "../../src/storage/sqlite.ts";

const WORKER = new URL("../support/sqlite_worker.ts", import.meta.url).pathname;

/** How each runtime starts a program written in TypeScript. */
const RUNTIMES = {
  deno: [Deno.execPath(), "run", "-A", "--no-check"],
  bun: ["bun"],
  node: ["npx", "-y", "node@22", "--experimental-strip-types"],
} as const;

type Runtime = keyof typeof RUNTIMES;

/** Runs a test on a new file with a counter in it. */
async function onFile(run: (db: DatabaseSync, file: string) => Promise<void>): Promise<void> {
  const folder = Deno.makeTempDirSync();
  const file = `${folder}/leases.db`;
  const db = new DatabaseSync(file);
  try {
    db.exec(
      "PRAGMA journal_mode = wal; CREATE TABLE counter (n INTEGER); INSERT INTO counter VALUES (0)",
    );
    await run(db, file);
  } finally {
    db.close();
    Deno.removeSync(folder, { recursive: true });
  }
}

/** The next line that a process prints; each of its lines comes in one chunk. */
async function line(from: ReadableStreamDefaultReader<Uint8Array>): Promise<string> {
  return new TextDecoder().decode((await from.read()).value).trim();
}

function start(
  runtime: Runtime,
  args: readonly string[],
  stdout: "piped" | "null" = "null",
): Deno.ChildProcess {
  const [program, ...flags] = RUNTIMES[runtime];
  return new Deno.Command(program, {
    args: [...flags, WORKER, ...args],
    env: { NODE_NO_WARNINGS: "1", npm_config_loglevel: "silent" },
    stdin: "null",
    stdout,
    stderr: "inherit",
  }).spawn();
}

/** Whether a runtime can be had here. */
async function has(runtime: Runtime): Promise<boolean> {
  const [program, ...flags] = RUNTIMES[runtime];
  try {
    const command = new Deno.Command(program, {
      args: [...flags.slice(0, 2), "--version"],
      stdout: "null",
      stderr: "null",
    });
    return (await command.output()).success;
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return false;
    throw error;
  }
}

async function countTogether(runtimes: readonly Runtime[], sections: number): Promise<void> {
  await onFile(async (db, file) => {
    const workers = runtimes.map((runtime) => start(runtime, [file, "count", "x", `${sections}`]));
    const statuses = await Promise.all(workers.map(({ status }) => status));
    assertEquals(statuses.map(({ code }) => code), runtimes.map(() => 0));
    const { n } = db.prepare("SELECT n FROM counter").get() as { n: number };
    assertEquals(n, runtimes.length * sections);
  });
}

// covers: G1
// covers: S5.14
Deno.test("4 processes lose none of 200 sections", () =>
  countTogether(["deno", "deno", "deno", "deno"], 50));

for (const runtime of ["bun", "node"] as const) {
  // covers: G1
  Deno.test({
    name: `Deno and ${runtime} share a file, and lose none of 120 sections`,
    ignore: !await has(runtime),
    fn: () => countTogether([runtime, "deno", runtime], 40),
  });
}

// covers: G8
// covers: S2.7
Deno.test("the lock of a process that is killed is free after its ttl", () =>
  onFile(async (db, file) => {
    const holder = start("deno", [file, "hold", "x", "1500"], "piped");
    const lines = holder.stdout.getReader();
    const fence = Number(await line(lines));
    const lock = new Lock({ storage: new SqliteStorage(db), name: "x" });
    await new Promise((resolve) => setTimeout(resolve, 2000));
    assertEquals(await lock.tryAcquire(), null, "it is renewed");
    holder.kill("SIGKILL");
    const killedMs = performance.now();
    await using next = await lock.acquire({ timeoutMs: 10_000 });
    assert(performance.now() - killedMs < 1500 + 50 + 1000);
    assert(next.fencingToken > fence);
    await holder.status;
    await lines.cancel();
  }));

// covers: G3
// covers: G6
Deno.test("a process that was frozen past its ttl loses the lock, and its fence is refused", () =>
  onFile(async (db, file) => {
    const holder = start("deno", [file, "hold", "x", "700"], "piped");
    const lines = holder.stdout.getReader();
    const fence = Number(await line(lines));
    holder.kill("SIGSTOP");
    const storage = new SqliteStorage(db);
    await using next = await new Lock({ storage, name: "x" }).acquire({ timeoutMs: 10_000 });
    holder.kill("SIGCONT");
    assertEquals(await line(lines), "lost");
    db.exec("BEGIN IMMEDIATE");
    fenceCheck(storage, next);
    assertThrows(
      () => fenceCheck(storage, { name: "x", token: next.token, fencingToken: fence }),
      StaleFenceError,
    );
    db.exec("ROLLBACK");
    holder.kill("SIGKILL");
    await holder.status;
    await lines.cancel();
  }));
