/** Many processes on one file, and the recipes of docs/cli.md, as they stand there. */
import { assert, assertEquals } from "@std/assert";
import { Bench, type Running, SOURCE, until } from "./harness.ts";

const DOC = Deno.readTextFileSync(new URL("../../docs/cli.md", import.meta.url));

/** The code under a bold title of the document. */
function recipe(title: string): string {
  const [, code] = DOC.slice(DOC.indexOf(`**${title}`)).match(/```\w+\n([\s\S]*?)```/)!;
  return code!;
}

/** Puts `holdfast` on the path, and scripts into the folder of the test. */
function prepare(bench: Bench, scripts: Readonly<Record<string, string>>): Record<string, string> {
  const holdfast = `exec ${SOURCE.join(" ")} "$@"`;
  for (const [name, text] of Object.entries({ holdfast, ...scripts })) {
    Deno.writeTextFileSync(bench.path(name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  }
  return { PATH: `${bench.folder}:${Deno.env.get("PATH")}` };
}

/** Runs a text as a script in the folder of the test. */
function sh(bench: Bench, script: string, env: Readonly<Record<string, string>>): Running {
  const program = ["sh", "-c", `cd "${bench.folder}"\n${script}`];
  return bench.start([], { program, env });
}

/** Writes when it begins and when it ends into one file. */
const SECTION = `echo "begin $HOLDFAST_FENCING_TOKEN" >> log; sleep 0.05; echo "end" >> log`;

// covers: G1 G2
Deno.test("two machines' worth of processes on one file take turns, with rising fences", async () => {
  await using bench = new Bench();
  const env = prepare(bench, {});
  const results = await Promise.all(["red", "blue"].flatMap((machine) =>
    [1, 2, 3, 4].map((n) => {
      const line = `holdfast run deploy --label ${machine}:${n} -- sh -c '${SECTION}'`;
      return sh(bench, `${line} && ${line}`, env).result;
    })
  ));
  assertEquals(results.map(({ status }) => status), Array(8).fill(0));
  const log = bench.lines("log");
  assertEquals(log.length, 32);
  assertEquals(log.map((line) => line.split(" ")[0]), Array(16).fill(["begin", "end"]).flat());
  const fences = log.filter((line) => line !== "end").map((line) => Number(line.split(" ")[1]));
  assertEquals(fences, fences.toSorted((a, b) => a - b));
  assertEquals(new Set(fences).size, 16);
  await bench.assertNothingLeft("deploy");
});

Deno.test("the same sections without the lock overlap", async () => {
  await using bench = new Bench();
  const env = prepare(bench, {});
  await Promise.all([1, 2, 3, 4].map(() => sh(bench, `sh -c '${SECTION}'`, env).result));
  const words = bench.lines("log").map((line) => line.split(" ")[0]);
  assert(words.join(" ") !== Array(4).fill("begin end").join(" "), words.join(" "));
});

Deno.test("recipe: cron on several machines runs the report once, and sends no mail", async () => {
  await using bench = new Bench();
  const env = prepare(bench, { "report.sh": `echo ran >> reports; sleep 0.1` });
  const [, line] = recipe("Cron on several machines.").trim().split("\n");
  const command = line!.split(" ").slice(5).join(" ");
  const machines = [0, 0, 0, 0.3, 0.6].map((late) => sh(bench, `sleep ${late}; ${command}`, env));
  const results = await Promise.all(machines.map(({ result }) => result));
  assertEquals(bench.lines("reports"), ["ran"]);
  assertEquals(results.map(({ status }) => status).sort(), [0, 75, 75, 75, 75]);
  for (const { stdout, stderr } of results) assertEquals(stdout + stderr, "");
  assertEquals(bench.processes(), []);
});

Deno.test("recipe: a migration at boot runs before every server, once", async () => {
  await using bench = new Bench();
  const env = prepare(bench, {
    "migrate.sh": `[ -f schema ] || { sleep 0.3; echo done > schema; echo migrated >> log; }`,
    "server.sh": `cat schema; echo started >> log`,
  });
  const boot = recipe("A migration at boot.");
  const servers = Array.from({ length: 10 }, () => sh(bench, boot, env));
  for (const { result } of servers) {
    const { status, stdout } = await result;
    assertEquals([status, stdout], [0, "done\n"]);
  }
  assertEquals(bench.lines("log"), ["migrated", ...Array(10).fill("started")]);
  await bench.assertNothingLeft("migrate");
});

// covers: G8
Deno.test("recipe: a job goes on elsewhere when its host is killed", async () => {
  await using bench = new Bench();
  const env = prepare(bench, {
    "work.sh": `while :; do echo "$HOST $HOLDFAST_FENCING_TOKEN $(date +%s%3N)" >> log
      sleep 0.02; done`,
  });
  const ttlMs = 1500;
  const loop = recipe("A job that goes on elsewhere").replace("15000", `${ttlMs}`);
  const hosts = ["red", "blue"].map((HOST) => ({
    HOST,
    running: sh(bench, loop, { ...env, HOST }),
  }));
  await until(() => bench.lines("log").length > 2);
  const first = hosts.find(({ HOST }) => bench.lines("log")[0]!.startsWith(HOST))!;
  // Let the other one wait, and then a whole machine goes at once.
  await until(() => hosts.every(({ HOST, running }) => HOST === first.HOST || running.stderr()));
  for (const pid of withEnvironment(`HOST=${first.HOST}`, bench)) Deno.kill(pid, "SIGKILL");
  await until(() => bench.lines("log").some((line) => !line.startsWith(first.HOST)));
  const log = bench.lines("log").map((line) => line.split(" "));
  const change = log.findIndex(([host]) => host !== first.HOST);
  const [[, fence, lastMs], [, nextFence, nextMs]] = [log[change - 1]!, log[change]!];
  assert(Number(fence) < Number(nextFence));
  assert(Number(nextMs) - Number(lastMs) <= ttlMs + 1000, `${nextMs} after ${lastMs}`);
});

function withEnvironment(variable: string, bench: Bench): number[] {
  return bench.processes().map((line) => parseInt(line)).filter((pid) => {
    try {
      return Deno.readTextFileSync(`/proc/${pid}/environ`).split("\0").includes(variable);
    } catch {
      return false;
    }
  });
}
