/** What the command line shows on a real terminal, and what the keys do there. */
import { assert, assertEquals, assertMatch } from "@std/assert";
import { COMMANDS, OVERVIEW } from "../../src/cli/commands.ts";
import { startRedis, testsFor } from "../../scripts/services.ts";
import { Bench, plain, SOURCE, until } from "./harness.ts";

const redisTest = await testsFor("redis");

Deno.test("run on a terminal shows who holds the lock, until when, and how many wait", async () => {
  await using bench = new Bench();
  const holder = bench.start(["run", "deploy", "--label", "web-1", "--", "cat"]);
  await bench.untilRuns("cat");
  const others = [1, 2].map(() => bench.start(["run", "deploy", "--", "true"]));
  const waiter = bench.start(["run", "deploy", "--", "echo", "mine"], { onTerminal: true });
  const { fence } = await bench.status("deploy");
  const view = new RegExp(
    `Waiting for "deploy": \\d\\.\\d s, 3 waiting\n  web-1   fence ${fence}   \\d+\\.\\d s left\n`,
  );
  await until(() => view.test(plain(waiter.stdout())));
  holder.kill("SIGTERM");
  const results = await Promise.all([waiter.result, ...others.map((other) => other.result)]);
  assertEquals(results.map(({ status }) => status), [0, 0, 0]);
  const lines = screen(waiter.stdout());
  assertMatch(lines[0]!, /^holdfast: got "deploy" after \d+\.\d s, fence \d{16}$/);
  // Nothing of the view remains.
  assertEquals(lines.slice(1), ["mine"]);
  await bench.assertNothingLeft("deploy");
});

Deno.test("Ctrl-C on a terminal ends the command, and the lock is free", async () => {
  await using bench = new Bench();
  const args = ["run", "deploy", "--", "sh", "-c", "trap 'echo told; exit 9' INT; echo on; cat; :"];
  const running = bench.start(args, { onTerminal: true });
  await until(() => running.stdout().includes("on"));
  await running.type("\x03");
  const { status, stdout } = await running.result;
  assertEquals(screen(stdout).map((line) => line.replace("^C", "")), ["on", "told"]);
  assertEquals(status, 9);
  await bench.assertNothingLeft("deploy");
});

Deno.test("Ctrl-C on a terminal ends the wait with 130, and takes the view away", async () => {
  await using bench = new Bench();
  const holder = bench.start(["run", "deploy", "--", "cat"]);
  await bench.untilRuns("cat");
  const waiter = bench.start(["run", "deploy", "--", "true"], { onTerminal: true });
  await until(() => plain(waiter.stdout()).includes("Waiting for"));
  await waiter.type("\x03");
  const { status, stdout } = await waiter.result;
  assertEquals([status, screen(stdout).filter((line) => line !== "^C")], [130, []]);
  assertEquals((await bench.status("deploy")).waiters, 0);
  holder.kill("SIGTERM");
  await holder.result;
  await bench.assertNothingLeft("deploy");
});

redisTest(
  "a command that was suspended past its deadline is killed before it goes on",
  async () => {
    await using bench = new Bench();
    await using redis = await startRedis();
    bench.storage = redis.url;
    const running = bench.start(
      [
        "run",
        "deploy",
        "--ttl-ms",
        "600",
        "--",
        "sh",
        "-c",
        "while :; do echo $$; sleep 0.02; done",
      ],
    );
    await until(() => running.stdout().length > 0);
    const group = Number(running.stdout().split("\n")[0]);
    running.kill("SIGTSTP");
    await until(() => "TZ".includes(stateOf(group)) && stateOf(running.pid) === "T");
    const before = running.stdout();
    // Somebody else gets the lock meanwhile.
    assertEquals((await bench.run(["run", "deploy", "--", "true"])).status, 0);
    running.kill("SIGCONT");
    const { status, stdout, stderr } = await running.result;
    assertEquals([status, stdout], [70, before]);
    assertMatch(stderr, /is lost \(expired\): the command gets SIGKILL\n$/);
    await bench.assertNothingLeft("deploy");
  },
);

Deno.test("watch on a terminal shows grants above who holds the lock now", async () => {
  await using bench = new Bench();
  const watch = bench.start(["watch", "deploy"], { onTerminal: true });
  await until(() => plain(watch.stdout()).includes(`"deploy": free`));
  await bench.run(["run", "deploy", "--label", "web-1", "--", "sleep", "0.5"]);
  await until(() => plain(watch.stdout()).includes("ended"));
  await watch.type("\x03");
  const { status, stdout } = await watch.result;
  assertEquals(status, 130);
  const lines = screen(stdout).filter((line) => line !== "" && line !== "^C");
  assertMatch(lines[0]!, /^\d{4}-\d\d-\d\dT[\d:.]+Z granted fence \d{16} web-1$/);
  assertMatch(lines[1]!, /^\d{4}-\d\d-\d\dT[\d:.]+Z ended {3}fence \d{16} web-1 after \d+ ms$/);
  assertMatch(lines[2]!, /^"deploy": free/);
  assertMatch(plain(stdout), /"deploy": held by\n {2}web-1 {3}fence \d{16} {3}\d+\.\d s left\n/);
});

Deno.test("watch in a pipe prints a line for each grant, with --json an object", async () => {
  await using bench = new Bench();
  const watch = bench.start(["watch", "deploy", "--json", "--every-ms", "20"]);
  for (const label of ["web-1", "web-2"]) {
    // What comes before the first look is not seen.
    await until(() => bench.processes().length > 0);
    await bench.run(["run", "deploy", "--label", label, "--", "sleep", "0.3"]);
  }
  await until(() => watch.stdout().split("ended").length > 2);
  watch.kill("SIGTERM");
  const { status, stdout, stderr } = await watch.result;
  assertEquals([status, stderr], [143, ""]);
  const events = stdout.trim().split("\n").map((line) => JSON.parse(line));
  const [granted, ended] = events.slice(-2);
  const { at, fence } = granted;
  assertEquals(granted, {
    event: "granted",
    at,
    name: "deploy",
    fence,
    label: "web-2",
    permits: 1,
  });
  assertEquals([ended.event, ended.fence, ended.label], ["ended", fence, "web-2"]);
  assert(Number.isInteger(ended.heldMs) && new Date(at).toISOString() === at);
});

Deno.test("watch ends quietly when its reader does", async () => {
  await using bench = new Bench();

  const line = [...SOURCE, "watch", "deploy", "--every-ms", "20"].join(" ");
  const watch = bench.start(["-c", `${line} | head -n 1; echo over`], { program: ["sh"] });
  for (let i = 0; i < 2; i++) await bench.run(["run", "deploy", "--", "sleep", "0.2"]);
  const { stdout, stderr } = await watch.result;
  assertMatch(stdout, /^\S+ (granted|held) .*\nover\n$/);
  assertEquals(stderr, "");
});

const helps = Object.entries({ "": { help: OVERVIEW, table: {} }, ...COMMANDS });
for (const [name, { help, table }] of helps) {
  Deno.test(`holdfast ${name} --help fits a terminal, and has an example`, async () => {
    await using bench = new Bench();
    const { status, stdout } = await bench.run([...(name ? [name] : []), "--help"]);
    assertEquals([status, stdout], [0, `${help}\n`]);
    const lines = help.split("\n");
    assert(lines.length <= 23, `It has ${lines.length} lines, beside the prompt`);
    assertEquals(lines.filter((line) => line.length > 80), []);
    assertMatch(lines.at(name ? -1 : 3)!, /^ {2}holdfast \w/);
    for (const option of Object.keys(table)) {
      if (!["quiet", "help"].includes(option)) assert(help.includes(`--${option}`), option);
    }
  });
}

/** What is left on a screen: enough of a terminal for a view that goes up, clears and writes again. */
function screen(text: string): string[] {
  const lines: string[] = [""];
  let row = 0;
  // deno-lint-ignore no-control-regex -- these are what a terminal acts on
  for (const [part] of text.matchAll(/\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]|[^\x1b\r\n]+/g)) {
    if (part === "\n") lines[++row] ??= "";
    else if (part.endsWith("A") && part.startsWith("\x1b")) row -= parseInt(part.slice(2));
    else if (part === "\x1b[J") lines.splice(row, Infinity, "");
    else if (!part.startsWith("\x1b") && part !== "\r") lines[row] = part;
  }
  return lines.filter((line, i) => line !== "" || i < lines.length - 1);
}

function stateOf(pid: number): string {
  return /^State:\s+(\w)/m.exec(Deno.readTextFileSync(`/proc/${pid}/status`))?.[1] ?? "?";
}
