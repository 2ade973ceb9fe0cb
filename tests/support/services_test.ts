import {
  assert,
  assertEquals,
  assertMatch,
  assertRejects,
  assertStringIncludes,
} from "@std/assert";
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import postgres from "postgres";
import { PRODUCTS, type ServiceName } from "../../scripts/services/products.ts";
import { exchange, type Service } from "../../scripts/services/service.ts";
import {
  start,
  startPostgres,
  startRedis,
  startRedisCluster,
  testsFor,
  withService,
} from "../../scripts/services.ts";

const SERVICES_URL = new URL("../../scripts/services.ts", import.meta.url).href;
const CONFIG_PATH = new URL("../../deno.json", import.meta.url).pathname;
const SANITIZED = { sanitizeOps: true, sanitizeResources: true };

function redisCommand(service: Service, command: string): Promise<string> {
  return exchange(service.port, `${command}\r\n`, /\r\n$/);
}

function accepts(port: number): Promise<boolean> {
  return exchange(port, "", /^/).then(() => true, () => false);
}

/** The temporary folders of the servers that the process `pid` started. */
function foldersOf(pid: number): string[] {
  return readdirSync(tmpdir()).filter((name) => name.startsWith(`holdfast-${hostname()}-${pid}-`));
}

/** Whether a process ends soon; one that its parent has not yet reaped (a zombie) has ended. */
async function isGone(pid: number): Promise<boolean> {
  const hasEnded = () => {
    const stat = `/proc/${pid}/stat`;
    return !existsSync(stat) || readFileSync(stat, "utf8").includes(") Z ");
  };
  for (let i = 0; i < 100 && !hasEnded(); i++) await sleep(10);
  return hasEnded();
}

/** Whether a server stops answering soon: the threads of a killed process end one after the other. */
async function isDown(isReady: () => Promise<boolean>): Promise<boolean> {
  for (let i = 0; i < 100; i++) {
    try {
      await isReady();
    } catch {
      return true;
    }
    await sleep(10);
  }
  return false;
}

for (const name of Object.keys(PRODUCTS) as ServiceName[]) {
  const test = await testsFor(name);
  test({
    name: `${name} starts, freezes, dies, comes back on its port, and leaves nothing`,
    ...SANITIZED,
    fn: async () => {
      const startedMs = performance.now();
      const service = await start(name);
      console.log(`${name}: ready in ${Math.round(performance.now() - startedMs)} ms`);
      const { port, pid, url } = service;
      const isReady = () => PRODUCTS[name].isReady(port);

      service.freeze();
      await assertRejects(isReady, Error, "does not answer");
      service.thaw();
      assert(await isReady());

      service.kill();
      assert(await isGone(pid));
      assert(await isDown(isReady));

      await service.restart();
      assertEquals([service.port, service.url], [port, url]);
      assert(service.pid !== pid && await isReady());

      const last = service.pid;
      await service.stop();
      await service.stop();
      assert(await isGone(last));
      assertEquals(existsSync(service.folder), false);
    },
  });
}

const redisTest = await testsFor("redis");

for (const persist of [false, true]) {
  for (const isCrash of [false, true]) {
    const how = `${isCrash ? "kill() and " : ""}restart() ${persist ? "keeps" : "loses"} the data`;
    redisTest(`${how} with persist: ${persist}`, async () => {
      await using redis = await startRedis({ persist });
      await redisCommand(redis, "SET key value");
      if (isCrash) redis.kill();
      await redis.restart();
      assertEquals(await redisCommand(redis, "GET key"), persist ? "$5\r\nvalue\r\n" : "$-1\r\n");
    });
  }
}

redisTest("stop() ends a frozen server", async () => {
  const redis = await startRedis();
  redis.freeze();
  const { pid } = redis;
  await redis.stop();
  assert(await isGone(pid));
});

redisTest("restart() waits for a port that somebody else took", async () => {
  await using redis = await startRedis();
  redis.kill();
  // Refused at last: the threads of a killed server end, and with them its sockets, one by one.
  while (await accepts(redis.port)) await sleep(10);
  const thief = createServer((socket) => socket.destroy());
  await new Promise<void>((resolve) => thief.listen(redis.port, "127.0.0.1", resolve));
  const restarted = redis.restart();
  await sleep(100);
  await new Promise((resolve) => thief.close(resolve));
  await restarted;
  assertMatch(await redisCommand(redis, "PING"), /PONG/);
});

redisTest("a server that exits at once is an error with its last words", async () => {
  const error = await assertRejects(() => startRedis({ args: ["--no-such-option", "1"] }), Error);
  assertStringIncludes(
    error.message,
    `Cannot start "redis" as it must not exit before it is ready`,
  );
  assertStringIncludes(error.message, "no-such-option");
});

(await testsFor("redis-cluster"))("the cluster answers CROSSSLOT", async () => {
  await using cluster = await startRedisCluster();
  assertMatch(await redisCommand(cluster, "MSET a 1 b 2"), /^-CROSSSLOT/);
  assertMatch(await redisCommand(cluster, "MSET {x}a 1 {x}b 2"), /^\+OK/);
});

await withService("redis", ({ test, service }) => {
  let pid = 0;
  test({
    name: "withService() starts the server before the first test",
    ...SANITIZED,
    fn: async () => {
      pid = service().pid;
      assertMatch(await redisCommand(service(), "SET shared 1"), /OK/);
    },
  });
  test({
    name: "withService() shares one server between tests",
    ...SANITIZED,
    fn: async () => {
      assertEquals(service().pid, pid);
      assertMatch(await redisCommand(service(), "GET shared"), /\$1/);
    },
  });
});

(await testsFor("postgres"))("Postgres freezes and dies with its open connections", async () => {
  await using service = await startPostgres();
  const sql = postgres(service.url, { max: 1, fetch_types: false });
  const [row] = await sql`SELECT pg_backend_pid() AS pid`;
  service.freeze();
  let hasAnswered = false;
  const answer = sql`SELECT 1`.then(() => hasAnswered = true);
  await sleep(50);
  assert(!hasAnswered);
  service.thaw();
  await answer;
  service.kill();
  assert(await isGone(row?.["pid"]));
  await sql.end({ timeout: 1 });
});

interface Ended {
  readonly code: number | null;
  readonly output: string;
}

function whenEnded(child: ChildProcess): Promise<Ended> {
  let output = "";
  child.stdout?.on("data", (bytes) => output += bytes);
  child.stderr?.on("data", (bytes) => output += bytes);
  return new Promise((resolve) => child.once("close", (code) => resolve({ code, output })));
}

const ENDINGS = {
  "throws": "throw new Error('boom')",
  "exits": "process.exit(0)",
  "is killed": "process.kill(process.pid, 'SIGKILL')",
  "is interrupted":
    "process.kill(process.pid, 'SIGINT'); await new Promise(() => setInterval(() => {}, 1000))",
};

for (const [how, ending] of Object.entries(ENDINGS)) {
  redisTest({
    name: `a server ends with a process that ${how}`,
    ignore: process.platform !== "linux",
    fn: async () => {
      const code = `import process from "node:process";
        import { start } from "${SERVICES_URL}";
        console.log("pid=" + (await start("redis")).pid);
        ${ending}`;
      const child = spawn(process.execPath, ["eval", "--config", CONFIG_PATH, code]);
      const { output } = await whenEnded(child);
      const pid = Number(/pid=(\d+)/.exec(output)?.[1]);
      assert(pid > 0, output);
      assert(await isGone(pid));
      await (await startRedis()).stop(); // Each start removes the folders of dead processes.
      assertEquals(foldersOf(child.pid ?? 0), []);
    },
  });
}

/** Runs a file of two tests where neither Java nor anything else can be found. */
async function runTestsWithoutJava(env: Record<string, string>): Promise<Ended> {
  const folder = await mkdtemp(join(tmpdir(), "services-test-"));
  const file = join(folder, "missing_test.ts");
  await writeFile(
    file,
    `import { withService } from "${SERVICES_URL}";
    await withService("dynamodb", ({ test }) => {
      test("by name", () => {});
      test({ name: "by definition", fn: () => {} });
    });`,
  );
  const flags = ["test", "-A", "--no-check", "--config", CONFIG_PATH];
  const child = spawn(process.execPath, [...flags, file], {
    env: { ...process.env, PATH: folder, HOLDFAST_CACHE: folder, NO_COLOR: "1", ...env },
  });
  const ended = await whenEnded(child);
  await rm(folder, { recursive: true });
  return ended;
}

const REASON = `Cannot start "dynamodb" as "java" is missing: install a Java runtime`;

Deno.test("a test whose server is missing is ignored, with the reason", async () => {
  const { code, output } = await runTestsWithoutJava({ HOLDFAST_REQUIRE_SERVICES: "redis" });
  assertStringIncludes(output, `by name (${REASON}`);
  assertStringIncludes(output, `by definition (${REASON}`);
  assertStringIncludes(output, "0 passed | 0 failed | 2 ignored");
  assertEquals(code, 0);
});

for (const required of ["1", "redis,dynamodb"]) {
  Deno.test(`HOLDFAST_REQUIRE_SERVICES=${required} makes a missing server fail its tests`, async () => {
    const { code, output } = await runTestsWithoutJava({ HOLDFAST_REQUIRE_SERVICES: required });
    assertStringIncludes(output, REASON);
    assertStringIncludes(output, "0 passed | 2 failed");
    assertEquals(code, 1);
  });
}
