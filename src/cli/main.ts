/**
 * The command line: anything under a lease, from cron, at boot, in a shell script.
 *
 * ```sh
 * deno run -A --unstable-kv jsr:@holdfast/lock/cli run nightly -- ./report.sh
 * ```
 *
 * It says what it does with `--help`; docs/cli.md has the storages, the exit statuses and the keys of
 * `--json`. What it does *not* guarantee: that a process which left the group of its command, or whose
 * machine was frozen, has ended with the lease. `HOLDFAST_FENCING_TOKEN` is for resources that check it.
 *
 * @example From a program
 * ```ts
 * import { main } from "@holdfast/lock/cli";
 * import { assertEquals } from "@std/assert";
 *
 * assertEquals(await main(["--help"]), 0);
 * assertEquals(await main(["status", "nightly", "--storage", "nowhere:"]), 64);
 * ```
 *
 * @module
 */
import process from "node:process";
import { type OptionTable, parseArguments } from "./arguments.ts";
import { COMMANDS, OVERVIEW } from "./commands.ts";
import type { Command } from "./command.ts";
import { EXIT, failureOf, Interrupted, usage } from "./failure.ts";
import { nearest } from "./nearest.ts";
import { Output, ReaderGone } from "./output.ts";
import { chooseStorage, redactor } from "./storage_url.ts";

/**
 * Does what the arguments say. It uses the standard streams, signals and environment of the process.
 *
 * @param args the arguments, without the runtime and the program
 * @returns the status that the process should end with; 0 if all went well
 */
export async function main(args: readonly string[] = process.argv.slice(2)): Promise<number> {
  const json = args.slice(0, separatorOf(args)).includes("--json");
  const quiet = args.slice(0, separatorOf(args)).includes("--quiet");
  const urls = args.map((arg) => arg.replace(/^--[a-z-]+=/, ""));
  const redact = redactor([process.env["HOLDFAST_STORAGE"], ...urls]);
  const output = new Output({ json, quiet, redact });
  try {
    return await perform(args, output);
  } catch (error) {
    if (error instanceof ReaderGone) return EXIT.ok;
    const { message, status } = failureOf(error);
    if (!(error instanceof Interrupted)) output.fail(message, status);
    return status;
  }
}

/** Where the arguments for the command of the user begin. */
function separatorOf(args: readonly string[]): number | undefined {
  const end = args.indexOf("--");
  return end < 0 ? undefined : end;
}

async function perform(args: readonly string[], output: Output): Promise<number> {
  const [word, ...rest] = args[0] === "help" ? [args[1] ?? "--help", "--help"] : args;
  if (word === undefined || word === "--help" || word === "-h") {
    output.print(OVERVIEW);
    return word === undefined ? EXIT.usage : EXIT.ok;
  }
  const command: Command<OptionTable> | undefined = Object.hasOwn(COMMANDS, word)
    ? COMMANDS[word]
    : undefined;
  if (!command) {
    const meant = nearest(word, Object.keys(COMMANDS));
    throw usage(
      `Cannot do "${word}" as there is no such command: ` +
        (meant ? `did you mean ${meant}?` : "try --help"),
    );
  }
  const parsed = parseArguments(rest, command.table);
  if (parsed.options["help"]) {
    output.print(command.help);
    return EXIT.ok;
  }
  const storageUrl = (): string => chooseStorage(parsed.options["storage"] as string | undefined);
  return await command.perform({ ...parsed, output, storageUrl });
}

if (import.meta.main) process.exit(await main());
