/**
 * The runtimes that suites run in, each at a version that is the same on every machine.
 *
 * @module
 */
import { requireProgram, ServiceUnavailable } from "../services/install.ts";

/** A runtime with a test runner. */
export type Engine = "deno" | "bun" | "node 20" | "node 22" | "node 24";

/** How a runtime is had from npm: package, and what prints the path of its program. */
const PACKAGES: Readonly<Record<Exclude<Engine, "deno">, readonly [name: string, bin: string]>> = {
  "bun": ["bun@1.4.5", "bun"],
  "node 20": ["node@20.20.2", "node"],
  "node 22": ["node@22.23.3", "node"],
  "node 24": ["node@24.21.0", "node"],
};

const programs = new Map<Engine, Promise<string>>();

/** The path of a runtime's program; throws {@linkcode ServiceUnavailable} where it cannot be had. */
export function programOf(engine: Engine): Promise<string> {
  const found = programs.get(engine) ??
    (engine === "deno" ? Promise.resolve(Deno.execPath()) : fetchProgram(engine));
  programs.set(engine, found);
  return found;
}

async function fetchProgram(engine: Exclude<Engine, "deno">): Promise<string> {
  const [name, bin] = PACKAGES[engine];
  requireProgram(engine, "npx", "install Node.js with npm");
  const { success, stdout, stderr } = await new Deno.Command("npx", {
    args: ["-y", "-p", name, bin, "-p", "process.execPath"],
  }).output();
  const path = new TextDecoder().decode(stdout).trim();
  if (success && path !== "") return path;
  const said = new TextDecoder().decode(stderr).trim().split("\n").at(-1);
  throw new ServiceUnavailable(`Cannot start "${engine}" as npm must have ${name}: ${said}`);
}

/** The command that runs files of tests. */
export function testCommand(
  engine: Engine,
  program: string,
  files: readonly string[],
): string[] {
  switch (engine) {
    case "deno":
      return [program, "test", "-A", "--no-check", "--unstable-kv", ...files];
    case "bun":
      return [program, "test", "--timeout", "60000", ...files];
    default:
      return [program, "--no-warnings", "--test-reporter=tap", "--test", ...files];
  }
}

/** How many tests passed and failed, as a runtime's test runner says it. */
export function countsOf(engine: Engine, output: string): { passed: number; failed: number } {
  const sum = (pattern: RegExp): number =>
    [...output.matchAll(pattern)].reduce((all, match) => all + Number(match[1]), 0);
  switch (engine) {
    case "deno":
      return { passed: sum(/^\w+ \| (\d+) passed/gm), failed: sum(/^\w+ \|.* (\d+) failed/gm) };
    case "bun":
      return { passed: sum(/^ *(\d+) pass$/gm), failed: sum(/^ *(\d+) fail$/gm) };
    default:
      return { passed: sum(/^# pass (\d+)/gm), failed: sum(/^# (?:fail|cancelled) (\d+)/gm) };
  }
}

/** The part of a runner's output that says what failed. */
export function failuresOf(output: string): string {
  const lines = output.split("\n");
  const at = lines.flatMap((line, i) =>
    /^not ok|^\(fail\)|\bFAILED\b|^error:/.test(line) ? [i] : []
  );
  const parts = at.slice(0, 10).map((i) => lines.slice(Math.max(i - 12, 0), i + 14).join("\n"));
  return parts.join("\n...\n") || output.slice(-3000);
}
