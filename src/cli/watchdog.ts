/**
 * A process beside us that ends the command when we cannot: killed, stopped, or with an event loop that a
 * client of some product keeps busy.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import process from "node:process";
import { within } from "./open.ts";

/**
 * Reads a line for each new deadline, in seconds from then, and kills the group `$1` when one has passed
 * without another. The end of its input without `done` says that we were killed: then nobody renews any
 * more, and the group gets `$2` seconds to end by itself.
 *
 * The sleep is ended by SIGKILL, because for a moment after the fork it has the trap of its parent.
 */
const SCRIPT = `
while read -r left; do
  [ -n "$timer" ] && kill "$timer" && wait "$timer"
  [ "$left" = done ] && exit
  (trap 'kill -s KILL "$!"; wait "$!"; exit' TERM; sleep "$left" & wait "$!" && kill -s KILL -- "-$1") & timer=$!
done
kill -s TERM -- "-$1"; sleep "$2" || sleep 1; kill -s KILL -- "-$1"; kill "$timer"; wait`;

/** A deadline that moved by less is not worth a line, in milliseconds. */
const WORTH_MS = 50;

/** How long it may take to end, in milliseconds. */
const GONE_MS = 1000;

/** Watches over one process group. Without a shell (on Windows) it does nothing. */
export class Watchdog {
  readonly #process: ChildProcess | undefined;
  #deadlineMs = -Infinity;

  /**
   * @param group the id of the process group
   * @param graceMs what it gets between SIGTERM and SIGKILL when we are killed, in milliseconds
   */
  constructor(group: number, graceMs: number) {
    if (process.platform === "win32") return;
    try {
      // In a session of its own, out of reach of the terminal's signals.
      const watchdog = spawn("/bin/sh", ["-c", SCRIPT, "holdfast", `${group}`, seconds(graceMs)], {
        detached: true,
        stdio: ["pipe", "ignore", "ignore"],
      });
      // One that could not start, or was killed, is missed only if we are killed too.
      watchdog.on("error", () => {});
      watchdog.stdin?.on("error", () => {});
      this.#process = watchdog;
    } catch {
      // There is no shell.
    }
  }

  /**
   * Moves the deadline.
   *
   * @param leftMs how far it is away, in milliseconds
   */
  extend(leftMs: number): void {
    const deadlineMs = performance.now() + leftMs;
    if (Math.abs(deadlineMs - this.#deadlineMs) < Math.min(WORTH_MS, leftMs / 10)) return;
    this.#deadlineMs = deadlineMs;
    this.#process?.stdin?.write(`${seconds(leftMs)}\n`);
  }

  /** All is over; waits until the watchdog is gone. */
  async dismiss(): Promise<void> {
    const watchdog = this.#process;
    if (!watchdog || watchdog.exitCode !== null || watchdog.signalCode !== null) return;
    const gone = new Promise<void>((resolve) => {
      watchdog.once("exit", () => resolve());
      watchdog.once("error", () => resolve());
    });
    watchdog.stdin?.end("done\n");
    await within(GONE_MS, gone);
  }
}

/** POSIX has whole seconds only; everybody has fractions. */
function seconds(ms: number): string {
  return (Math.ceil(ms) / 1000).toFixed(3);
}
