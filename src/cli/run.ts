/**
 * `holdfast run`: a command under a lease.
 *
 * @module
 */
import { hostname } from "node:os";
import process from "node:process";
import type { LockEvent } from "../core/events.ts";
import type { Lease } from "../core/lease.ts";
import { Lock } from "../core/lock.ts";
import type { LockOptions } from "../core/settings.ts";
import { COMMON_OPTIONS, type OptionValues } from "./arguments.ts";
import type { Call } from "./command.ts";
import { CountedStorage } from "./counted.ts";
import { EXIT, failureOf, usage } from "./failure.ts";
import { duration } from "./format.ts";
import { type Cause, Guard } from "./guard.ts";
import { within, withStorage } from "./open.ts";
import type { Output } from "./output.ts";
import { type Ended, ProcessGroup } from "./process_group.ts";
import { Signals } from "./signals.ts";
import { waitForLease } from "./wait.ts";
import { Watchdog } from "./watchdog.ts";

/** What `run` takes. */
export const RUN_OPTIONS = {
  ...COMMON_OPTIONS,
  "ttl-ms": "count",
  "wait-ms": "count",
  "no-wait": "flag",
  "min-hold-ms": "count",
  "grace-ms": "count",
  "permits": "count",
  "capacity": "count",
  "fair": "flag",
  "label": "text",
} as const;

type RunValues = OptionValues<typeof RUN_OPTIONS>;

const DEFAULT_TTL_MS = 30_000;

/** The longest that giving the lease back may take, in milliseconds; after that the ttl frees the lock. */
const RELEASE_MS = 5000;

/** From how long a wait on that its end is told on a terminal, in milliseconds. */
const NEWS_MS = 1000;

/** How long the killed may take to be gone, in milliseconds. */
const GONE_MS = 2000;

/**
 * Runs a command while holding a lock.
 *
 * @param call the arguments
 * @returns the exit status
 */
export async function run(call: Call<typeof RUN_OPTIONS>): Promise<number> {
  const { words, rest, options, output, storageUrl } = call;
  const [name, ...others] = words;
  if (name === undefined) throw usage("Cannot run without NAME: holdfast run NAME -- COMMAND");
  if (others.length > 0) {
    throw usage(`Cannot use "${others[0]}" here: put "--" before the command`);
  }
  if (!rest?.length) throw usage(`Cannot run without a command: holdfast run ${name} -- COMMAND`);
  const waitMs = options["no-wait"] ? 0 : options["wait-ms"];
  if (options["no-wait"] && options["wait-ms"]) {
    throw usage("Cannot use --no-wait and --wait-ms together");
  }
  const graceMs = graceOf(options);
  return await withStorage(storageUrl(), async (opened) => {
    const storage = new CountedStorage(opened.storage);
    const background = new Set<Promise<unknown>>();
    const lock = new Lock({
      ...lockOptions(name, options),
      storage,
      waitUntil: (work) => background.add(work.finally(() => background.delete(work))),
      onEvent: teller(output),
    });
    const signals = new Signals();
    try {
      const signal = signals.interrupted;
      const lease = await waitForLease({ lock, storage, waitMs, signal, output, background });
      lease.hold();
      return await runHeld({ lock, lease, signals, output, graceMs, command: rest });
    } finally {
      signals.stop();
    }
  }, waitMs || undefined);
}

function graceOf(options: RunValues): number {
  const ttlMs = options["ttl-ms"] ?? DEFAULT_TTL_MS;
  const longestMs = Math.floor(ttlMs / 3);
  const graceMs = options["grace-ms"] ?? Math.floor(ttlMs / 10);
  if (graceMs <= longestMs) return graceMs;
  throw usage(
    `Cannot use --grace-ms as it must be an integer from 0 to ${longestMs} ms, a third of --ttl-ms: ` +
      `current value is ${graceMs}`,
  );
}

function lockOptions(name: string, options: RunValues): Omit<LockOptions, "storage"> {
  return {
    name,
    ttlMs: options["ttl-ms"] ?? DEFAULT_TTL_MS,
    minHoldMs: options["min-hold-ms"],
    permits: options.permits,
    capacity: options.capacity,
    fair: options.fair,
    label: options.label ?? `${hostname().slice(0, 48)}:${process.pid}`,
  };
}

/** Says what becomes of the lease, where it is of interest to a person. */
function teller(output: Output): (event: LockEvent) => void {
  let isFailing = false;
  return (event) => {
    if (event.type === "renewed") isFailing = false;
    if (event.type === "acquired") {
      const { name, fence, waitedMs } = event;
      const line = `got "${name}" after ${duration(waitedMs)}, fence ${fence}`;
      const isNews = output.json || (output.isErrorTerminal && waitedMs >= NEWS_MS);
      if (isNews) output.note(line, { event: "acquired", name, fence, waitedMs });
    }
    if (event.type === "renewFailed" && !isFailing) {
      isFailing = true;
      const { name, fence, remainingMs, error } = event;
      const { message } = failureOf(error);
      const line = `${message}; the lease lasts for ${duration(remainingMs)}`;
      output.note(line, { event: "renewFailed", name, fence, remainingMs, message });
    }
  };
}

interface Held {
  readonly lock: Lock;
  readonly lease: Lease;
  readonly signals: Signals;
  readonly output: Output;
  readonly graceMs: number;
  readonly command: readonly string[];
}

async function runHeld(held: Held): Promise<number> {
  const { lock, lease, signals, graceMs, command } = held;
  let group: ProcessGroup;
  try {
    signals.interrupted.throwIfAborted();
    group = await ProcessGroup.start(command, environmentOf(lease));
  } catch (error) {
    await within(RELEASE_MS, giveBackUnused(lock, lease));
    throw error;
  }
  const watchdog = new Watchdog(group.pid, graceMs);
  const guard = new Guard(lease, graceMs, {
    strike: (signal, cause) => strike(held, group, signal, cause),
    extend: (leftMs) => watchdog.extend(leftMs),
  });
  signals.passTo(group, () => guard.look());
  const ended = await group.ended;
  // Whatever ended it, it may have been because of the lease.
  guard.look();
  await endRest(held, group, guard);
  guard.stop();
  await watchdog.dismiss();
  const status = guard.cause === undefined ? ended.status : EXIT.lost;
  await giveBack(held, { ...ended, status });
  return status;
}

function environmentOf({ name, fencingToken }: Lease): NodeJS.ProcessEnv {
  return { ...process.env, HOLDFAST_NAME: name, HOLDFAST_FENCING_TOKEN: `${fencingToken}` };
}

function strike(
  { lease: { name, fencingToken: fence }, output }: Held,
  group: ProcessGroup,
  signal: "SIGTERM" | "SIGKILL",
  reason: Cause,
): void {
  group.signal(signal);
  const why = reason === "renewals-failed" ? "is about to be lost" : `is lost (${reason})`;
  const line = `the lease on "${name}" ${why}: the command gets ${signal}`;
  output.note(line, { event: "lost", name, fence, reason, signal });
}

/** What the command left running would work on without the lease. */
async function endRest(
  { output, graceMs, lease }: Held,
  group: ProcessGroup,
  guard: Guard,
): Promise<void> {
  const isEmpty = async (ms: number): Promise<boolean> => {
    if (!guard.cause) return await group.emptied(ms);
    // It was told already; the guard kills it in time.
    return await group.emptied(guard.patienceMs + GONE_MS);
  };
  if (await isEmpty(graceMs)) return;
  const { name } = lease;
  output.note(`the command on "${name}" ended and left others running, which are ended too`, {
    event: "leftover",
    name,
  });
  group.signal("SIGTERM");
  if (await isEmpty(graceMs)) return;
  group.signal("SIGKILL");
  await isEmpty(GONE_MS);
}

/** Nothing has run, so there is nothing that a minimal hold would keep others from repeating. */
async function giveBackUnused(lock: Lock, lease: Lease): Promise<void> {
  await lock.forceRelease(lease.fencingToken).catch(() => {});
  await lease.release().catch(() => {});
}

async function giveBack({ lease, output }: Held, { status, signal }: Ended): Promise<void> {
  const { name, fencingToken: fence } = lease;
  const remainingMs = lease.remainingMs();
  // A lease that is lost is not given back, and one that cannot be is over at its deadline.
  const released = remainingMs > 0
    ? await within(Math.min(remainingMs, RELEASE_MS), lease.release().catch(() => undefined))
    : false;
  if (released === undefined) {
    const line = `could not give "${name}" back: it is free in ${duration(remainingMs)}`;
    output.note(line, { event: "releaseFailed", name, fence, remainingMs });
  }
  if (output.json) {
    output.note("", { event: "ended", name, fence, status, signal, released: released === true });
  }
}
