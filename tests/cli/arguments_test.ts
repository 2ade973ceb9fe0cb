/** What the command line understands, and how it answers what it does not. */
import { assertEquals, assertThrows } from "@std/assert";
import { COMMON_OPTIONS, parseArguments } from "../../src/cli/arguments.ts";
import { Failure } from "../../src/cli/failure.ts";
import { clauseOf, duration, holdersOf, tableOf } from "../../src/cli/format.ts";
import { nearest } from "../../src/cli/nearest.ts";
import { RUN_OPTIONS } from "../../src/cli/run.ts";
import { redactor, shown } from "../../src/cli/storage_url.ts";
import { Bench } from "./harness.ts";

Deno.test("options stand before and after the name, with = and without, and end at --", () => {
  const args = [
    "--ttl-ms",
    "5000",
    "deploy",
    "--label=a b",
    "--fair",
    "--",
    "sh",
    "--ttl-ms",
    "--",
  ];
  assertEquals(parseArguments(args, RUN_OPTIONS), {
    words: ["deploy"],
    options: { "ttl-ms": 5000, label: "a b", fair: true },
    rest: ["sh", "--ttl-ms", "--"],
  });
});

const wrong: readonly (readonly [args: readonly string[], message: string])[] = [
  [["--label"], "Cannot use --label as it needs a value"],
  [["--label", "--fair"], "Cannot use --label as it needs a value"],
  [["--fair=no"], `Cannot use --fair as it takes no value: current value is "no"`],
  [["--ttl-ms", "5s"], `Cannot use --ttl-ms as it must be a whole number: current value is "5s"`],
  [["--ttl-ms=-5"], `Cannot use --ttl-ms as it must be a whole number: current value is "-5"`],
  [["--wait"], "Cannot use --wait as there is no such option: did you mean --wait-ms?"],
  [["--nowait"], "Cannot use --nowait as there is no such option: did you mean --no-wait?"],
  [["--zzz"], "Cannot use --zzz as there is no such option: try --help"],
  [["--toString"], "Cannot use --toString as there is no such option: try --help"],
  [["-x"], "Cannot use -x as there is no such option: try --help"],
];

for (const [args, message] of wrong) {
  Deno.test(`${args.join(" ")} is answered with what is wrong`, () => {
    const { status } = assertThrows(() => parseArguments(args, RUN_OPTIONS), Failure, message);
    assertEquals(status, 64);
  });
}

Deno.test("an option of another command is unknown", () => {
  assertThrows(() => parseArguments(["--ttl-ms", "5"], COMMON_OPTIONS), Failure, "try --help");
});

const typed: readonly (readonly [typed: string, meant: string | undefined])[] = [
  ["stauts", "status"],
  ["realese", "release"],
  ["runn", "run"],
  ["lst", "list"],
  ["watchh", "watch"],
  ["acquire", undefined],
  ["x", undefined],
];

for (const [word, meant] of typed) {
  Deno.test(`the command nearest to "${word}" is ${meant ?? "none"}`, () => {
    assertEquals(nearest(word, ["run", "status", "list", "watch", "release"]), meant);
  });
}

const calls: readonly (readonly [args: readonly string[], stderr: string])[] = [
  [["stauts"], `Cannot do "stauts" as there is no such command: did you mean status?`],
  [["constructor"], `Cannot do "constructor" as there is no such command: try --help`],
  [["status"], "Cannot do this without NAME: holdfast status NAME"],
  [["status", "a", "b"], `Cannot use "b" here: holdfast status NAME`],
  [["run"], "Cannot run without NAME: holdfast run NAME -- COMMAND"],
  [["run", "a", "true"], `Cannot use "true" here: put "--" before the command`],
  [
    ["release", "a"],
    `Cannot release "a" without --force: its holder works on until it next renews, beside the next one`,
  ],
  [
    ["status", "a\u0007"],
    `Cannot use NAME as it must be well-formed without control characters: current value is "a\\u0007"`,
  ],
];

for (const [args, message] of calls) {
  Deno.test(`holdfast ${args.join(" ").replace("\u0007", "^G")} ends with 64 and one sentence`, async () => {
    await using bench = new Bench();
    const result = await bench.run(args);
    assertEquals(result, { status: 64, stdout: "", stderr: `holdfast: ${message}\n` });
  });
}

Deno.test("holdfast without a command shows what there is, and ends with 64", async () => {
  await using bench = new Bench();
  const { status, stdout } = await bench.run([]);
  assertEquals([status, stdout.includes("holdfast run NAME -- COMMAND")], [64, true]);
  assertEquals((await bench.run(["help", "run"])).stdout, (await bench.run(["run", "-h"])).stdout);
});

const credentials: readonly (readonly [url: string, shown: string, secrets: readonly string[]])[] =
  [
    ["redis://:p%40ss@host:1/0", "redis://***@host:1/0", ["p%40ss", "p@ss"]],
    ["postgres://u:a/b@c?d@host/db", "postgres://***@host/db", ["a/b@c?d"]],
    ["postgres://host/db?password=x1&a=b", "postgres://host/db?password=***&a=b", ["x1"]],
    ["mongodb://u:%zz@host", "mongodb://***@host", ["%zz"]],
  ];

for (const [url, display, secrets] of credentials) {
  Deno.test(`what is shown of a storage has no credential: ${display}`, () => {
    assertEquals(shown(url), display);
    const redact = redactor([url]);
    for (const secret of secrets) assertEquals(redact(`[${secret}]`), "[***]");
  });
}

const durations: readonly (readonly [ms: number, text: string])[] = [
  [-3, "0 ms"],
  [850.4, "850 ms"],
  [999.6, "1.0 s"],
  [12_345, "12.3 s"],
  [59_999, "59.9 s"],
  [65_000, "1 min 5 s"],
  [7_980_000, "2 h 13 min"],
];

for (const [ms, text] of durations) {
  Deno.test(`${ms} ms are shown as ${text}`, () => assertEquals(duration(ms), text));
}

Deno.test("holders are shown in a clause, a sentence and a table", () => {
  const a = { fence: 7, label: "web-1", permits: 1, remainingMs: 900 };
  const b = { fence: 18, label: "", permits: 2, remainingMs: 12_000 };
  assertEquals(clauseOf(b), "(no label) (2 permits, fence 18, 12.0 s left)");
  assertEquals(holdersOf([a, b]), "held by web-1 (fence 7, 900 ms left) and 1 more");
  assertEquals(holdersOf([]), "free");
  assertEquals(tableOf([a, b], 1), ["  web-1   fence 7   900 ms left", "  and 1 more"]);
  assertEquals(tableOf([a, b], 9), [
    "  web-1        fence 7   900 ms left",
    "  (no label)   fence 18   12.0 s left   2 permits",
  ]);
});
