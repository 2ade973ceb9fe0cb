/**
 * What the tests of the core do not reach: `deno task coverage` runs them, prints line and branch coverage of
 * each file of `src/core`, and lists every line and branch that is not covered, with the reason where there
 * is one. Ends with status 1 if a test failed or a line is neither covered nor has a reason.
 *
 * @module
 */

/** The tests that count: those of the core, and what every storage has to do, on the memory storage. */
const TESTS = ["tests/core", "tests/contract/memory_test.ts"];

/** Why code is not covered: the file, a part of the line, and the reason. */
const REASONS: readonly (readonly [file: string, part: string, why: string])[] = [];

/** What is known of one file. */
interface FileCoverage {
  readonly name: string;
  /** How often each line ran. */
  readonly lines: Map<number, number>;
  /** How often each way out of a branch was taken, with its line. */
  readonly branches: { readonly line: number; readonly times: number }[];
}

async function deno(args: readonly string[], stdout: "inherit" | "piped"): Promise<Uint8Array> {
  const command = new Deno.Command(Deno.execPath(), { args: [...args], stdout, stderr: "inherit" });
  const child = command.spawn();
  const output = stdout === "piped"
    ? await child.output()
    : { ...await child.status, stdout: null };
  if (!output.success) throw new Error(`deno ${args[0]} ended with status ${output.code}`);
  return output.stdout ?? new Uint8Array();
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
    const why = REASONS.find(([file, part]) => name.endsWith(file) && code.includes(part))?.[2];
    const isBare = bare.includes(line);
    if (isBare && why === undefined) unexplained++;
    console.log(`${name}:${line}: ${isBare ? "line" : "branch"}: ${code}`);
    if (why !== undefined) console.log(`    ${why}`);
  }
  return unexplained;
}

const folder = await Deno.makeTempDir({ prefix: "holdfast-coverage-" });
try {
  const flags = ["-A", "--no-check", "--parallel", "--quiet", "--reporter=dot"];
  const raw = ["--coverage-raw-data-only", `--coverage=${folder}`];
  await deno(["test", ...flags, ...raw, ...TESTS], "inherit");
  const lcov = await deno(["coverage", "--lcov", "--include=/src/core/", folder], "piped");
  const files = parseLcov(new TextDecoder().decode(lcov));
  if (files.length === 0) throw new Error("Nothing was measured");
  console.log();
  printTable(files);
  console.log("\nNot covered:");
  let unexplained = 0;
  for (const file of files) unexplained += await listGaps(file);
  if (unexplained > 0) {
    console.error(`\n${unexplained} lines are neither covered nor have a reason`);
    Deno.exitCode = 1;
  }
} finally {
  await Deno.remove(folder, { recursive: true });
}
