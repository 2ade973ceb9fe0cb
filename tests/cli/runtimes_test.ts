/** The command line under Node and Bun, bundled as the npm package has it, with a `bin` that calls `main`. */
import { assert, assertEquals, assertMatch } from "@std/assert";
import { fileURLToPath } from "node:url";
import { startRedis, testsFor } from "../../scripts/services.ts";
import { Bench, SOURCE, type StartOptions, until } from "./harness.ts";

const MODULES = fileURLToPath(new URL("../../node_modules", import.meta.url));
const CONFIG = fileURLToPath(new URL("../../deno.json", import.meta.url));
const BUNDLER = fileURLToPath(new URL("./bundle.ts", import.meta.url));

let bundle = "";

Deno.test.beforeAll(async () => {
  bundle = Deno.makeTempDirSync({ prefix: "holdfast-bundle-" });
  // A process of its own, because the bundler's own process ends some time after it was told to.
  const args = ["run", "-A", "--no-check", "--config", CONFIG, BUNDLER, bundle];
  const { code, stderr } = await new Deno.Command(Deno.execPath(), { args }).output();
  assertEquals(code, 0, new TextDecoder().decode(stderr));
});

Deno.test.afterAll(() => Deno.removeSync(bundle, { recursive: true }));

/** A user's project, with the packages that this repository has, or none. */
function project(bench: Bench, { withPackages }: { readonly withPackages: boolean }): string {
  const folder = bench.path("project");
  Deno.mkdirSync(folder);
  if (withPackages) Deno.symlinkSync(MODULES, `${folder}/node_modules`);
  return folder;
}

/** Runs a runtime's program in the folder of the project. */
function programOf(runtime: string, folder: string): readonly string[] {
  const line = runtime === "deno"
    ? SOURCE.join(" ")
    : `${runtime === "bun" ? "bun --no-install" : runtime} ${bundle}/bin.js`;
  return ["sh", "-c", `cd ${folder} && exec ${line} "$@"`, "holdfast"];
}

const redisTest = await testsFor("redis");

for (const runtime of ["node", "bun"]) {
  redisTest(
    `${runtime}: run holds a lock in Redis, passes signals on and gives it back`,
    async () => {
      await using bench = new Bench();
      await using redis = await startRedis();
      bench.storage = redis.url;
      const program = programOf(runtime, project(bench, { withPackages: true }));
      const work =
        `trap 'echo told; exit 5' TERM; echo $HOLDFAST_FENCING_TOKEN; sleep 60 & wait $!`;
      const running = bench.start(["run", "deploy", "--", "sh", "-c", work], { program });
      await bench.untilRuns("sleep 60");
      const { fence } = await bench.status("deploy");
      const second = await bench.run(["run", "deploy", "--no-wait", "--", "true"], { program });
      assertEquals(second.status, 75);
      running.kill("SIGTERM");
      const { status, stdout } = await running.result;
      assertEquals([status, stdout], [5, `${fence}\ntold\n`]);
      await bench.assertNothingLeft("deploy");
    },
  );

  redisTest(`${runtime}: run kills the group at the deadline with the storage frozen`, async () => {
    await using bench = new Bench();
    await using redis = await startRedis();
    bench.storage = redis.url;
    const program = programOf(runtime, project(bench, { withPackages: true }));
    const work = `trap "" TERM; (trap "" TERM; sleep 60; sleep 60) & sleep 60; sleep 60`;
    const args = ["run", "deploy", "--ttl-ms", "3000", "--grace-ms", "900", "--", "sh", "-c", work];
    const running = bench.start(args, { program });
    await bench.untilRuns("sleep 60");
    redis.freeze();
    const { status, stderr } = await running.result;
    assertEquals(status, 70, stderr);
    assertMatch(stderr, /gets SIGTERM\n.*\(expired\): the command gets SIGKILL\n$/);
    assertEquals(bench.processes(), []);
  });

  Deno.test(`${runtime}: run ends with 127 for a command that is not there, 126 for one that cannot run`, async () => {
    await using bench = new Bench();
    const program = programOf(runtime, project(bench, { withPackages: true }));
    for (const [command, status] of [["no-such-command", 127], ["/etc/passwd", 126]] as const) {
      const result = await bench.run(["run", "deploy", "--", command], { program });
      assertEquals(result.status, status, result.stderr);
    }
    await bench.assertNothingLeft("deploy");
  });

  Deno.test(`${runtime}: without a storage it says that it needs one`, async () => {
    await using bench = new Bench();
    const program = programOf(runtime, project(bench, { withPackages: false }));
    const options: StartOptions = { program, env: { HOLDFAST_STORAGE: "" } };
    const { status, stderr } = await bench.run(["status", "deploy"], options);
    assertEquals(status, 64);
    assertMatch(
      stderr,
      /^holdfast: Cannot choose a storage as --storage and HOLDFAST_STORAGE are absent/,
    );
  });

  Deno.test(`${runtime}: a package that is missing is named with the command that installs it`, async () => {
    await using bench = new Bench();
    bench.storage = "redis://localhost";
    const program = programOf(runtime, project(bench, { withPackages: false }));
    const { status, stderr } = await bench.run(["status", "deploy"], { program });
    const command = runtime === "bun" ? "bun add ioredis" : "npm install ioredis";
    assertEquals(
      stderr,
      `holdfast: Cannot load the package "ioredis", which this storage needs: run "${command}"\n`,
    );
    assertEquals(status, 74);
  });

  Deno.test(`${runtime}: run on a terminal shows who holds the lock`, async () => {
    await using bench = new Bench();
    const program = programOf(runtime, project(bench, { withPackages: true }));
    const holder = bench.start(["run", "deploy", "--label", "web-1", "--", "cat"]);
    await bench.untilRuns("cat");
    const waiter = bench.start(["run", "deploy", "--", "true"], { program, onTerminal: true });
    await until(() => /Waiting for "deploy".*web-1 {3}fence/s.test(waiter.stdout()));
    await waiter.type("\x03");
    assertEquals((await waiter.result).status, 130);
    holder.kill("SIGTERM");
    await holder.result;
    await bench.assertNothingLeft("deploy");
  });
}

Deno.test("Deno, Node and Bun take turns through one file", async () => {
  await using bench = new Bench();
  const folder = project(bench, { withPackages: true });
  const section = `echo begin >> ${bench.path("log")}; sleep 0.05; echo end >> ${
    bench.path("log")
  }`;
  const results = await Promise.all(
    ["deno", "node", "bun", "deno", "node", "bun"].map((runtime) =>
      bench.run(["run", "deploy", "--", "sh", "-c", section], {
        program: programOf(runtime, folder),
      })
    ),
  );
  for (const { status, stderr } of results) assertEquals(status, 0, stderr);
  assertEquals(bench.lines("log"), Array(6).fill(["begin", "end"]).flat());
  await bench.assertNothingLeft("deploy");
});

Deno.test("bun: sqlite:PATH is shared with Deno", async () => {
  await using bench = new Bench();
  bench.storage = `sqlite:${bench.path("locks.db")}`;
  const program = programOf("bun", project(bench, { withPackages: false }));
  const holder = bench.start(["run", "deploy", "--label", "web-1", "--", "cat"], { program });
  await bench.untilRuns("cat");
  assertEquals((await bench.status("deploy")).holders[0]!.label, "web-1");
  assertEquals((await bench.run(["run", "deploy", "--no-wait", "--", "true"])).status, 75);
  holder.kill("SIGTERM");
  await holder.result;
  const list = await bench.run(["list"], { program });
  assert(list.stdout.includes("deploy  free"), list.stdout + list.stderr);
  await bench.assertNothingLeft("deploy");
});
