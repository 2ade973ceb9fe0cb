/** `holdfast run` in a pipe: exit statuses, what the command finds, what others see. */
import { assert, assertEquals, assertMatch } from "@std/assert";
import { Bench } from "./harness.ts";

const statuses: readonly {
  readonly says: string;
  readonly args: readonly string[];
  readonly status: number;
  readonly stderr: RegExp;
}[] = [
  { says: "that of the command", args: ["--", "sh", "-c", "exit 3"], status: 3, stderr: /^$/ },
  { says: "0 of the command", args: ["--", "true"], status: 0, stderr: /^$/ },
  {
    says: "128 and the number of the signal that ended the command",
    args: ["--", "sh", "-c", "kill -9 $$"],
    status: 137,
    stderr: /^$/,
  },
  {
    says: "127 for a command that is not there",
    args: ["--", "no-such-command"],
    status: 127,
    stderr: /^holdfast: Cannot run "no-such-command" as it was not found\n$/,
  },
  {
    says: "126 for a command that cannot be executed",
    args: ["--", "/etc/passwd"],
    status: 126,
    stderr: /^holdfast: Cannot run "\/etc\/passwd": .*EACCES.*\n$/,
  },
  {
    says: "64 without a command",
    args: [],
    status: 64,
    stderr: /^holdfast: Cannot run without a command: holdfast run deploy -- COMMAND\n$/,
  },
  {
    says: "64 for a mistyped option, with the nearest one",
    args: ["--tll-ms", "5", "--", "true"],
    status: 64,
    stderr: /^holdfast: Cannot use --tll-ms as there is no such option: did you mean --ttl-ms\?\n$/,
  },
  {
    says: "64 for a ttl that is too short",
    args: ["--ttl-ms", "9", "--", "true"],
    status: 64,
    stderr: /^holdfast: Cannot use --ttl-ms as it must be an integer from 10 to .* value is 9\n$/,
  },
  {
    says: "64 for a grace of more than a third of the ttl",
    args: ["--ttl-ms", "3000", "--grace-ms", "1001", "--", "true"],
    status: 64,
    stderr:
      /^holdfast: Cannot use --grace-ms as it must be .* from 0 to 1000 ms.* value is 1001\n$/,
  },
  {
    says: "64 for more permits than there are",
    args: ["--permits", "3", "--capacity", "2", "--", "true"],
    status: 64,
    stderr:
      /^holdfast: Cannot use --permits as it must be an integer from 1 to 2: .* value is 3\n$/,
  },
];

for (const { says, args, status, stderr } of statuses) {
  Deno.test(`run ends with ${says}`, async () => {
    await using bench = new Bench();
    const result = await bench.run(["run", "deploy", ...args]);
    assertMatch(result.stderr, stderr);
    assertEquals(result.status, status);
    await bench.assertNothingLeft("deploy");
  });
}

Deno.test("run ends with 75 if the lock is held and --no-wait, and says by whom", async () => {
  await using bench = new Bench();
  const first = bench.start(["run", "deploy", "--label", "web-1", "--", "cat"]);
  await bench.untilRuns("cat");
  const second = await bench.run(["run", "deploy", "--no-wait", "--", "true"]);
  assertEquals(second.status, 75);
  assertMatch(
    second.stderr,
    /^holdfast: Cannot acquire lock "deploy" as it is held by web-1 \(fence \d{16}, \d+\.\d s left\)\n$/,
  );
  first.kill("SIGTERM");
  await first.result;
  await bench.assertNothingLeft("deploy");
});

Deno.test("run ends with 75 when --wait-ms is over, and says in one line that it waits", async () => {
  await using bench = new Bench();
  const first = bench.start(["run", "deploy", "--label", "web-1", "--", "cat"]);
  await bench.untilRuns("cat");
  const second = await bench.run(["run", "deploy", "--wait-ms", "300", "--", "true"]);
  assertEquals(second.status, 75);
  const [waiting, over] = second.stderr.split("\n");
  assertMatch(
    waiting!,
    /^holdfast: waiting for "deploy", held by web-1 \(fence \d{16}, .* left\)$/,
  );
  assertMatch(
    over!,
    /^holdfast: Cannot acquire lock "deploy" as it is held by web-1 .* after 300 ms of waiting$/,
  );
  // Whoever gave up is not counted any more.
  assertEquals((await bench.status("deploy")).waiters, 0);
  first.kill("SIGTERM");
  await first.result;
  await bench.assertNothingLeft("deploy");
});

Deno.test("run waits until the holder ends, and its fencing token is larger", async () => {
  await using bench = new Bench();
  const work = `echo "$HOLDFAST_NAME $HOLDFAST_FENCING_TOKEN"; sleep 0.3`;
  const results = await Promise.all([
    bench.run(["run", "deploy", "--", "sh", "-c", work]),
    bench.run(["run", "deploy", "--", "sh", "-c", work]),
  ]);
  const fences = results.map(({ status, stdout }) => {
    assertEquals(status, 0);
    const [name, fence] = stdout.trim().split(" ");
    assertEquals(name, "deploy");
    return Number(fence);
  });
  assert(fences[0] !== fences[1]);
  assertEquals((await bench.status("deploy")).fence, Math.max(...fences));
  await bench.assertNothingLeft("deploy");
});

Deno.test("run with --min-hold-ms keeps the lock after the command, but not one that did not start", async () => {
  await using bench = new Bench();
  const missing = ["run", "nightly", "--min-hold-ms", "60000", "--", "no-such-command"];
  assertEquals((await bench.run(missing)).status, 127);
  const args = ["run", "nightly", "--no-wait", "--min-hold-ms", "60000", "--", "true"];
  assertEquals((await bench.run(args)).status, 0);
  assertEquals((await bench.run(args)).status, 75);
  const { holders } = await bench.status("nightly");
  assert(holders[0]!.remainingMs > 50_000, `It is kept for ${holders[0]!.remainingMs} ms`);
});

Deno.test("run with --permits and --capacity shares the lock, and no further", async () => {
  await using bench = new Bench();
  const args = (permits: string) => ["run", "pool", "--capacity", "3", "--permits", permits];
  const first = bench.start([...args("2"), "--", "cat"]);
  await bench.untilRuns("cat");
  assertEquals((await bench.run([...args("2"), "--no-wait", "--", "true"])).status, 75);
  assertEquals((await bench.run([...args("1"), "--no-wait", "--", "true"])).status, 0);
  const mutex = await bench.run(["run", "pool", "--no-wait", "--", "true"]);
  assertMatch(
    mutex.stderr,
    /^holdfast: Cannot acquire lock "pool" with a capacity of 1 as its holders/,
  );
  assertEquals(mutex.status, 64);
  first.kill("SIGTERM");
  await first.result;
  await bench.assertNothingLeft("pool");
});

Deno.test("run with --json says everything in objects, and never a token", async () => {
  await using bench = new Bench();
  const { stdout, stderr, status } = await bench.run([
    "run",
    "deploy",
    "--json",
    "--",
    "echo",
    "hi",
  ]);
  assertEquals([status, stdout], [0, "hi\n"]);
  const [acquired, ended] = stderr.trim().split("\n").map((line) => JSON.parse(line));
  const { fence, waitedMs } = acquired;
  assertEquals(acquired, { event: "acquired", name: "deploy", fence, waitedMs });
  assertEquals(ended, {
    event: "ended",
    name: "deploy",
    fence,
    status: 0,
    signal: null,
    released: true,
  });
});

Deno.test("run gives the command its own standard input and output", async () => {
  await using bench = new Bench();
  const running = bench.start(["run", "deploy", "--", "sh", "-c", "read line; echo got $line"]);
  await running.type("something\n");
  assertEquals((await running.result).stdout, "got something\n");
  await bench.assertNothingLeft("deploy");
});
