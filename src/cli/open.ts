/**
 * Opens the storage that a URL names, within a time, and runs work with it.
 *
 * @module
 */
import { StorageError } from "../core/errors.ts";
import { EXIT, Failure, usage } from "./failure.ts";
import { nearest } from "./nearest.ts";
import type { Opened } from "./opened.ts";
import { shown } from "./storage_url.ts";
import { STORAGES } from "./storages.ts";

/** The longest that opening may take, in milliseconds, whatever the client does. */
const OPEN_MS = { min: 2000, max: 10_000 };

/** The longest that closing may take; what is left ends with the process. */
const CLOSE_MS = 1000;

/**
 * Opens a storage, and closes it after the work.
 *
 * @param url where the locks are
 * @param work gets the storage
 * @param patienceMs how long the user is ready to wait, in milliseconds; opening takes 2 to 10 s at most
 * @returns what the work returned
 * @throws {Failure} if the storage cannot be opened
 * @throws whatever the work throws
 */
export async function withStorage<T>(
  url: string,
  work: (opened: Opened) => Promise<T>,
  patienceMs = Infinity,
): Promise<T> {
  const limitMs = Math.min(Math.max(patienceMs, OPEN_MS.min), OPEN_MS.max);
  const opened = await open(url, limitMs);
  try {
    return await work(opened);
  } finally {
    const closing = Promise.resolve().then(() => opened.close()).catch(() => {});
    await within(CLOSE_MS, closing);
  }
}

async function open(url: string, limitMs: number): Promise<Opened> {
  const scheme = /^[a-z][a-z0-9+.-]*:/i.exec(url)?.[0].toLowerCase() ?? "";
  const product = STORAGES[scheme];
  if (!product) {
    const meant = nearest(scheme, Object.keys(STORAGES));
    throw usage(
      `Cannot use storage "${shown(url)}" as there is no such storage: ` +
        (meant ? `did you mean ${meant}?` : `one of ${Object.keys(STORAGES).join(", ")}`),
    );
  }
  const opening = product(url);
  const opened = await within(limitMs, opening).catch((cause: unknown) => {
    if (cause instanceof Failure) throw cause;
    throw new StorageError(`Cannot open storage "${shown(url)}"`, { transient: false, cause });
  });
  if (opened) return opened;
  throw new Failure(
    EXIT.storage,
    `Cannot open storage "${shown(url)}" as it did not answer: current value is ${limitMs} ms`,
  );
}

/**
 * Waits for work, but not for ever.
 *
 * @param ms the longest wait, in milliseconds
 * @param work what to wait for
 * @returns what it comes to, or `undefined` when the time is over
 */
export async function within<T>(ms: number, work: Promise<T>): Promise<T | undefined> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const over = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), ms);
  });
  try {
    return await Promise.race([work, over]);
  } finally {
    clearTimeout(timer);
  }
}
