/**
 * What the tests of the core do not reach: `deno task coverage` runs them, prints line and branch coverage of
 * each file of `src/core`, and lists every line and branch that is not covered, with the reason where there
 * is one. Ends with status 1 if a test failed or a line is neither covered nor has a reason.
 *
 * @module
 */

/** The tests that count: those of the core, and what every storage has to do, on the memory storage. */
const TESTS = ["tests/core", "tests/contract/memory_test.ts"];

/** Why code is not covered. */
interface Reason {
  /** The file. */
  readonly file: string;
  /** What is not covered there: a line, or a way out of it. */
  readonly kind: "line" | "branch";
  /** The line, as it stands there. */
  readonly code: string;
  readonly why: string;
}

const REASONS: readonly Reason[] = [
  {
    file: "src/core/holding.ts",
    kind: "branch",
    code: 'return this.#life.status === "held" ? leftMs(this.#life, this.settings, now) : 0;',
    why:
      "Only a lease that is held is asked, as its end takes it out of the gate; this says so to the compiler",
  },
  {
    file: "src/core/holding.ts",
    kind: "branch",
    code: 'const life = this.#life.status === "held" ? this.#life : undefined;',
    why:
      "Only a lease that is held is renewed, as its callers look before; this says so to the compiler",
  },
  {
    file: "src/core/holding.ts",
    kind: "branch",
    code: "}",
    why: "V8 counts a way out of a loop that is left by return and throw only",
  },
];

/** What is known of one file. */
interface FileCoverage {
  readonly name: string;
  /** How often each line ran. */
  readonly lines: Map<number, number>;
  /** How often each way out of a branch was taken, with its line. */
  readonly branches: { readonly line: number; readonly times: number }[];
}

/** Runs Deno; what it says is shown only if it fails, and then from the failures on. */
async function deno(args: readonly string[]): Promise<string> {
  const command = new Deno.Command(Deno.execPath(), { args: [...args], env: { NO_COLOR: "1" } });
  const { success, code, stdout, stderr } = await command.output();
  const text = new TextDecoder();
  if (success) return text.decode(stdout);
  const said = text.decode(stdout);
  console.error(said.slice(Math.max(0, said.indexOf(" ERRORS "))), text.decode(stderr));
  throw new Error(`deno ${args[0]} ended with status ${code}`);
}

/** Reads LCOV's trace format (geninfo(1), "FILES"). */
function parseLcov(text: string): FileCoverage[] {
  const files: FileCoverage[] = [];
  for (const entry of text.split("\n")) {
    const [, kind = "", value = ""] = /^(\w+):(.*)$/.exec(entry) ?? [];
    const file = files.at(-1);
    if (kind === "SF") {
      const name = value.slice(value.lastIndexOf("/src/core/") + 1);
      files.push({ name, lines: new Map(), branches: [] });
    } else if (kind === "DA") {
      const [line, times] = value.split(",").map(Number);
      file?.lines.set(line!, times!);
    } else if (kind === "BRDA") {
      const [line, , , times] = value.split(",");
      file?.branches.push({ line: Number(line), times: times === "-" ? 0 : Number(times) });
    }
  }
  return files.sort((a, b) => a.name < b.name ? -1 : 1);
}

function share(covered: number, all: number): string {
  const percent = all === 0 ? 100 : 100 * covered / all;
  return `${covered} of ${all}`.padStart(12) + ` ${percent.toFixed(1).padStart(6)} %`;
}

function printTable(files: readonly FileCoverage[]): void {
  const row = (name: string, lines: string, branches: string): void =>
    console.log(`${name.padEnd(28)}${lines.padStart(21)}${branches.padStart(21)}`);
  const rowOf = (name: string, counted: readonly FileCoverage[]): void => {
    const lines = counted.flatMap((file) => [...file.lines.values()]);
    const branches = counted.flatMap((file) => file.branches.map(({ times }) => times));
    const isCovered = (times: number): boolean => times > 0;
    row(
      name,
      share(lines.filter(isCovered).length, lines.length),
      share(branches.filter(isCovered).length, branches.length),
    );
  };
  row("file", "lines", "branches");
  for (const file of files) rowOf(file.name, [file]);
  rowOf("all", files);
}

/** Lists what is not covered; returns how many lines have no reason. */
async function listGaps({ name, lines, branches }: FileCoverage): Promise<number> {
  const text = (await Deno.readTextFile(name)).split("\n");
  const bare = [...lines].filter(([, times]) => times === 0).map(([line]) => line);
  const half = branches.filter(({ line, times }) => times === 0 && !bare.includes(line))
    .map(({ line }) => line);
  let unexplained = 0;
  for (const line of [...bare, ...new Set(half)].sort((a, b) => a - b)) {
    const code = text[line - 1]!.trim();
    const kind = bare.includes(line) ? "line" : "branch";
    const reason = REASONS.find((r) => r.file === name && r.kind === kind && r.code === code);
    if (kind === "line" && !reason) unexplained++;
    console.log(`${name}:${line}: ${kind}: ${code}`);
    if (reason) console.log(`    ${reason.why}`);
  }
  return unexplained;
}

/** Files that were not measured: nothing imports them, or they changed meanwhile. */
async function unmeasured(files: readonly FileCoverage[]): Promise<string[]> {
  const names: string[] = [];
  for await (const { name } of Deno.readDir("src/core")) names.push(`src/core/${name}`);
  return names.filter((name) => !files.some((file) => file.name === name)).sort();
}

const folder = await Deno.makeTempDir({ prefix: "holdfast-coverage-" });
try {
  const flags = ["-A", "--no-check", "--parallel", "--coverage-raw-data-only"];
  const said = await deno(["test", ...flags, `--coverage=${folder}`, ...TESTS]);
  console.log(said.trim().split("\n").at(-1) + "\n");
  const files = parseLcov(await deno(["coverage", "--lcov", "--include=/src/core/", folder]));
  printTable(files);
  console.log("\nNot covered:");
  let unexplained = 0;
  for (const file of files) unexplained += await listGaps(file);
  const missing = await unmeasured(files);
  if (missing.length > 0) console.error(`\nNot measured: ${missing.join(", ")}`);
  if (unexplained > 0) {
    console.error(`\n${unexplained} lines are neither covered nor have a reason`);
  }
  if (unexplained + missing.length > 0) Deno.exitCode = 1;
} finally {
  await Deno.remove(folder, { recursive: true });
}
