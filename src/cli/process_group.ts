/**
 * A command and everything that it starts, as one process group, so that all of it can be ended.
 *
 * @module
 */
import { spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { constants } from "node:os";
import process from "node:process";
import { EXIT, Failure } from "./failure.ts";

/** How a command ended. */
export interface Ended {
  /** Its exit status; for a signal 128 and its number, as a shell has it. */
  readonly status: number;
  /** The signal that ended it. */
  readonly signal: NodeJS.Signals | null;
}

/** How often to look whether the rest of a group has ended, in milliseconds. */
const LOOK_MS = 20;

/** A running command with its group. */
export class ProcessGroup {
  /** When the command itself has ended; others of the group may go on. */
  readonly ended: Promise<Ended>;
  /** The process id of the command, which is also that of the group. */
  readonly pid: number;

  private constructor(pid: number, ended: Promise<Ended>) {
    this.pid = pid;
    this.ended = ended;
  }

  /**
   * Starts a command in a process group (on POSIX, in a session) of its own, on our standard streams.
   *
   * @param command the program and its arguments
   * @param env its environment
   * @returns the group
   * @throws {Failure} with status 127 if there is no such program, 126 if it cannot be run
   */
  static async start(
    [program, ...args]: readonly string[],
    env: NodeJS.ProcessEnv,
  ): Promise<ProcessGroup> {
    try {
      const child = spawn(program!, args, { detached: true, stdio: "inherit", env });
      const ended = new Promise<Ended>((resolve) => {
        child.once("exit", (code, signal) => {
          resolve({ status: code ?? 128 + (signal ? constants.signals[signal] : 0), signal });
        });
      });
      await new Promise<void>((resolve, reject) => {
        child.once("spawn", resolve);
        child.once("error", reject);
      });
      return new ProcessGroup(child.pid!, ended);
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      throw code === "ENOENT"
        ? new Failure(EXIT.notFound, `Cannot run "${program}" as it was not found`)
        : new Failure(EXIT.notExecutable, `Cannot run "${program}": ${message}`);
    }
  }

  /**
   * Sends a signal to the whole group.
   *
   * @param signal the signal, or 0 to ask whether there is anybody
   * @returns whether there was anybody
   */
  signal(signal: NodeJS.Signals | 0): boolean {
    // Windows has no process groups: there it is only the command itself.
    const target = process.platform === "win32" ? this.pid : -this.pid;
    try {
      return process.kill(target, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ESRCH") return false;
      throw error;
    }
  }

  /**
   * Waits until nobody of the group is left.
   *
   * @param ms the longest wait, in milliseconds
   * @returns whether nobody is left
   */
  async emptied(ms: number): Promise<boolean> {
    const untilMs = performance.now() + ms;
    while (this.#hasMembers()) {
      if (performance.now() >= untilMs) return false;
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return true;
  }

  /** Whether anybody is left who can still do something. */
  #hasMembers(): boolean {
    if (!this.signal(0)) return false;
    return process.platform !== "linux" || hasLivingMembers(this.pid);
  }
}

/** On Linux a group can consist of the dead that nobody collects, in a container without an init process. */
function hasLivingMembers(group: number): boolean {
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
      // "pid (name) state parent group ...", where the name may hold anything.
      const [state, , pgrp] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      if (Number(pgrp) === group && state !== "Z" && state !== "X") return true;
    } catch {
      // It has ended meanwhile.
    }
  }
  return false;
}
