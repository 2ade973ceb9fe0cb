/**
 * What a command gets to work with.
 *
 * @module
 */
import type { Arguments, OptionTable } from "./arguments.ts";
import { usage } from "./failure.ts";
import type { Output } from "./output.ts";

/** One call of a command. */
export interface Call<T extends OptionTable> extends Arguments<T> {
  /** Where to say things. */
  readonly output: Output;
  /** Where the locks are; throws if nobody said. */
  readonly storageUrl: () => string;
}

/** A command of the command line. */
export interface Command<T extends OptionTable> {
  /** The options that it takes. */
  readonly table: T;
  /** What it does, and how; fits a terminal of 24 lines of 80 columns. */
  readonly help: string;
  /** Does it; resolves with the exit status. A method, so that a table of commands can hold them all. */
  perform(call: Call<T>): Promise<number>;
}

/**
 * Takes the one name that a command needs.
 *
 * @param call the arguments
 * @param form what the command looks like
 * @returns the name
 * @throws {Failure} with status 64 if there is none, or something else besides
 */
export function onlyName(
  { words, rest }: Pick<Call<OptionTable>, "words" | "rest">,
  form: string,
): string {
  const [name, ...others] = [...words, ...rest ?? []];
  if (name === undefined) throw usage(`Cannot do this without NAME: ${form}`);
  noMoreWords(others, form);
  return name;
}

/**
 * Checks that nothing is left over.
 *
 * @param words what is left
 * @param form what the command looks like
 * @throws {Failure} with status 64 if something is
 */
export function noMoreWords(words: readonly string[], form: string): void {
  if (words.length > 0) throw usage(`Cannot use "${words[0]}" here: ${form}`);
}
