/**
 * Arguments: the standard library's `parseArgs` finds the options, this file says what is wrong with them.
 *
 * @module
 */
import { parseArgs } from "node:util";
import { type Failure, usage } from "./failure.ts";
import { nearest } from "./nearest.ts";

/** Options by their long name. `text` and `count` take a value, `flag` does not. */
export type OptionTable = Readonly<Record<string, "text" | "count" | "flag">>;

/** What every command takes. */
export const COMMON_OPTIONS = {
  storage: "text",
  json: "flag",
  quiet: "flag",
  help: "flag",
} as const satisfies OptionTable;

/** The values of options, each at most once. */
export type OptionValues<T extends OptionTable> = {
  readonly [K in keyof T]?:
    | (T[K] extends "count" ? number : T[K] extends "text" ? string : true)
    | undefined;
};

/** Arguments of one command. */
export interface Arguments<T extends OptionTable> {
  /** What does not begin with a dash. */
  readonly words: readonly string[];
  /** The options. */
  readonly options: OptionValues<T>;
  /** What comes after `--`; `undefined` where there is no `--`. */
  readonly rest: readonly string[] | undefined;
}

/** What is used of a token of `parseArgs`. */
interface OptionToken {
  readonly name: string;
  readonly rawName: string;
  readonly value?: string | undefined;
  readonly inlineValue?: boolean | undefined;
}

/**
 * Parses the arguments of one command.
 *
 * @param args what the user typed after the command
 * @param table the options that it takes
 * @returns words, options and what comes after `--`
 * @throws {Failure} with status 64, if an option is unknown, has no value, or one that it cannot have
 */
export function parseArguments<T extends OptionTable>(
  args: readonly string[],
  table: T,
): Arguments<T> {
  const end = args.indexOf("--");
  const kinds = Object.entries(table).map(([name, kind]) => [
    name,
    { type: kind === "flag" ? "boolean" as const : "string" as const },
  ]);
  const { tokens = [] } = parseArgs({
    args: args.slice(0, end < 0 ? undefined : end),
    options: { ...Object.fromEntries(kinds), help: { type: "boolean", short: "h" } },
    // A mistyped option deserves a better answer than the parser's own.
    strict: false,
    allowPositionals: true,
    tokens: true,
  });
  const words: string[] = [];
  const options: Record<string, string | number | true> = {};
  for (const token of tokens) {
    if (token.kind === "positional") words.push(token.value);
    if (token.kind === "option") options[token.name] = valueOf(token, table);
  }
  return {
    words,
    options: options as OptionValues<T>,
    rest: end < 0 ? undefined : args.slice(end + 1),
  };
}

function valueOf(option: OptionToken, table: OptionTable): string | number | true {
  const { name, rawName, value, inlineValue } = option;
  const kind = Object.hasOwn(table, name) ? table[name] : undefined;
  if (kind === undefined) throw unknownOption(rawName, table);
  if (kind === "flag") {
    if (value === undefined) return true;
    throw usage(`Cannot use ${rawName} as it takes no value: current value is "${value}"`);
  }
  if (value === undefined || (!inlineValue && value.startsWith("-"))) {
    throw usage(`Cannot use ${rawName} as it needs a value`);
  }
  if (kind === "text") return value;
  if (/^\d{1,15}$/.test(value)) return Number(value);
  throw usage(`Cannot use ${rawName} as it must be a whole number: current value is "${value}"`);
}

function unknownOption(rawName: string, table: OptionTable): Failure {
  const meant = nearest(rawName.replace(/^-+/, ""), Object.keys(table));
  const hint = meant ? `: did you mean --${meant}?` : `: try --help`;
  return usage(`Cannot use ${rawName} as there is no such option${hint}`);
}
