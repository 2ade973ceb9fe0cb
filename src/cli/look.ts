/**
 * `holdfast status`, `holdfast list` and `holdfast release`: looking at locks, and taking one away.
 *
 * @module
 */
import { Lock, type LockView } from "../core/lock.ts";
import type { LeaseStorage } from "../core/storage.ts";
import { COMMON_OPTIONS } from "./arguments.ts";
import { type Call, noMoreWords, onlyName } from "./command.ts";
import { EXIT, failureOf, usage } from "./failure.ts";
import { holdersOf, tableOf } from "./format.ts";
import { withStorage } from "./open.ts";
import type { Output } from "./output.ts";
import { shown } from "./storage_url.ts";

/** What `release` takes. */
export const RELEASE_OPTIONS = { ...COMMON_OPTIONS, force: "flag", fence: "count" } as const;

/** How many locks are asked for at once. */
const AT_ONCE = 16;

/** Holders in one view. */
const MOST_HOLDERS = 256;

/**
 * Shows who holds one lock.
 *
 * @param call the arguments
 * @returns the exit status
 */
export async function status(call: Call<typeof COMMON_OPTIONS>): Promise<number> {
  const name = onlyName(call, "holdfast status NAME");
  const { output } = call;
  return await withStorage(call.storageUrl(), async ({ storage }) => {
    const view = await new Lock({ storage, name }).inspect();
    if (output.json) output.printObject({ name, ...view });
    else sayStatus(name, view, output);
    return EXIT.ok;
  });
}

function sayStatus(name: string, { fence, holders, waiters }: LockView, output: Output): void {
  if (holders.length === 0) {
    const last = fence === 0 ? "never held, or long ago" : `last fence ${fence}`;
    output.print(`"${name}" is free (${last})`);
  } else {
    output.print(`"${name}" is held by`);
    for (const line of tableOf(holders, MOST_HOLDERS)) output.print(line);
  }
  if (waiters > 0) output.print(`${waiters} waiting`);
}

/**
 * Lists the locks that the storage has a record of.
 *
 * @param call the arguments
 * @returns the exit status
 */
export async function list(call: Call<typeof COMMON_OPTIONS>): Promise<number> {
  const { words, output } = call;
  const [prefix = "", ...others] = words;
  noMoreWords(others, "holdfast list [PREFIX]");
  const url = call.storageUrl();
  return await withStorage(url, async (opened) => {
    if (!opened.list) {
      throw usage(`Cannot list the locks of "${shown(url)}" as that would read a whole table`);
    }
    const names = (await opened.list()).filter((name) => name.startsWith(prefix)).sort();
    const locks = await inspectAll(opened.storage, names);
    if (output.json) output.printObject({ locks });
    else sayList(locks, output);
    return EXIT.ok;
  });
}

/** A lock, or why it cannot be looked at: a record that is none does not hide the others. */
type Listed = { readonly name: string } & (LockView | { readonly error: string });

async function inspectAll(storage: LeaseStorage, names: readonly string[]): Promise<Listed[]> {
  const locks: Listed[] = [];
  for (let i = 0; i < names.length; i += AT_ONCE) {
    const some = names.slice(i, i + AT_ONCE).map((name) =>
      new Lock({ storage, name }).inspect().then(
        (view) => ({ name, ...view }),
        (error) => ({ name, error: failureOf(error).message }),
      )
    );
    locks.push(...await Promise.all(some));
  }
  return locks;
}

function sayList(locks: readonly Listed[], output: Output): void {
  if (locks.length === 0 && output.isTerminal) return output.print("No locks");
  const width = Math.max(0, ...locks.map(({ name }) => name.length));
  for (const lock of locks) output.print(`${lock.name.padEnd(width)}  ${stateOf(lock)}`);
}

function stateOf(lock: Listed): string {
  if ("error" in lock) return lock.error;
  return holdersOf(lock.holders) + (lock.waiters > 0 ? `, ${lock.waiters} waiting` : "");
}

/**
 * Takes a lock away from its holders.
 *
 * @param call the arguments
 * @returns the exit status
 */
export async function release(call: Call<typeof RELEASE_OPTIONS>): Promise<number> {
  const { options, output } = call;
  const name = onlyName(call, "holdfast release NAME --force");
  if (!options.force) {
    throw usage(
      `Cannot release "${name}" without --force: its holder works on until it next renews, ` +
        `beside the next one`,
    );
  }
  return await withStorage(call.storageUrl(), async ({ storage }) => {
    const removed = await new Lock({ storage, name }).forceRelease(options.fence);
    if (output.json) output.printObject({ name, removed });
    else output.print(`"${name}": ${removed} ${removed === 1 ? "lease" : "leases"} removed`);
    return EXIT.ok;
  });
}
