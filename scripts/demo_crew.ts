/**
 * The worker processes of the demo, and what is done to them.
 *
 * @module
 */
import type { DemoEvent, Sabotage } from "./demo_history.ts";
import { type Instruction, TTL_MS } from "./demo_terms.ts";
import { linesOf } from "./lines.ts";

/** One worker process. */
export interface Worker {
  /** Its number, from 1. */
  readonly id: number;
  /** Its process. */
  readonly process: Deno.ChildProcess;
  /** Whether it should be running. */
  isAlive: boolean;
}

/** Options of a {@linkcode Crew}. */
export interface CrewOptions {
  /** The Deno KV file. */
  readonly path: string;
  /** What is broken on purpose. */
  readonly sabotage: Sabotage | undefined;
  /** Told of everything, as it comes in. */
  readonly onEvent: (event: DemoEvent) => void;
}

/** How long a worker has to end by itself, in milliseconds. */
const PATIENCE_MS = 10_000;

/** All workers, and the history of what they did. */
export class Crew {
  /** Everything that happened, in the order in which it was heard of. */
  readonly events: DemoEvent[] = [];
  /** All workers that ever were. */
  readonly workers: Worker[] = [];

  readonly #options: CrewOptions;
  readonly #readers: Promise<void>[] = [];
  readonly #listeners = new Set<(event: DemoEvent) => void>();

  constructor(options: CrewOptions) {
    this.#options = options;
  }

  /** Starts one more worker. */
  start(): Worker {
    const { path, sabotage = "" } = this.#options;
    const id = this.workers.length + 1;
    const file = `${import.meta.dirname}/demo_worker.ts`;
    const process = new Deno.Command(Deno.execPath(), {
      args: [
        "run",
        "-A",
        "--no-check",
        "--unstable-kv",
        file,
        path,
        `${id}`,
        `${TTL_MS}`,
        sabotage,
      ],
      stdin: "piped",
      stdout: "piped",
      stderr: "inherit",
    }).spawn();
    const worker: Worker = { id, process, isAlive: true };
    this.workers.push(worker);
    this.#readers.push(this.#read(worker));
    return worker;
  }

  /** Tells all workers that run something. */
  async tellAll(line: Instruction): Promise<void> {
    for (const worker of this.workers) {
      if (!worker.isAlive) continue;
      const writer = worker.process.stdin.getWriter();
      // A worker that just died hears nothing.
      await writer.write(new TextEncoder().encode(line + "\n")).catch(() => {});
      writer.releaseLock();
    }
  }

  /** Sends a signal, and notes when. */
  strike(worker: Worker, signal: "SIGKILL" | "SIGSTOP" | "SIGCONT"): void {
    const type = ({ SIGKILL: "killed", SIGSTOP: "frozen", SIGCONT: "continued" } as const)[signal];
    const at = Date.now();
    worker.process.kill(signal);
    if (signal === "SIGKILL") worker.isAlive = false;
    this.#heard({ type, worker: worker.id, at });
  }

  /**
   * Waits for something that has not happened yet.
   *
   * @param isMeant says what
   * @param withinMs how long to wait
   * @returns the event, or `undefined` when the time is over
   */
  next(isMeant: (event: DemoEvent) => boolean, withinMs: number): Promise<DemoEvent | undefined> {
    return new Promise((resolve) => {
      const settle = (event?: DemoEvent): void => {
        clearTimeout(timer);
        this.#listeners.delete(listener);
        resolve(event);
      };
      const listener = (event: DemoEvent): void => {
        if (isMeant(event)) settle(event);
      };
      const timer = setTimeout(() => settle(), withinMs);
      this.#listeners.add(listener);
    });
  }

  /** The last time that a worker was granted or renewed its lease. */
  lastBeat(worker: Worker): DemoEvent | undefined {
    return this.events.findLast((event) =>
      event.worker === worker.id && (event.type === "granted" || event.type === "renewed")
    );
  }

  /** Whether a worker is in its critical section, as far as we heard. */
  isInside(worker: Worker): boolean {
    const last = this.events.findLast((event) =>
      event.worker === worker.id && (event.type === "granted" || event.type === "releasing")
    );
    return last?.type === "granted";
  }

  /** Lets everybody end, and ends those who do not. */
  async stop(): Promise<void> {
    await this.tellAll("stop");
    const timer = setTimeout(() => this.kill(), PATIENCE_MS);
    await Promise.all(this.#readers);
    clearTimeout(timer);
  }

  /** Ends everybody at once. */
  kill(): void {
    for (const { process } of this.workers) {
      try {
        process.kill("SIGKILL");
      } catch {
        // It has ended already.
      }
    }
  }

  async #read(worker: Worker): Promise<void> {
    for await (const line of linesOf(worker.process.stdout)) this.#heard(JSON.parse(line));
    const { code } = await worker.process.status;
    await worker.process.stdin.close().catch(() => {});
    const at = Date.now();
    if (worker.isAlive && code !== 0) {
      this.#heard({ type: "failed", worker: worker.id, at, message: `exit status ${code}` });
    }
    worker.isAlive = false;
    this.#heard({ type: "ended", worker: worker.id, at });
  }

  #heard(event: DemoEvent): void {
    this.events.push(event);
    for (const listener of [...this.#listeners]) listener(event);
    this.#options.onEvent(event);
  }
}
