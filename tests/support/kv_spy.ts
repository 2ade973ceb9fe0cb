/**
 * A Deno KV client that counts, remembers what was written how, and fails as the real one does.
 *
 * @module
 */
import type { KvAtomic, KvClient, KvCommit, KvKey } from "../../src/storage/deno_kv.ts";

/**
 * What becomes of a commit: `locked` is not applied and fails as SQLite does; `lost` is applied and says
 * `ok: false`, as a runtime that sent it twice does; `broken` is applied and throws; `down` is not applied
 * and throws.
 */
export type CommitFault = "locked" | "lost" | "broken" | "down";

/** One write of one atomic operation. */
export interface SpiedSet {
  /** Where. */
  readonly key: KvKey;
  /** For how long; for ever if absent. */
  readonly expireIn: number | undefined;
}

/** Stands in front of a real client. */
export class KvSpy implements KvClient {
  /** Calls of `get`. */
  reads = 0;
  /** Calls of `commit`. */
  commits = 0;
  /** Checks of the operation that had most of them. */
  mostChecks = 0;
  /** All that was to be written, oldest first. */
  readonly sets: SpiedSet[] = [];
  /** What happens to the next commits. */
  readonly faults: CommitFault[] = [];
  /** Thrown by the next reads. */
  readonly readErrors: Error[] = [];
  /** Present if the client can watch. */
  readonly watch?: NonNullable<KvClient["watch"]>;

  readonly #kv: KvClient;

  constructor(kv: KvClient) {
    this.#kv = kv;
    if (kv.watch) this.watch = kv.watch.bind(kv);
  }

  get(key: KvKey): ReturnType<KvClient["get"]> {
    this.reads++;
    const error = this.readErrors.shift();
    return error ? Promise.reject(error) : this.#kv.get(key);
  }

  atomic(): KvAtomic {
    const op = this.#kv.atomic();
    let checks = 0;
    return {
      check: (...all) => {
        checks += all.length;
        this.mostChecks = Math.max(this.mostChecks, checks);
        op.check(...all);
      },
      set: (key, value, options) => {
        this.sets.push({ key, expireIn: options?.expireIn });
        op.set(key, value, options);
      },
      delete: (key) => op.delete(key),
      commit: () => this.#commit(op),
    };
  }

  async #commit(op: KvAtomic): Promise<KvCommit> {
    this.commits++;
    const fault = this.faults.shift();
    if (fault === "locked") throw new TypeError("database is locked");
    if (fault === "down") throw new TypeError("fetch failed");
    const result = await op.commit();
    if (fault === "broken") throw new TypeError("fetch failed");
    return fault === "lost" ? { ok: false } : result;
  }
}
