/**
 * Leases in Deno KV: a local file that the processes of one machine share, a database in memory, or a
 * remote one; through `Deno.Kv`, or the npm package `@deno/kv` in Node and Bun.
 *
 * An uncontended acquire, renewal and release are one atomic commit each. Deno KV has no clock that can be
 * asked, so the clients' wall clocks say the time and `maxClockSkewMs` bounds how far any two of them are
 * apart (0 on one machine); a holder is also taken for dead once it was seen unchanged for longer than its
 * lease. Its own expiry (`expireIn`) only collects what is long over.
 *
 * Beside the record of a lock each holding has a guard, a key that comes and goes with it and that nothing
 * else touches: {@linkcode fencedCommit} makes your own writes depend on it.
 *
 * Deno needs `--unstable-kv`, or `"unstable": ["kv"]` in deno.json. `@deno/kv` in Bun needs `encodeV8` and
 * `decodeV8` to be given; they are not used for what this storage writes.
 *
 * @example
 * ```ts
 * import { Lock } from "@holdfast/lock";
 * import { DenoKvStorage, fencedCommit } from "@holdfast/lock/deno-kv";
 * import { assertEquals } from "@std/assert";
 *
 * const kv = await Deno.openKv(":memory:");
 * const storage = new DenoKvStorage(kv);
 * const lock = new Lock({ storage, name: "invoice:42" });
 * await lock.with((lease) => fencedCommit(kv, lease, (op) => op.set(["invoice", 42], "sent")));
 * assertEquals((await kv.get(["invoice", 42])).value, "sent");
 * kv.close();
 * ```
 *
 * @module
 */
import { systemClock } from "../core/clock.ts";
import { systemEntropy } from "../core/entropy.ts";
import { StorageError } from "../core/errors.ts";
import {
  type Change,
  type Register,
  RegisterStorage,
  type RegisterStorageOptions,
  type Versioned,
  type Write,
  type Written,
} from "../core/register.ts";
import type { ExecuteOptions, Watch } from "../core/storage.ts";
import {
  bytesOf,
  callKv,
  checkPrefix,
  guardKey,
  type KvCallOptions,
  type KvClient,
  recordKey,
  textOf,
} from "./_deno_kv_client.ts";
import { KvWatch } from "./_deno_kv_watch.ts";

export type {
  KvAtomic,
  KvClient,
  KvCommit,
  KvEntry,
  KvEvents,
  KvKey,
  KvKeyPart,
} from "./_deno_kv_client.ts";
export { fencedCommit, type FencedCommitOptions } from "./_deno_kv_fenced_commit.ts";

/** Options of a {@linkcode DenoKvStorage}. */
export interface DenoKvStorageOptions extends RegisterStorageOptions {
  /**
   * The first part of every key: 1 to 64 UTF-8 bytes.
   *
   * @default {"holdfast"}
   */
  readonly prefix?: string | undefined;
  /**
   * Where the database is. `"local"`, a file or memory of one machine: its clock is everybody's
   * (`maxClockSkewMs` is 0 unless given), and waiters poll every 5 to 80 ms, because the watch of Deno KV does
   * not see what other processes write to a file. `"remote"`, where every read is billed: waiters leave a
   * ticket, rely on the watch, and poll every 250 to 5000 ms besides.
   *
   * @default {"local"}
   */
  readonly location?: "local" | "remote" | undefined;
}

/**
 * Keeps leases in Deno KV. The database is not configured and not closed.
 *
 * @example
 * ```ts
 * import { DenoKvStorage } from "@holdfast/lock/deno-kv";
 *
 * const kv = await Deno.openKv(":memory:");
 * const storage = new DenoKvStorage(kv);
 * kv.close();
 * ```
 */
export class DenoKvStorage extends RegisterStorage<string | null> {
  /**
   * A storage in an open database.
   *
   * @param kv an open `Deno.Kv`, or `Kv` of `@deno/kv`
   * @param options `prefix`, `location`, and what all register storages have
   * @throws {TypeError | RangeError} if an option is wrong, or `kv` is not open
   */
  constructor(kv: KvClient, options: DenoKvStorageOptions = {}) {
    const remote = checkLocation(options.location ?? "local") === "remote";
    const pollMs = options.pollMs ?? (remote ? { min: 250, max: 5000 } : { min: 5, max: 80 });
    const maxClockSkewMs = options.maxClockSkewMs ?? (remote ? undefined : 0);
    super(
      new KvRegister(checkClient(kv), options, remote),
      { serverTime: false, wakesTickets: remote },
      { ...options, pollMs, maxClockSkewMs },
    );
  }
}

/** The line of a holder with a token, in the text of a record (`codec.ts`); to decode it takes as long again. */
const HAS_GUARDS = /\nh (?!- )/;

/** A record under a key, with a versionstamp that never repeats; `null` is the version of its absence. */
class KvRegister implements Register<string | null> {
  readonly absent = null;
  readonly watch?: (name: string, wake: (next?: string) => void) => Watch;
  readonly #kv: KvClient;
  readonly #prefix: string;
  readonly #call: KvCallOptions;

  constructor(kv: KvClient, options: DenoKvStorageOptions, remote: boolean) {
    this.#kv = kv;
    this.#prefix = checkPrefix(options.prefix);
    const { clock = systemClock, entropy = systemEntropy } = options;
    this.#call = { clock, entropy };
    if (remote && typeof kv.watch === "function") {
      this.watch = (name, wake) =>
        new KvWatch(kv, recordKey(this.#prefix, name), { clock, entropy, wake });
    }
  }

  key(name: string): string {
    return recordKey(this.#prefix, name).join("/");
  }

  async read(name: string, { signal }: ExecuteOptions): Promise<Versioned<string | null>> {
    const { value, versionstamp } = await callKv(
      `read key "${this.key(name)}"`,
      () => this.#kv.get(recordKey(this.#prefix, name)),
      { ...this.#call, signal },
    );
    if (versionstamp === null) return { value: null, version: null };
    const text = textOf(value);
    if (text === undefined) {
      throw new StorageError(
        `Cannot use key "${this.key(name)}" as its value is not a Holdfast record`,
        { transient: false },
      );
    }
    return { value: text, version: versionstamp };
  }

  async write(
    name: string,
    next: Write,
    version: string | null,
    change: Change,
    { signal }: ExecuteOptions,
  ): Promise<Written<string | null>> {
    const key = recordKey(this.#prefix, name);
    const op = this.#kv.atomic();
    op.check({ key, versionstamp: version });
    op.set(key, bytesOf(next.value), this.#expiry(next));
    for (const { fence } of change.ended) op.delete(guardKey(this.#prefix, name, fence));
    for (const { fence, token } of change.granted) {
      op.set(guardKey(this.#prefix, name, fence), bytesOf(token!));
    }
    const written = await callKv(
      `write key "${this.key(name)}"`,
      () => op.commit(),
      { ...this.#call, signal },
    );
    return written.ok ? { ok: true, version: written.versionstamp } : { ok: false };
  }

  /**
   * A guard has to be gone when its record is, or an old holder could still write beside a new one; but the
   * product deletes what expired key by key and in no order. So a record of which guards remain is kept
   * until somebody takes the lock again.
   */
  #expiry({ value, retainUntilMs }: Write): { expireIn?: number } {
    if (HAS_GUARDS.test(value)) return {};
    return { expireIn: Math.max(1, Math.ceil(retainUntilMs - this.#call.clock.read().wallMs)) };
  }
}

function checkClient(kv: KvClient): KvClient {
  if (typeof kv?.atomic === "function" && typeof kv.get === "function") return kv;
  const value: unknown = kv;
  throw new TypeError(
    `Cannot use kv as it must be an open Deno.Kv, or Kv of @deno/kv: current value is ` +
      (value instanceof Promise
        ? "a promise"
        : `of type ${value === null ? "null" : typeof value}`),
  );
}

function checkLocation(location: "local" | "remote"): "local" | "remote" {
  if (location === "local" || location === "remote") return location;
  throw new TypeError(
    `Cannot use location as it must be one of "local", "remote": ` +
      `current value is ${JSON.stringify(location)}`,
  );
}
