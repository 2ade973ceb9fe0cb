/**
 * Opens a Deno KV file for a program that people run, so every failure is one sentence that says what to do.
 *
 * @module
 */

/** A failure whose message is for whoever started the program. */
export class Sentence extends Error {
  override readonly name = "Sentence";
}

/** How often a file is tried that others are just creating or repairing. */
const TRIES = 50;

/**
 * Opens a Deno KV database.
 *
 * @param path a file
 * @returns the open database
 * @throws {Sentence} if it cannot be opened
 */
export async function openKv(path: string): Promise<Deno.Kv> {
  const { openKv: open } = Deno as { openKv?: typeof Deno.openKv };
  if (!open) {
    throw new Sentence(
      `Cannot open Deno KV as this Deno has it behind a flag: add --unstable-kv to the command, ` +
        `or "unstable": ["kv"] to deno.json`,
    );
  }
  for (let tries = 1;; tries++) {
    try {
      return await open(path);
    } catch (cause) {
      const message = cause instanceof Error ? cause.message : String(cause);
      if (tries === TRIES || !message.includes("database is locked")) {
        throw new Sentence(`Cannot open Deno KV file "${path}" as ${adviceOn(message)}`, { cause });
      }
      await new Promise((resolve) => setTimeout(resolve, 5 + 45 * Math.random()));
    }
  }
}

/** Why it failed, and what to do about it. */
function adviceOn(message: string): string {
  if (message.includes("not a database")) {
    return "it is something else: give the path of a Deno KV file, or of none yet";
  }
  if (message.includes("unable to open database file")) {
    return "it cannot be read and written: give a path in a folder that exists and is yours";
  }
  if (message.includes("database is locked")) {
    return "other processes keep it locked: end them, or try again";
  }
  if (message.startsWith("Requires")) {
    return `this program may not use it: run it with --allow-read and --allow-write`;
  }
  return `of an error: ${message}`;
}
