import { assertEquals, assertMatch, assertStringIncludes } from "@std/assert";

interface Run {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

async function runDemo(...args: string[]): Promise<Run> {
  const { code, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--no-check", "scripts/demo.ts", ...args],
    cwd: `${import.meta.dirname}/../..`,
    env: { NO_COLOR: "1" },
  }).output();
  const decode = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
  return { code, stdout: decode(stdout), stderr: decode(stderr) };
}

/** Runs a short demo with a picture, and gives its summary and the picture, too. */
async function runShort(...args: string[]): Promise<
  Run & { readonly summary: Record<string, unknown>; readonly svg: string }
> {
  const path = await Deno.makeTempFile({ suffix: ".svg" });
  const run = await runDemo("--seconds", "3", "--json", "--svg", path, ...args);
  const svg = await Deno.readTextFile(path);
  await Deno.remove(path);
  return { ...run, summary: JSON.parse(run.stdout), svg };
}

const KEYS = [
  "sections",
  "overlaps",
  "lostFencedUpdates",
  "lostUnfencedUpdates",
  "takeoverMs",
  "staleWritesRefused",
  "fencesIncreasing",
];

// covers: G1 G2 G3 G8 S2.7 S4.1 S5.9
Deno.test("the demo holds: one process is killed, one frozen, and no fenced update is lost", async () => {
  const { code, summary, stderr, svg } = await runShort();
  assertEquals(code, 0, stderr);
  assertEquals(Object.keys(summary), KEYS);
  const { overlaps, lostFencedUpdates, fencesIncreasing, staleWritesRefused } = summary;
  assertEquals([overlaps, lostFencedUpdates, fencesIncreasing, staleWritesRefused], [
    0,
    0,
    true,
    1,
  ]);
  const { sections, takeoverMs, lostUnfencedUpdates } = summary as Record<string, number>;
  assertEquals([sections! >= 8, takeoverMs! <= 1550, lostUnfencedUpdates! >= 1], [
    true,
    true,
    true,
  ]);

  assertEquals(stderr.match(/ worker \d {2}fence \d{16} {2}waited +\d+ ms/g)?.length, sections);
  assertMatch(stderr, /x worker \d {2}SIGKILL while it holds fence \d{16}/);
  assertMatch(stderr, /= worker \d {2}SIGSTOP while it holds fence \d{16}/);
  assertMatch(stderr, /\/ worker \d {2}its fenced write was refused: fence \d{16} is stale/);
  assertStringIncludes(stderr, "everything holds");

  for (const label of ["worker 5", "killed", "frozen", "goes on", "overwrites", "refused"]) {
    assertStringIncludes(svg, `>${label}</text>`);
  }
});

Deno.test("the demo without the lock fails", async () => {
  const { code, summary, stderr } = await runShort("--sabotage", "no-lock");
  assertEquals([code, Object.keys(summary), summary.fencesIncreasing], [1, KEYS, false], stderr);
  assertMatch(stderr, /does not hold: \d+ valid holdings overlapped/);
  assertMatch(stderr, /does not hold: \d+ fenced updates were lost/);
});

Deno.test("the demo with the fence ignored fails", async () => {
  const { code, summary, stderr } = await runShort("--sabotage", "no-fence");
  assertEquals([code, summary.overlaps, summary.staleWritesRefused], [1, 0, 0], stderr);
  assertMatch(stderr, /does not hold: \d+ fenced updates? w(as|ere) lost/);
  assertStringIncludes(stderr, "does not hold: no stale write was refused");
});

Deno.test("wrong arguments are one sentence and the usage, with status 2", async () => {
  const wrong: [string[], string][] = [
    [["--seconds", "1"], "Cannot use --seconds as it must be 3 to 600: current value is 1"],
    [
      ["--sabotage", "all"],
      "Cannot use --sabotage as it must be no-lock or no-fence: current value is all",
    ],
    [["--nonsense"], "Unknown option '--nonsense'"],
  ];
  for (const [args, message] of wrong) {
    const { code, stderr } = await runDemo(...args);
    assertEquals(code, 2);
    assertStringIncludes(stderr, message);
    assertStringIncludes(stderr, "Usage: deno task demo [options]");
  }
});
