/**
 * Breaks the code on purpose, one rule at a time, in a copy, and names the test that sees it. Exits 1 if a
 * mutant survives: a survivor is a missing test. `deno task mutants [--only TEXT]`
 */
import { parseArgs } from "node:util";
import { CATCHERS, type Mutant, mutants } from "../tests/mutants/mutants.ts";

/** A run that takes longer has met a mutant that hangs, which is seen, too. */
const LIMIT_MS = 120_000;

const { values } = parseArgs({ args: Deno.args, options: { only: { type: "string" } } });
const wanted = mutants.filter((m) => m.name.includes(values.only ?? ""));

/** A copy of everything that tests need. */
async function copyTree(): Promise<string> {
  const folder = await Deno.makeTempDir({ prefix: "holdfast-mutants-" });
  const parts = ["src", "tests", "scripts", "docs", "mod.ts", "deno.json", "deno.lock"];
  const { success } = await new Deno.Command("cp", { args: ["-r", ...parts, folder] }).output();
  if (!success) throw new Error(`Cannot copy the tree to ${folder}`);
  await Deno.symlink(`${Deno.cwd()}/node_modules`, `${folder}/node_modules`);
  return folder;
}

/** Runs one test file; resolves to the test that failed, if one did. */
async function firstFailure(folder: string, file: string): Promise<string | undefined> {
  const giveUp = new AbortController();
  const timer = setTimeout(() => giveUp.abort(), LIMIT_MS);
  try {
    const { success, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
      args: [
        "test",
        "--allow-all",
        "--no-check",
        "--fail-fast",
        "--sanitize-ops",
        "--sanitize-resources",
        file,
      ],
      cwd: folder,
      env: { NO_COLOR: "1" },
      signal: giveUp.signal,
      stdout: "piped",
      stderr: "piped",
    }).output();
    if (success) return undefined;
    if (giveUp.signal.aborted) return "hangs";
    const text = new TextDecoder().decode(stdout) + new TextDecoder().decode(stderr);
    return /^(?:\.\S+ => )?(.+?) \.\.\. (?:.* )?FAILED/m.exec(text)?.[1] ??
      /^\s*(?:error: )?(.*Error: .*)$/m.exec(text)?.[1] ?? "fails";
  } finally {
    clearTimeout(timer);
  }
}

/** Applies a mutant and looks who sees it. */
async function hunt(folder: string, mutant: Mutant): Promise<string | undefined> {
  const path = `${folder}/${mutant.file}`;
  const text = await Deno.readTextFile(path);
  const found = text.split(mutant.search).length - 1;
  if (found !== 1) {
    throw new Error(`Cannot make mutant "${mutant.name}" as its text stands there ${found} times`);
  }
  await Deno.writeTextFile(path, text.replace(mutant.search, () => mutant.replace));
  try {
    for (const file of mutant.catchers ?? CATCHERS[mutant.file]!) {
      const test = await firstFailure(folder, file);
      if (test !== undefined) return `${file}: ${test}`;
    }
    return undefined;
  } finally {
    await Deno.writeTextFile(path, text);
  }
}

const queue = [...wanted];
const survivors: string[] = [];
const errors: unknown[] = [];

/** Works the queue off in a copy of its own. */
async function work(): Promise<void> {
  const folder = await copyTree();
  try {
    for (let mutant = queue.shift(); mutant; mutant = queue.shift()) {
      try {
        const catcher = await hunt(folder, mutant);
        console.log(
          `${catcher ? "caught  " : "SURVIVED"} ${mutant.name}\n           ${catcher ?? ""}`,
        );
        if (!catcher) survivors.push(mutant.name);
      } catch (error) {
        errors.push(error);
        console.error(String(error));
      }
    }
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

/** A test that fails without a mutant would catch every one. */
async function checkCatchers(): Promise<void> {
  const folder = await copyTree();
  try {
    for (const file of new Set(wanted.flatMap((m) => m.catchers ?? CATCHERS[m.file]!))) {
      const test = await firstFailure(folder, file);
      if (test !== undefined) errors.push(`${file} fails without a mutant: ${test}`);
    }
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
  for (const error of errors) console.error(error);
  if (errors.length > 0) Deno.exit(1);
}

const startMs = performance.now();
await checkCatchers();
await Promise.all([work(), work()]);
const seconds = Math.round((performance.now() - startMs) / 1000);
const caught = wanted.length - survivors.length - errors.length;
console.log(
  `\n${wanted.length} mutants, ${caught} caught, ${survivors.length} survived, in ${seconds} s`,
);
Deno.exit(survivors.length + errors.length === 0 && wanted.length > 0 ? 0 : 1);
