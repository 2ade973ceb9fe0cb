/** Every storage URL on the real product; and credentials, which nobody ever sees. */
import { assert, assertEquals, assertMatch } from "@std/assert";
import { DynamoDB } from "@aws-sdk/client-dynamodb";
import { type ServiceName, start, testsFor } from "../../scripts/services.ts";
import { exchange } from "../../scripts/services/service.ts";
import { createTable } from "../../src/storage/dynamodb.ts";
import { startKvConnect } from "../support/kv_connect.ts";
import { startUpstashProxy } from "../support/upstash_proxy.ts";
import { Bench, type Result, SOURCE, type StartOptions, until } from "./harness.ts";

const PASSWORD = "sw0rd/fish!";
const SECRETS = [PASSWORD, encodeURIComponent(PASSWORD)];

function assertNoSecret({ stdout, stderr }: Result): void {
  for (const secret of SECRETS) assert(!`${stdout}${stderr}`.includes(secret), stdout + stderr);
}

/** All commands on one storage, with a name that has to be encoded almost everywhere. */
async function useAll(bench: Bench, canList: boolean, options: StartOptions = {}): Promise<void> {
  const name = "invoice:42 {ü}/%";
  const holder = bench.start(["run", name, "--label", "web-1", "--", "cat"], options);
  await bench.untilRuns("cat");
  const { fence, holders } = await bench.status(name, options);
  assertEquals(holders.map(({ label, fence }) => [label, fence]), [["web-1", fence]]);
  const second = await bench.run(["run", name, "--no-wait", "--", "true"], options);
  assertEquals(second.status, 75, second.stderr);
  const list = await bench.run(["list", "invoice:", "--json"], options);
  if (canList) {
    const [only, ...others] = JSON.parse(list.stdout).locks;
    assertEquals([only.name, only.holders[0].label, others], [name, "web-1", []]);
  } else {
    assertMatch(list.stderr, /Cannot list the locks of /);
    assertEquals(list.status, 64);
  }
  const args = ["run", name, "--", "sh", "-c", 'echo "$HOLDFAST_FENCING_TOKEN"'];
  const waiter = bench.start(args, options);
  await until(() => waiter.stderr().includes("waiting for"));
  holder.kill("SIGTERM");
  for (const result of [await holder.result, await waiter.result, list]) assertNoSecret(result);
  const { status, stdout, stderr } = await waiter.result;
  assertEquals(status, 0, stderr);
  assertMatch(stderr, /^holdfast: waiting for [^\n]*, held by web-1 [^\n]*\n$/);
  assert(Number(stdout) > fence, `${stdout} is not above ${fence}`);
  const released = await bench.run(["release", name, "--force", "--json"], options);
  assertEquals(JSON.parse(released.stdout), { name, removed: 0 });
  const after = await bench.status(name, options);
  assertEquals([after.holders, after.waiters, bench.processes()], [[], 0, []]);
}

Deno.test("kv:PATH", async () => {
  await using bench = new Bench();
  await useAll(bench, true);
});

Deno.test("sqlite:PATH", async () => {
  await using bench = new Bench();
  bench.storage = `sqlite:${bench.path("locks.db")}`;
  await useAll(bench, true);
});

Deno.test("kv: is a file in the user's state folder, which only the user can enter", async () => {
  await using bench = new Bench();
  const env = { HOLDFAST_STORAGE: "", XDG_STATE_HOME: bench.path("state") };
  assertEquals((await bench.run(["run", "deploy", "--", "true"], { env })).status, 0);
  assert((await Deno.stat(bench.path("state/holdfast/locks.kv"))).isFile);
  assertEquals((await Deno.stat(bench.path("state/holdfast"))).mode! & 0o777, 0o700);
});

async function requirePassword(port: number, password: string): Promise<void> {
  assertEquals(await exchange(port, `CONFIG SET requirepass ${password}\r\n`, /\r\n/), "+OK\r\n");
}

/** A product that runs as a server, and how its URL is spelled. */
const servers: readonly {
  readonly name: ServiceName;
  readonly prepare?: (port: number) => Promise<unknown>;
  readonly urlOf: (url: URL) => string;
}[] = [
  {
    name: "redis",
    prepare: (port) => requirePassword(port, PASSWORD),
    urlOf: ({ host }) => `redis://:${SECRETS[1]}@${host}`,
  },
  {
    name: "postgres",
    urlOf: ({ host }) => `postgres://postgres:${SECRETS[1]}@${host}/postgres`,
  },
  { name: "mongo", urlOf: ({ host }) => `mongodb://${host}/app` },
];

for (const { name, prepare, urlOf } of servers) {
  const test = await testsFor(name);
  test(`${name} by its URL`, async () => {
    await using bench = new Bench();
    await using service = await start(name);
    await prepare?.(service.port);
    bench.storage = urlOf(new URL(service.url));
    await useAll(bench, true);
    // The server is gone, and so is its answer.
    await service.stop();
    const result = await bench.run(["status", "deploy"]);
    assertEquals(result.status, 74);
    assertMatch(result.stderr, /^holdfast: Cannot .*\n$/);
    assertNoSecret(result);
  });
}

const redisTest = await testsFor("redis");

redisTest("upstash+https://HOST, with the token from the environment", async () => {
  await using bench = new Bench();
  await using redis = await start("redis");
  await using proxy = await startUpstashProxy({ redisPort: redis.port, token: PASSWORD });
  bench.storage = `upstash+${proxy.url}`;
  await useAll(bench, true, { env: { UPSTASH_REDIS_REST_TOKEN: PASSWORD } });
  const without = await bench.run(["status", "deploy"]);
  assertEquals(without.status, 64);
  assertMatch(
    without.stderr,
    /as UPSTASH_REDIS_REST_TOKEN is not set: its token comes from there\n$/,
  );
  const wrong = await bench.run(["status", "deploy"], {
    env: { UPSTASH_REDIS_REST_TOKEN: `${PASSWORD}wrong` },
  });
  assertEquals(wrong.status, 74);
  assertNoSecret(wrong);
});

redisTest("a wrong password is a failure of the storage that does not show it", async () => {
  await using bench = new Bench();
  await using redis = await start("redis");
  await requirePassword(redis.port, "another");
  bench.storage = `redis://:${SECRETS[1]}@127.0.0.1:${redis.port}`;
  const result = await bench.run(["run", "deploy", "--json", "--", "true"]);
  assertEquals(result.status, 74);
  assertNoSecret(result);
  const { event, status, message } = JSON.parse(result.stderr);
  assertEquals([event, status], ["failed", 74]);
  assertMatch(message, /^Cannot open storage "redis:\/\/\*\*\*@127\.0\.0\.1:\d+": WRONGPASS/);
});

const dynamoTest = await testsFor("dynamodb");

dynamoTest("dynamodb://TABLE?region=, without a list", async () => {
  await using bench = new Bench();
  await using service = await start("dynamodb");
  const credentials = { accessKeyId: "test", secretAccessKey: PASSWORD };
  const client = new DynamoDB({ endpoint: service.url, region: "us-east-1", credentials });
  await createTable(client, "Leases");
  client.destroy();
  bench.storage = `dynamodb://Leases?region=us-east-1&endpoint=${service.url}`;
  const env = { AWS_ACCESS_KEY_ID: "test", AWS_SECRET_ACCESS_KEY: PASSWORD };
  await useAll(bench, false, { env });
});

Deno.test("kv+https://HOST, with the token from the environment", async () => {
  await using bench = new Bench();
  const server = await startKvConnect();
  try {
    bench.storage = `kv+${server.url}`;
    await useAll(bench, true, { env: { DENO_KV_ACCESS_TOKEN: PASSWORD } });
    const { status, stderr } = await bench.run(["status", "deploy"]);
    assertEquals(status, 64);
    assertMatch(stderr, /as DENO_KV_ACCESS_TOKEN is not set/);
  } finally {
    await server.close();
  }
});

const refused: readonly (readonly [url: string, says: RegExp, status: number])[] = [
  [
    "redsi://localhost",
    /"redsi:\/\/localhost" as there is no such storage: did you mean redis:/,
    64,
  ],
  ["/var/lib/locks.kv", /as there is no such storage: one of kv:, kv\+https:, /, 64],
  ["kv::memory:", /as nobody else can see what is in the memory of this process\n/, 64],
  ["sqlite:", /as it must name a file: sqlite:PATH\n/, 64],
  ["dynamodb:leases", /as it must be dynamodb:\/\/TABLE\?region=REGION\n/, 64],
  ["redis://127.0.0.1:1", /Cannot open storage "redis:\/\/127.0.0.1:1".*ECONNREFUSED/, 74],
  ["postgres://127.0.0.1:1/app", /ECONNREFUSED/, 74],
  ["kv:/dev/null/locks.kv", /Cannot open storage "kv:\/dev\/null\/locks.kv": /, 74],
  [`redis://u:${SECRETS[1]}@127.0.0.1:1`, /"redis:\/\/\*\*\*@127.0.0.1:1"/, 74],
  [`rediss://:${PASSWORD}@127.0.0.1:1`, /^holdfast: Cannot /, 74],
  [
    `mysql://u:${PASSWORD}@localhost`,
    /"mysql:\/\/\*\*\*@localhost" as there is no such storage/,
    64,
  ],
];

for (const [url, says, status] of refused) {
  Deno.test(`a storage that cannot be used is one sentence: ${url.replace(PASSWORD, "")}`, async () => {
    await using bench = new Bench();
    bench.storage = url;
    const result = await bench.run(["status", "deploy"]);
    assertMatch(result.stderr, says);
    assertMatch(result.stderr, /^holdfast: [^\n]+\n$/);
    assertEquals(result.status, status);
    assertNoSecret(result);
  });
}

for (const form of [["--storage"], []]) {
  Deno.test(`a password among the arguments is refused: ${form[0] ?? "--storage="}`, async () => {
    await using bench = new Bench();
    const url = `redis://:${SECRETS[1]}@localhost`;
    const args = form.length > 0 ? [...form, url] : [`--storage=${url}`];
    const result = await bench.run(["status", "deploy", ...args]);
    assertEquals(result.status, 64);
    assertMatch(
      result.stderr,
      /Cannot use --storage as it holds a credential, .*HOLDFAST_STORAGE\n$/,
    );
    assertNoSecret(result);
  });
}

Deno.test("kv: without --unstable-kv is one sentence that says what to do", async () => {
  await using bench = new Bench();
  const program = SOURCE.filter((word) => word !== "--unstable-kv")
    .map((word, i, all) => all[i - 1] === "--config" ? withoutImports(bench) : word);
  const result = await bench.run(["status", "deploy"], { program });
  assertEquals(result, {
    status: 64,
    stdout: "",
    stderr:
      `holdfast: Cannot open Deno KV as Deno has it only with --unstable-kv: add it after "deno run"\n`,
  });
});

Deno.test("a package that Deno can neither find nor fetch is one sentence that says what to do", async () => {
  await using bench = new Bench();
  bench.storage = "redis://127.0.0.1:1";
  const program = SOURCE.map((word, i, all) =>
    all[i - 1] === "--config" ? withoutImports(bench) : word.replace("manual", "none")
  ).toSpliced(2, 0, "--cached-only");
  const env = { DENO_DIR: bench.path("deno"), NPM_CONFIG_REGISTRY: "http://127.0.0.1:1" };
  const result = await bench.run(["status", "deploy"], { program, env });
  assertEquals(result, {
    status: 74,
    stdout: "",
    stderr:
      `holdfast: Cannot load the package "ioredis", which this storage needs: run "deno add npm:ioredis"\n`,
  });
});

/** The configuration of a user who has nothing but this library. */
function withoutImports(bench: Bench): string {
  Deno.writeTextFileSync(bench.path("deno.json"), "{}");
  return bench.path("deno.json");
}

Deno.test("a record that is none is an error in the list, and does not hide the others", async () => {
  await using bench = new Bench();
  await bench.run(["run", "deploy", "--", "true"]);
  const kv = await Deno.openKv(bench.path("locks.kv"));
  await kv.set(["holdfast", "lock", "foreign"], "x");
  kv.close();
  const { locks } = JSON.parse((await bench.run(["list", "--json"])).stdout);
  assertEquals(locks.map(({ name }: { name: string }) => name), ["deploy", "foreign"]);
  assertMatch(locks[1].error, /"holdfast\/lock\/foreign" as its value is not a Holdfast record/);
  const { status, stderr } = await bench.run(["run", "foreign", "--", "true"]);
  assertEquals(status, 74);
  assertMatch(stderr, /^holdfast: Cannot use key "holdfast\/lock\/foreign"/);
});

Deno.test("list of a new file is empty, and quiet in a pipe", async () => {
  await using bench = new Bench();
  for (const url of [bench.storage, `sqlite:${bench.path("new.db")}`]) {
    bench.storage = url;
    assertEquals(await bench.run(["list"]), { status: 0, stdout: "", stderr: "" });
  }
});
