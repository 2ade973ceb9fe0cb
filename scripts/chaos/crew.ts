/**
 * The worker processes: started, replaced, struck with signals and brought home, each by its process id.
 *
 * @module
 */
import type { ChildProcess } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { Readable } from "node:stream";
import { linesOf } from "../lines.ts";
import { launch } from "../services/service.ts";
import { FINISH, IN_SECTION, pause, type Sabotage, type WorkerOrders } from "./terms.ts";

/** Options of a {@linkcode Crew}. */
export interface CrewOptions {
  /** Which storage. */
  readonly storage: string;
  /** Where the storage is for the worker of a place, by number. */
  readonly at: (place: number) => string;
  /** The folder for journals. */
  readonly folder: string;
  /** What is broken on purpose. */
  readonly sabotage: Sabotage | undefined;
}

/** How a process ended. */
export interface End {
  /** Whose. */
  readonly process: string;
  /** Its exit status; `null` after a signal. */
  readonly code: number | null;
  /** Whether we killed it. */
  readonly isKilled: boolean;
  /** What it said last, if it ended by itself. */
  readonly lastWords?: string | undefined;
}

/** One worker process. */
class Member {
  readonly name: string;
  readonly pid: number;
  readonly ended: Promise<End>;
  isKilled = false;
  isFrozen = false;
  isRunning = true;
  readonly #child: ChildProcess;

  constructor(name: string, child: ChildProcess, onLine: (line: string) => void) {
    this.name = name;
    this.pid = child.pid!;
    this.#child = child;
    // A process that was killed hears nothing.
    child.stdin!.on("error", () => {});
    const listening = (async () => {
      for await (const line of linesOf(Readable.toWeb(child.stdout!))) onLine(line);
    })();
    this.ended = new Promise((resolve) => {
      child.once("exit", async (code) => {
        this.isRunning = false;
        await listening;
        resolve({ process: name, code, isKilled: this.isKilled });
      });
    });
  }

  tell(line: string): void {
    this.#child.stdin!.write(line + "\n");
  }

  signal(signal: "SIGKILL" | "SIGSTOP" | "SIGCONT"): void {
    if (!this.isRunning) return;
    this.isKilled ||= signal === "SIGKILL";
    this.isFrozen = signal === "SIGSTOP";
    // Not by the child's own method, which sends one signal and no other after it.
    Deno.kill(this.pid, signal);
  }
}

/** All workers: one in each place, and those who were there before. */
export class Crew {
  readonly #options: CrewOptions;
  readonly #places = new Map<number, Member>();
  readonly #all: Member[] = [];
  readonly #listeners = new Set<(place: number) => void>();

  constructor(options: CrewOptions) {
    this.#options = options;
  }

  /** The process ids of all that ever were. */
  get pids(): readonly number[] {
    return this.#all.map((member) => member.pid);
  }

  /** The places with a process that runs. */
  get places(): number[] {
    return [...this.#places].filter(([, m]) => m.isRunning && !m.isFrozen).map(([place]) => place);
  }

  /** The name of the process in a place. */
  nameOf(place: number): string {
    return this.#places.get(place)!.name;
  }

  /** The place of a process, if it is still there. */
  placeOf(name: string): number | undefined {
    return [...this.#places].find(([, member]) => member.name === name)?.[0];
  }

  /** Starts a process in a place, instead of the one before. */
  start(place: number): void {
    const { storage, at, folder, sabotage } = this.#options;
    const times =
      this.#all.filter((member) => member.name.split("#")[0] === `w${place + 1}`).length;
    const process = times === 0 ? `w${place + 1}` : `w${place + 1}#${times + 1}`;
    const orders: WorkerOrders = {
      process,
      storage,
      at: at(place),
      journal: `${folder}/${process}.jsonl`,
      plain: `${folder}/plain`,
      sabotage,
    };
    const errors = openSync(`${folder}/${process}.stderr`, "w");
    const file = new URL("worker.ts", import.meta.url).pathname;
    const command = [Deno.execPath(), "run", "-A", "--no-check", file, JSON.stringify(orders)];
    const child = launch(command, { asNobody: false, stdio: ["pipe", "pipe", errors] });
    closeSync(errors);
    const member = new Member(process, child, (line) => {
      if (line === IN_SECTION) { for (const listener of [...this.#listeners]) listener(place); }
    });
    this.#places.set(place, member);
    this.#all.push(member);
  }

  /** Waits until somebody is between reading and writing: the place, or nothing when the time is over. */
  nextInSection(withinMs: number): Promise<number | undefined> {
    return new Promise((resolve) => {
      const settle = (place?: number): void => {
        clearTimeout(timer);
        this.#listeners.delete(settle);
        resolve(place);
      };
      const timer = setTimeout(() => settle(), withinMs);
      this.#listeners.add(settle);
    });
  }

  /** Kills the process in a place (SIGKILL). */
  async kill(place: number): Promise<void> {
    const member = this.#places.get(place)!;
    member.signal("SIGKILL");
    await member.ended;
  }

  /** Freezes the process in a place (SIGSTOP). */
  freeze(place: number): void {
    this.#places.get(place)!.signal("SIGSTOP");
  }

  /** Lets the process in a place go on (SIGCONT). */
  thaw(place: number): void {
    this.#places.get(place)!.signal("SIGCONT");
  }

  /**
   * Sends everybody home.
   *
   * @param withinMs how long they may take
   * @param signal they may take no longer
   * @returns how each process ended that ever was; who did not go was killed
   */
  async finish(withinMs: number, signal: AbortSignal): Promise<End[]> {
    const members = [...this.#places.values()];
    for (const member of members) member.tell(FINISH);
    const patience = new AbortController();
    const everybody = Promise.all(members.map((member) => member.ended));
    await Promise.race([everybody, pause(withinMs, AbortSignal.any([patience.signal, signal]))]);
    patience.abort();
    const late = members.filter((member) => member.isRunning).map((member) => member.name);
    await this.end();
    const ends = await Promise.all(this.#all.map((member) => member.ended));
    return ends.map((end) => late.includes(end.process) ? { ...end, isKilled: false } : end);
  }

  /** Ends everybody at once, the frozen too. */
  async end(): Promise<void> {
    for (const member of this.#all) member.signal("SIGKILL");
    await Promise.all(this.#all.map((member) => member.ended));
  }
}
