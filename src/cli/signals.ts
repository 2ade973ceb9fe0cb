/**
 * Signals that are meant for the command: passed on to it while it runs, and the end of the wait before.
 *
 * @module
 */
import { constants } from "node:os";
import process from "node:process";
import { Interrupted } from "./failure.ts";
import type { ProcessGroup } from "./process_group.ts";

/** Those that end a process, and those that only tell it something. */
const ENDING: readonly NodeJS.Signals[] = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"];
const TELLING: readonly NodeJS.Signals[] = ["SIGUSR1", "SIGUSR2", "SIGWINCH"];

/** What Windows knows. */
const ON_WINDOWS: readonly NodeJS.Signals[] = ["SIGINT"];

/** Listens to signals from its making to {@linkcode Signals.stop}. */
export class Signals {
  readonly #interrupted = new AbortController();
  readonly #listeners: (readonly [NodeJS.Signals, () => void])[] = [];
  #group: ProcessGroup | undefined;
  #beforeResume: (() => void) | undefined;

  constructor() {
    const isWindows = process.platform === "win32";
    for (const signal of isWindows ? ON_WINDOWS : [...ENDING, ...TELLING]) {
      this.#listen(signal, () => this.#pass(signal));
    }
    if (isWindows) return;
    this.#listen("SIGTSTP", () => this.#suspend());
    this.#listen("SIGCONT", () => this.#resume());
  }

  /** Aborts, with an {@linkcode Interrupted}, if we are asked to end while there is no command. */
  get interrupted(): AbortSignal {
    return this.#interrupted.signal;
  }

  /**
   * From now on signals go to a command.
   *
   * @param group the command
   * @param beforeResume called when we go on after we were suspended, before the command does
   */
  passTo(group: ProcessGroup, beforeResume: () => void): void {
    this.#group = group;
    this.#beforeResume = beforeResume;
  }

  /** Listens no more. */
  stop(): void {
    for (const [signal, listener] of this.#listeners) process.off(signal, listener);
  }

  #listen(signal: NodeJS.Signals, listener: () => void): void {
    process.on(signal, listener);
    this.#listeners.push([signal, listener]);
  }

  #pass(signal: NodeJS.Signals): void {
    if (this.#group) this.#group.signal(signal);
    else if (ENDING.includes(signal)) {
      this.#interrupted.abort(new Interrupted(signal, constants.signals[signal]));
    }
  }

  /** The command must not work on while nobody renews: it is stopped first, then we are. */
  #suspend(): void {
    this.#group?.signal("SIGSTOP");
    process.kill(process.pid, "SIGSTOP");
  }

  /** A lease that ran out meanwhile ends the command before it can do anything. */
  #resume(): void {
    this.#beforeResume?.();
    this.#group?.signal("SIGCONT");
  }
}
