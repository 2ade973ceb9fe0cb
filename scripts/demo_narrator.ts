/**
 * What the demo says: one line per grant while it runs, and a summary.
 *
 * @module
 */
import type { DemoEvent, Sabotage, Summary } from "./demo_history.ts";

/** Where lines go. */
export interface Output {
  /** Writes bytes. */
  writeSync(bytes: Uint8Array): number;
  /** Whether a person is looking. */
  isTerminal(): boolean;
}

type Colour = "red" | "green" | "yellow" | "blue" | "grey" | "bold";

const CODES: Readonly<Record<Colour, number>> = {
  red: 31,
  green: 32,
  yellow: 33,
  blue: 34,
  grey: 90,
  bold: 1,
};

/** Says it. */
export class Narrator {
  /** When the demo began, in milliseconds since the epoch. */
  startMs = 0;
  readonly #output: Output;
  readonly #isColoured: boolean;
  #killedAt: number | undefined;
  /** The fence that the zombie was frozen with. */
  readonly #fences = new Map<number, number>();

  constructor(output: Output) {
    this.#output = output;
    this.#isColoured = output.isTerminal() && !Deno.noColor;
  }

  /** The first line. */
  title(words: string, sabotage: Sabotage | undefined): void {
    this.#line(this.#paint("bold", words));
    if (sabotage) this.#line(this.#paint("red", `sabotaged with ${sabotage}: this has to fail`));
    this.#line("");
  }

  /** One line for what is worth one. */
  tell(event: DemoEvent): void {
    const { worker } = event;
    switch (event.type) {
      case "granted": {
        this.#fences.set(worker, event.fence);
        const takeover = this.#killedAt === undefined ? "" : this.#paint(
          "green",
          `  took over ${Math.max(0, event.at - this.#killedAt)} ms after the kill`,
        );
        this.#killedAt = undefined;
        const waited = `waited ${Math.round(event.waitedMs).toString().padStart(4)} ms`;
        this.#tell(event, " ", `fence ${event.fence}  ${waited}${takeover}`);
        break;
      }
      case "killed":
        this.#killedAt = event.at;
        this.#tell(event, "x", `SIGKILL while it holds fence ${this.#fences.get(worker)}`, "red");
        break;
      case "frozen":
        this.#tell(event, "=", `SIGSTOP while it holds fence ${this.#fences.get(worker)}`, "blue");
        break;
      case "continued":
        this.#tell(
          event,
          ">",
          "SIGCONT: it goes on where it stood, long after its lease",
          "yellow",
        );
        break;
      case "refused":
        this.#tell(
          event,
          "/",
          `its fenced write was refused: fence ${event.fence} is stale`,
          "green",
        );
        break;
      case "failed":
        this.#tell(event, "!", event.message, "red");
        break;
    }
  }

  /** The last lines. */
  summary(
    summary: Summary,
    problems: readonly string[],
    details: { readonly limitMs: number; readonly svg: string },
  ): void {
    const rows: [string, unknown, string][] = [
      ["critical sections", summary.sections, ""],
      ["overlaps of valid holdings", summary.overlaps, "has to be 0"],
      ["lost updates, fenced", summary.lostFencedUpdates, "has to be 0"],
      ["lost updates, not fenced", summary.lostUnfencedUpdates, "why fencing exists"],
      ["takeover after the kill", `${summary.takeoverMs} ms`, `at most ${details.limitMs} ms`],
      ["stale writes refused", summary.staleWritesRefused, "at least 1"],
      ["fences increasing", summary.fencesIncreasing, "has to be true"],
    ];
    this.#line("");
    for (const [what, value, rule] of rows) {
      this.#line(`  ${what.padEnd(28)}${String(value).padStart(8)}  ${this.#paint("grey", rule)}`);
    }
    this.#line("");
    this.#line(`  timeline  ${details.svg}`);
    this.#line("");
    for (const problem of problems) this.#line(this.#paint("red", `  does not hold: ${problem}`));
    if (problems.length === 0) this.#line(this.#paint("green", "  everything holds"));
  }

  #tell({ worker, at }: DemoEvent, sign: string, words: string, colour?: Colour): void {
    const seconds = ((at - this.startMs) / 1000).toFixed(3).padStart(8);
    const line = `${sign} worker ${worker}  ${words}`;
    this.#line(
      `${this.#paint("grey", `${seconds} s`)} ${colour ? this.#paint(colour, line) : line}`,
    );
  }

  #paint(colour: Colour, words: string): string {
    return this.#isColoured && words ? `\x1b[${CODES[colour]}m${words}\x1b[0m` : words;
  }

  #line(words: string): void {
    this.#output.writeSync(new TextEncoder().encode(words + "\n"));
  }
}
