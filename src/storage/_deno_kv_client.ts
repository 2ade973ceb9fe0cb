/**
 * What the Deno KV storage needs of its client, and where it keeps what.
 *
 * @module
 */
import { backoffMs } from "../core/backoff.ts";
import { type Clock, sleep } from "../core/clock.ts";
import type { Entropy } from "../core/entropy.ts";
import { StorageError } from "../core/errors.ts";
import type { PollMs } from "../core/storage.ts";
import { checkText } from "../core/validate.ts";

/** One part of a key. */
export type KvKeyPart = Uint8Array | string | number | bigint | boolean;

/** A key. */
export type KvKey = readonly KvKeyPart[];

/** What is stored under a key; both `null` where there is nothing. */
export interface KvEntry {
  /** The value. */
  readonly value: unknown;
  /** The version, which never repeats. */
  readonly versionstamp: string | null;
}

/** How an atomic operation ended; `ok: false` if one of its checks failed. */
export type KvCommit =
  | {
    /** Discriminates the result. */
    readonly ok: true;
    /** The version of everything that was written. */
    readonly versionstamp: string;
  }
  | {
    /** Discriminates the result. */
    readonly ok: false;
  };

/** The methods of an atomic operation that are called here. */
export interface KvAtomic {
  /** Makes the commit depend on a version. */
  check(...checks: { key: KvKey; versionstamp: string | null }[]): unknown;
  /** Writes. */
  set(key: KvKey, value: unknown, options?: { expireIn?: number }): unknown;
  /** Deletes. */
  delete(key: KvKey): unknown;
  /** Does it all, or nothing. */
  commit(): Promise<KvCommit>;
}

/** Changes of keys as they come. */
export interface KvEvents {
  /** Begins to read them. */
  getReader(): {
    /** The next change. */
    read(): Promise<{ readonly done: boolean; readonly value?: readonly KvEntry[] | undefined }>;
    /** No more of them. */
    cancel(): Promise<void>;
  };
}

/** The methods that are called on a `Deno.Kv`, or a `Kv` of the npm package `@deno/kv`. */
export interface KvClient<A extends KvAtomic = KvAtomic> {
  /** Reads one key, strongly consistent. */
  get(key: KvKey): Promise<KvEntry>;
  /** Begins an atomic operation. */
  atomic(): A;
  /** Tells of changes. */
  watch?(keys: KvKey[], options: { raw: true }): KvEvents;
}

/** What every call needs, whoever makes it. */
export interface KvCallOptions {
  /** Where the time comes from. */
  readonly clock: Clock;
  /** Where jitter comes from. */
  readonly entropy: Entropy;
  /** Ends the pauses between two tries. */
  readonly signal?: AbortSignal | undefined;
}

/** How often a locked file is tried, within some 600 ms. */
const LOCKED_TRIES = 20;

const LOCKED_BACKOFF_MS: PollMs = { min: 1, max: 50 };

/**
 * What another try cannot mend: a database that was closed, an operation beyond the limits of the product,
 * a file that is none or cannot be written, an access token that was refused.
 */
const PERMANENT = new RegExp(
  [
    "^Bad resource ID",
    "after '.close' is called",
    "too large|too many (checks|mutations|keys)",
    "not a database|readonly database",
    "status(=|: )40\\d",
  ].join("|"),
  "i",
);

/** Checks the first part of every key. */
export function checkPrefix(prefix: string | undefined): string {
  return checkText("prefix", prefix ?? "holdfast", 1, 64);
}

/** Where the record of a lock is. */
export function recordKey(prefix: string, name: string): KvKey {
  return [prefix, "lock", name];
}

/** Where the guard of one holding is: there from its grant to its end, and unchanged in between. */
export function guardKey(prefix: string, name: string, fence: number): KvKey {
  return [prefix, "guard", name, fence];
}

/** Where a fenced commit leaves its nonce. */
export function nonceKey(prefix: string, name: string, nonce: string): KvKey {
  return [prefix, "nonce", name, nonce];
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Values are bytes, because only these are the same in Deno, Node and Bun. */
export function bytesOf(text: string): Uint8Array {
  return encoder.encode(text);
}

/** The text of stored bytes; `undefined` for anything else. */
export function textOf(value: unknown): string | undefined {
  if (!(value instanceof Uint8Array)) return undefined;
  try {
    return decoder.decode(value);
  } catch {
    return undefined;
  }
}

/**
 * Calls the product. A file that another process writes at this moment fails at once, and cleanly, with
 * `database is locked` (nothing waits for it): that is tried again.
 *
 * @param what what is attempted, for the message: `read key "holdfast/lock/x"`
 * @param call makes the call
 * @param options clock, entropy, signal
 * @returns what the product answered
 * @throws {StorageError} what the product threw, as its cause
 * @throws the signal's reason, if it has aborted
 */
export async function callKv<T>(
  what: string,
  call: () => Promise<T>,
  options: KvCallOptions,
): Promise<T> {
  for (let tries = 1;; tries++) {
    try {
      return await call();
    } catch (cause) {
      options.signal?.throwIfAborted();
      if (!isLocked(cause)) {
        const transient = !(cause instanceof Error && PERMANENT.test(cause.message));
        throw new StorageError(`Cannot ${what} as Deno KV failed`, { transient, cause });
      }
      if (tries === LOCKED_TRIES) {
        throw new StorageError(
          `Cannot ${what} as others keep the database locked: current value is ${tries} tries`,
          { transient: true, cause },
        );
      }
    }
    const pauseMs = backoffMs(tries, LOCKED_BACKOFF_MS, options.entropy.random());
    await sleep(options.clock, pauseMs, { keepAlive: true, signal: options.signal });
  }
}

/** Deno KV has no error codes; the text is SQLite's own. */
function isLocked(error: unknown): boolean {
  return error instanceof Error && /database( table)? is locked/.test(error.message);
}
