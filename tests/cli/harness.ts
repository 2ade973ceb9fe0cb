/**
 * Runs the command line as real processes, in pipes and on real pseudo-terminals, and looks for what they
 * leave behind.
 *
 * @module
 */
import { assert, assertEquals } from "@std/assert";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));

/** What the processes of one test find in their environment, so that each of them can be found. */
const MARK = "HOLDFAST_TEST";

/** How a process ended, and what it wrote. */
export interface Result {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** A running process. */
export interface Running {
  readonly pid: number;
  /** What it has written so far. */
  readonly stdout: () => string;
  readonly stderr: () => string;
  readonly result: Promise<Result>;
  /** Types something on its terminal. */
  type(text: string): Promise<void>;
  kill(signal: Deno.Signal): void;
}

/** How to start the command line. */
export interface StartOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** Runs it as another runtime would; `deno run` on the source unless told. */
  readonly program?: readonly string[];
  /** On a pseudo-terminal of 80 columns and 24 lines. */
  readonly onTerminal?: boolean;
}

/** One test's folder, storage and processes. */
export class Bench {
  readonly folder: string;
  readonly mark = crypto.randomUUID();
  readonly #started: Promise<Result>[] = [];
  /** Where its locks are, unless an option says otherwise. */
  storage: string;

  constructor() {
    this.folder = Deno.makeTempDirSync({ prefix: "holdfast-cli-" });
    this.storage = `kv:${join(this.folder, "locks.kv")}`;
  }

  /** The path of a file of this test. */
  path(name: string): string {
    return join(this.folder, name);
  }

  /** What is in a file of this test, line by line; nothing while there is no file. */
  lines(name: string): string[] {
    try {
      return Deno.readTextFileSync(this.path(name)).split("\n").filter((line) => line !== "");
    } catch (error) {
      if (error instanceof Deno.errors.NotFound) return [];
      throw error;
    }
  }

  /** Starts `holdfast ARGS`. */
  start(args: readonly string[], options: StartOptions = {}): Running {
    const program = options.program ?? SOURCE;
    const command = [...program, ...args];
    const running = startProcess(options.onTerminal ? onTerminal(command) : command, {
      PATH: Deno.env.get("PATH")!,
      HOME: this.folder,
      TERM: "xterm-256color",
      DENO_DIR: Deno.env.get("DENO_DIR") ?? join(Deno.env.get("HOME")!, ".cache", "deno"),
      HOLDFAST_STORAGE: this.storage,
      [MARK]: this.mark,
      ...options.env,
    });
    this.#started.push(running.result);
    return running;
  }

  /** Runs `holdfast ARGS` to its end. */
  async run(args: readonly string[], options: StartOptions = {}): Promise<Result> {
    return await this.start(args, options).result;
  }

  /** What `holdfast status NAME --json` says. */
  async status(name: string, options: StartOptions = {}): Promise<Status> {
    const { status, stdout, stderr } = await this.run(["status", name, "--json"], options);
    assertEquals([status, stderr], [0, ""]);
    return JSON.parse(stdout);
  }

  /** Checks that no process of this test is left, and that the locks are free. */
  async assertNothingLeft(...names: readonly string[]): Promise<void> {
    assertEquals(this.processes(), []);
    for (const name of names) {
      const { holders, waiters } = await this.status(name);
      assertEquals({ name, holders, waiters }, { name, holders: [], waiters: 0 });
    }
  }

  /** The processes of this test, whoever their parent is: those with the mark in their environment. */
  processes(): string[] {
    return readdirSync("/proc").filter((pid) => /^\d+$/.test(pid)).flatMap((pid) => {
      try {
        if (!readFileSync(`/proc/${pid}/environ`, "utf8").includes(this.mark)) return [];
        const isDead = /^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
        const words = readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim();
        return isDead || words === "" ? [] : [`${pid} ${words.replace(/^\S*\//, "")}`];
      } catch {
        return [];
      }
    });
  }

  /** Waits until a command of this test runs. */
  async untilRuns(command: string): Promise<void> {
    await until(() => this.processes().some((line) => line.replace(/^\d+ /, "") === command));
  }

  /** Ends what is left, by process id, and removes the folder. */
  async [Symbol.asyncDispose](): Promise<void> {
    for (const line of this.processes()) {
      try {
        Deno.kill(parseInt(line), "SIGKILL");
      } catch {
        // It has ended meanwhile.
      }
    }
    await until(() => this.processes().length === 0);
    await Promise.all(this.#started);
    await Deno.remove(this.folder, { recursive: true });
  }
}

/** What `holdfast status --json` prints. */
export interface Status {
  readonly name: string;
  readonly fence: number;
  readonly holders: readonly {
    readonly fence: number;
    readonly label: string;
    readonly permits: number;
    readonly remainingMs: number;
  }[];
  readonly waiters: number;
}

/**
 * How the command line runs from its source. What is installed is used as it is: otherwise Deno would say on
 * the error stream that it waits for whoever else looks into the folder of packages.
 */
export const SOURCE: readonly string[] = [
  Deno.execPath(),
  "run",
  "-A",
  "--unstable-kv",
  "--no-check",
  "--node-modules-dir=manual",
  "--config",
  join(ROOT, "deno.json"),
  join(ROOT, "src/cli/main.ts"),
];

/** Waits until something is so, and fails if it takes too long. */
export async function until(isSo: () => boolean, limitMs = 20_000): Promise<void> {
  const endMs = performance.now() + limitMs;
  while (!isSo()) {
    assert(performance.now() < endMs, `It is not so after ${limitMs} ms: ${isSo}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** A text without what it tells the terminal. */
export function plain(text: string): string {
  // deno-lint-ignore no-control-regex -- that is what is taken out
  return text.replace(/\x1b\[[0-9;?]*[a-zA-Z]|\r/g, "");
}

/** `script` (util-linux, bsdutils) runs a command on a new pseudo-terminal and ends with its status. */
function onTerminal(command: readonly string[]): string[] {
  const words = command.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(" ");
  return ["script", "-qefc", `stty cols 80 rows 24; exec ${words}`, "/dev/null"];
}

function startProcess(
  [program, ...args]: readonly string[],
  env: Readonly<Record<string, string>>,
): Running {
  const child = new Deno.Command(program!, {
    args,
    env,
    clearEnv: true,
    stdin: "piped",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
  const stdin = child.stdin.getWriter();
  const stdout = collect(child.stdout);
  const stderr = collect(child.stderr);
  const result = (async () => {
    const [{ code }] = await Promise.all([child.status, stdout.ended, stderr.ended]);
    await stdin.close().catch(() => {});
    return { status: code, stdout: stdout.text(), stderr: stderr.text() };
  })();
  return {
    pid: child.pid,
    stdout: stdout.text,
    stderr: stderr.text,
    result,
    type: (text) => stdin.write(new TextEncoder().encode(text)),
    kill: (signal) => Deno.kill(child.pid, signal),
  };
}

function collect(stream: ReadableStream<Uint8Array>) {
  let text = "";
  const ended = (async () => {
    for await (const part of stream.pipeThrough(new TextDecoderStream())) text += part;
  })();
  return { text: () => text, ended };
}
