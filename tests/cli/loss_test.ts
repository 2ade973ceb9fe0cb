/** What becomes of a command when its lease, its wrapper or its storage ends first. */
import { assert, assertEquals, assertMatch } from "@std/assert";
import { startRedis, testsFor } from "../../scripts/services.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";
import { Bench, until } from "./harness.ts";

/** A command that beats into a file, with one in the background that does not listen to SIGTERM. */
const STUBBORN = `
(trap "" TERM; while :; do date +%s%3N >> "$BEATS"; sleep 0.01; done) &
trap "" TERM
while :; do date +%s%3N >> "$BEATS"; sleep 0.01; done`;

/** One that ends as soon as it is told to, and says so. */
const POLITE = `trap 'echo told; kill $!; exit 0' TERM; sleep 60 & wait $!`;

const redisTest = await testsFor("redis");

// covers: G5 G6
redisTest(
  "run kills the whole group before anybody else gets the lock, with the storage cut off",
  async () => {
    await using bench = new Bench();
    await using redis = await startRedis();
    await using proxy = await startTcpProxy({ targetPort: redis.port });
    const beats = bench.path("beats");
    const held = bench.start(
      ["run", "deploy", "--ttl-ms", "2000", "--grace-ms", "400", "--", "sh", "-c", STUBBORN],
      { env: { HOLDFAST_STORAGE: `redis://127.0.0.1:${proxy.port}`, BEATS: beats } },
    );
    await until(() => bench.lines("beats").length > 2);
    bench.storage = redis.url;
    const next = bench.start(["run", "deploy", "--", "date", "+%s%3N"]);
    await until(() => next.stderr().includes("waiting for"));
    proxy.hang(true);
    const [{ status, stderr }, { stdout }] = await Promise.all([held.result, next.result]);
    const [lastBeatMs, nextMs] = [Number(bench.lines("beats").at(-1)), Number(stdout)];
    assert(lastBeatMs < nextMs, `The last beat was at ${lastBeatMs}, the next holder at ${nextMs}`);
    assertEquals(status, 70);
    assertMatch(stderr, /Cannot renew lease "deploy" as the storage did not answer/);
    assertMatch(stderr, /the lease on "deploy" is about to be lost: the command gets SIGTERM\n/);
    assertMatch(stderr, /the lease on "deploy" is lost \(expired\): the command gets SIGKILL\n/);
    await bench.assertNothingLeft("deploy");
  },
);

redisTest(
  "run ends the command by SIGTERM when the storage freezes, and ends with 70",
  async () => {
    await using bench = new Bench();
    await using redis = await startRedis();
    bench.storage = redis.url;
    const args = ["--ttl-ms", "2000", "--grace-ms", "600", "--", "sh", "-c", POLITE];
    const running = bench.start(["run", "deploy", ...args]);
    await bench.untilRuns("sleep 60");
    redis.freeze();
    const { status, stdout, stderr } = await running.result;
    assertEquals(bench.processes(), []);
    redis.thaw();
    assertEquals([status, stdout], [70, "told\n"]);
    assert(!stderr.includes("SIGKILL"), stderr);
    await until(() => true);
    await bench.assertNothingLeft();
  },
);

redisTest("run goes on when the storage comes back in time", async () => {
  await using bench = new Bench();
  await using redis = await startRedis();
  bench.storage = redis.url;
  const running = bench.start(["run", "deploy", "--ttl-ms", "3000", "--", "sleep", "4"]);
  await bench.untilRuns("sleep 4");
  redis.freeze();
  await until(() => running.stderr().includes("Cannot renew"));
  redis.thaw();
  assertEquals((await running.result).status, 0);
  await bench.assertNothingLeft("deploy");
});

redisTest(
  "run ends with 74 when the storage is frozen from the start, within --wait-ms",
  async () => {
    await using bench = new Bench();
    await using redis = await startRedis();
    bench.storage = redis.url;
    redis.freeze();
    const startedMs = performance.now();
    const { status, stderr } = await bench.run(["run", "deploy", "--wait-ms", "500", "--", "true"]);
    const tookMs = performance.now() - startedMs;
    assertEquals(status, 74);
    assertMatch(stderr, /^holdfast: Cannot .* did not answer.*\n$/);
    assert(tookMs < 5000, `It took ${tookMs} ms`);
  },
);

Deno.test("run tells the command by SIGTERM that its lease was taken away, and kills it after the grace", async () => {
  await using bench = new Bench();
  const beats = bench.path("beats");
  const running = bench.start(
    ["run", "deploy", "--ttl-ms", "1500", "--grace-ms", "300", "--", "sh", "-c", STUBBORN],
    { env: { BEATS: beats } },
  );
  await until(() => bench.lines("beats").length > 2);
  const { stdout } = await bench.run(["release", "deploy", "--force", "--json"]);
  assertEquals(JSON.parse(stdout), { name: "deploy", removed: 1 });
  const { status, stderr } = await running.result;
  assertEquals(
    stderr,
    `holdfast: the lease on "deploy" is lost (evicted): the command gets SIGTERM\n` +
      `holdfast: the lease on "deploy" is lost (evicted): the command gets SIGKILL\n`,
  );
  assertEquals(status, 70);
  await bench.assertNothingLeft("deploy");
});

for (const signal of ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"] as const) {
  Deno.test(`run passes ${signal} on, and gives the lock back after the command has ended`, async () => {
    await using bench = new Bench();
    const name = signal.slice(3);
    // The whole group gets it, so a signal that ends it ends the sleep too.
    const work = `trap 'echo ${name}; exit 5' ${name}; sleep 60 & wait $!`;
    const running = bench.start(["run", "deploy", "--grace-ms", "200", "--", "sh", "-c", work]);
    await bench.untilRuns("sleep 60");
    running.kill(signal);
    const { status, stdout } = await running.result;
    assertEquals([status, stdout], [5, `${name}\n`]);
    await bench.assertNothingLeft("deploy");
  });
}

Deno.test("run that is interrupted while it waits ends with 130 and leaves no ticket", async () => {
  await using bench = new Bench();
  const holder = bench.start(["run", "deploy", "--", "cat"]);
  await bench.untilRuns("cat");
  const waiter = bench.start(["run", "deploy", "--fair", "--", "true"]);
  await until(() => waiter.stderr().includes("waiting for"));
  waiter.kill("SIGINT");
  assertEquals((await waiter.result).status, 130);
  assertEquals((await bench.status("deploy")).waiters, 0);
  holder.kill("SIGTERM");
  await holder.result;
  await bench.assertNothingLeft("deploy");
});

Deno.test("run ends what the command leaves running, after a grace for what ends by itself", async () => {
  await using bench = new Bench();
  const work = `(sleep 0.1; echo by itself) & (trap "" TERM; sleep 60; sleep 60) & echo done`;
  const args = ["run", "deploy", "--grace-ms", "300", "--", "sh", "-c", work];
  const { status, stdout, stderr } = await bench.run(args);
  assertEquals([status, stdout], [0, "done\nby itself\n"]);
  assertMatch(stderr, /^holdfast: the command on "deploy" ended and left others running, .*\n$/);
  await bench.assertNothingLeft("deploy");
});

for (const [says, signal] of [["killed", "SIGKILL"], ["stopped", "SIGSTOP"]] as const) {
  // covers: G5
  // Not in a file: who is stopped while it writes keeps it locked for everybody.
  redisTest(
    `the command does not work on beside the next holder when its run is ${says}`,
    async () => {
      await using bench = new Bench();
      await using redis = await startRedis();
      bench.storage = redis.url;
      const running = bench.start(
        ["run", "deploy", "--ttl-ms", "1500", "--", "sh", "-c", STUBBORN],
        { env: { BEATS: bench.path("beats") } },
      );
      await until(() => bench.lines("beats").length > 2);
      const next = bench.start(["run", "deploy", "--", "date", "+%s%3N"]);
      await until(() => next.stderr().includes("waiting for"));
      running.kill(signal);
      const { stdout } = await next.result;
      const lastBeatMs = Number(bench.lines("beats").at(-1));
      assert(lastBeatMs < Number(stdout), `The last beat was at ${lastBeatMs}, then ${stdout}`);
      if (signal === "SIGSTOP") running.kill("SIGCONT");
      const { status } = await running.result;
      assertEquals(status, signal === "SIGSTOP" ? 70 : 137);
      await bench.assertNothingLeft("deploy");
    },
  );
}
