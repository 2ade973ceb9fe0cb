/**
 * What the command line says, and where: results on the standard output, notes and errors on the error
 * stream, and a live view that redraws itself on a terminal.
 *
 * @module
 */
import { writeSync } from "node:fs";
import process from "node:process";
import { EXIT } from "./failure.ts";

const STDOUT = 1;
const STDERR = 2;

/** How to say it. */
export interface OutputOptions {
  /** Objects, one a line, instead of sentences. */
  readonly json: boolean;
  /** Errors only. */
  readonly quiet: boolean;
  /** Takes the credentials out of a text. */
  readonly redact: (text: string) => string;
}

/** Something that happened, for programs: `event` says what. */
export interface OutputEvent {
  /** What happened. */
  readonly event: string;
  /** More about it. */
  readonly [key: string]: unknown;
}

/** Whoever reads the standard output has gone; there is nobody to write for. */
export class ReaderGone extends Error {
  override readonly name = "ReaderGone";
}

/** The two streams of a command. */
export class Output {
  readonly #options: OutputOptions;
  #live: LiveView | undefined;

  constructor(options: OutputOptions) {
    this.#options = options;
  }

  /** Whether results are objects. */
  get json(): boolean {
    return this.#options.json;
  }

  /** Whether somebody looks at the results while they come. */
  get isTerminal(): boolean {
    return process.stdout.isTTY === true && !this.json;
  }

  /** Whether somebody looks at the notes while they come. */
  get isErrorTerminal(): boolean {
    return process.stderr.isTTY === true && !this.json && !this.#options.quiet;
  }

  /** Writes lines of a result. */
  print(text: string): void {
    this.#live?.clear();
    write(STDOUT, `${this.#options.redact(text)}\n`);
  }

  /** Writes a result for programs: one line. */
  printObject(value: object): void {
    this.print(JSON.stringify(value));
  }

  /** Says on the error stream what goes on, as a sentence or, with `--json`, as an object. */
  note(text: string, event: OutputEvent): void {
    if (this.#options.quiet) return;
    this.#error(this.json ? JSON.stringify(event) : `holdfast: ${text}`);
  }

  /** Says why the command failed; that others hold a lock is no error. */
  fail(message: string, status: number): void {
    if (this.#options.quiet && status === EXIT.held) return;
    this.#error(
      this.json ? JSON.stringify({ event: "failed", status, message }) : `holdfast: ${message}`,
    );
  }

  /** A view that redraws itself, on the error stream or on the standard output. */
  live(stream: "stdout" | "stderr"): LiveView {
    return this.#live = new LiveView(stream, this.#options.redact);
  }

  #error(text: string): void {
    this.#live?.clear();
    note(`${this.#options.redact(text)}\n`);
  }
}

/** Lines at the end of the terminal that are drawn again and again in the same place. */
export class LiveView {
  readonly #stream: "stdout" | "stderr";
  readonly #redact: (text: string) => string;
  #height = 0;

  constructor(stream: "stdout" | "stderr", redact: (text: string) => string) {
    this.#stream = stream;
    this.#redact = redact;
  }

  /** How many lines fit. */
  get rows(): number {
    return process[this.#stream].rows || 24;
  }

  /** Draws `lines` in place of what was drawn before. */
  show(lines: readonly string[]): void {
    const shown = lines.slice(0, Math.max(1, this.rows - 1)).map(this.#redact);
    // Without autowrap (DECAWM) a long line is cut, and the height is known.
    this.#write(`${this.#up()}${OFF}${shown.map((line) => `${line}\x1b[K\n`).join("")}\x1b[J${ON}`);
    this.#height = shown.length;
  }

  /** Takes the view away. */
  clear(): void {
    if (this.#height > 0) this.#write(`${this.#up()}\x1b[J`);
    this.#height = 0;
  }

  #up(): string {
    return this.#height > 0 ? `\r\x1b[${this.#height}A` : "\r";
  }

  #write(text: string): void {
    if (this.#stream === "stdout") write(STDOUT, text);
    else note(text);
  }
}

/** Autowrap off and on. */
const OFF = "\x1b[?7l";
const ON = "\x1b[?7h";

/** Writes on the error stream; a command goes on without anybody who reads its notes. */
function note(text: string): void {
  try {
    write(STDERR, text);
  } catch (error) {
    if (!(error instanceof ReaderGone)) throw error;
  }
}

/** Writes all of a text, at once, so that nothing is lost when the process ends after it. */
function write(fd: number, text: string): void {
  let bytes = new TextEncoder().encode(text);
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(writeSync(fd, bytes));
    } catch (error) {
      const { code } = error as { code?: string };
      if (code === "EPIPE" || code === "EIO") throw new ReaderGone();
      if (code !== "EAGAIN") throw error;
      // A pipe that somebody made non-blocking, and that is full.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}
