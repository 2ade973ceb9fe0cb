/**
 * The journal of one process: lines of JSON that are in the file when `write` returns, so that a process that
 * is killed leaves all that it did.
 *
 * @module
 */
import type { LockCall, LockOutcome } from "../../src/testing/mod.ts";
import { type JournalLine, LOCK, type Note, nowMs } from "./terms.ts";

/** A line without what every line has. */
type Bare<L> = L extends unknown ? Omit<L, "process" | "atMs"> : never;

/** Writes the journal of one process. */
export class Journal {
  readonly process: string;
  readonly #file: Deno.FsFile;
  #ops = 0;

  /**
   * @param process whose journal
   * @param path the file
   */
  constructor(process: string, path: string) {
    this.process = process;
    this.#file = Deno.openSync(path, { create: true, append: true });
  }

  /** Notes what is not an operation. */
  note(note: Bare<Note>, atMs: number = nowMs()): void {
    this.#write({ process: this.process, atMs, ...note } as Note);
  }

  /**
   * Notes that an operation begins.
   *
   * @param call what is asked
   * @param atMs when
   * @returns notes how it returned; not to be called where nobody knows
   */
  invoke(call: LockCall, atMs: number = nowMs()): (outcome: LockOutcome) => void {
    const { process } = this;
    const op = ++this.#ops;
    this.#write({ type: "invoke", process, op, atMs, lock: LOCK, call });
    return (outcome) => this.#write({ type: "return", process, op, atMs: nowMs(), outcome });
  }

  /** Closes the file. */
  close(): void {
    this.#file.close();
  }

  #write(line: JournalLine): void {
    this.#file.writeSync(new TextEncoder().encode(JSON.stringify(line) + "\n"));
  }
}

/** Reads a journal; what a killed process did not finish is left out. */
export function parseJournal(text: string): JournalLine[] {
  const lines = text.split("\n");
  lines.pop();
  return lines.map((line) => JSON.parse(line));
}
