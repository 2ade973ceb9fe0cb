/**
 * `holdfast watch`: who gets a lock, and how long they keep it, as it happens.
 *
 * @module
 */
import type { HolderView } from "../core/record.ts";
import { isTransient } from "../core/errors.ts";
import { Lock, type LockView } from "../core/lock.ts";
import type { LeaseStorage } from "../core/storage.ts";
import { COMMON_OPTIONS } from "./arguments.ts";
import { type Call, onlyName } from "./command.ts";
import { failureOf } from "./failure.ts";
import { duration, nameOf, tableOf } from "./format.ts";
import { withStorage } from "./open.ts";
import type { LiveView, Output } from "./output.ts";
import { Signals } from "./signals.ts";

/** What `watch` takes. */
export const WATCH_OPTIONS = { ...COMMON_OPTIONS, "every-ms": "count" } as const;

/** From one look to the next unless the user says otherwise, in milliseconds. */
const EVERY_MS = { min: 100, max: 1000 };

/**
 * Watches one lock until it is interrupted.
 *
 * @param call the arguments
 * @throws {Interrupted} when a signal ends it
 */
export async function watch(call: Call<typeof WATCH_OPTIONS>): Promise<number> {
  const name = onlyName(call, "holdfast watch NAME");
  return await withStorage(call.storageUrl(), async ({ storage }) => {
    const lock = new Lock({ storage, name });
    const watching = new Watching(name, call.output);
    const signals = new Signals();
    try {
      await follow(lock, watching, signals.interrupted, everyMs(storage, call.options["every-ms"]));
    } finally {
      signals.stop();
    }
    throw signals.interrupted.reason;
  });
}

/** Often where looking is free, once a second where it costs money. */
function everyMs({ pollMs }: LeaseStorage, wishMs: number | undefined): number {
  if (wishMs !== undefined) return Math.max(1, wishMs);
  return Math.min(Math.max(pollMs.max / 4, EVERY_MS.min), EVERY_MS.max);
}

async function follow(
  lock: Lock,
  watching: Watching,
  signal: AbortSignal,
  ms: number,
): Promise<void> {
  while (!signal.aborted) {
    try {
      watching.see(await lock.inspect());
    } catch (error) {
      if (!isTransient(error)) throw error;
      watching.missed(failureOf(error).message);
    }
    await pause(ms, signal);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
    if (signal.aborted) end();
  });
}

/** A holding that was seen. */
interface Seen {
  readonly holder: HolderView;
  readonly sinceMs: number;
}

/** What was seen of a lock. */
class Watching {
  readonly #name: string;
  readonly #output: Output;
  readonly #live: LiveView | undefined;
  #seen = new Map<number, Seen>();
  #lastFence: number | undefined;
  #isMissed = false;

  constructor(name: string, output: Output) {
    this.#name = name;
    this.#output = output;
    this.#live = output.isTerminal ? output.live("stdout") : undefined;
  }

  /** Says what has changed since the last look. */
  see(view: LockView): void {
    const nowMs = performance.now();
    const before = this.#seen;
    const isFirst = this.#lastFence === undefined;
    this.#isMissed = false;
    this.#seen = new Map(view.holders.map((holder) => {
      const { fence } = holder;
      return [fence, { holder, sinceMs: before.get(fence)?.sinceMs ?? nowMs }];
    }));
    for (const [fence, { holder, sinceMs }] of before) {
      if (!this.#seen.has(fence)) {
        this.#say("ended", holder, { heldMs: Math.round(nowMs - sinceMs) });
      }
    }
    const lastFence = this.#lastFence ?? view.fence;
    for (const [fence, { holder }] of this.#seen) {
      if (!before.has(fence)) this.#say(isFirst ? "held" : "granted", holder, {});
    }
    if (view.fence > lastFence && !this.#seen.has(view.fence)) {
      this.#say("granted", { fence: view.fence, label: "", permits: 1 }, { unseen: true });
    }
    this.#lastFence = Math.max(lastFence, view.fence);
    this.#draw(view);
  }

  /** Says once that the storage does not answer. */
  missed(message: string): void {
    if (this.#isMissed) return;
    this.#isMissed = true;
    this.#output.note(message, { event: "unavailable", name: this.#name, message });
  }

  #say(
    event: "held" | "granted" | "ended",
    holder: Omit<HolderView, "remainingMs">,
    more: { readonly heldMs?: number; readonly unseen?: true },
  ): void {
    const at = new Date().toISOString();
    const { fence, label, permits } = holder;
    if (this.#output.json) {
      const name = this.#name;
      return this.#output.printObject({ event, at, name, fence, label, permits, ...more });
    }
    const who = more.unseen ? "somebody, for a moment" : nameOf(holder);
    const after = more.heldMs === undefined ? "" : ` after ${duration(more.heldMs)}`;
    this.#output.print(`${at} ${event.padEnd(7)} fence ${fence} ${who}${after}`);
  }

  #draw({ holders, waiters }: LockView): void {
    if (!this.#live) return;
    const waiting = waiters > 0 ? `, ${waiters} waiting` : "";
    const state = holders.length > 0 ? "held by" : "free";
    const lines = ["", `"${this.#name}": ${state}${waiting}`];
    lines.push(...tableOf(holders, this.#live.rows - 5));
    this.#live.show(lines);
  }
}
