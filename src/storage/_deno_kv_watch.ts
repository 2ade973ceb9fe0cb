/**
 * Hints from the watch of Deno KV that a lock may be free.
 *
 * @module
 */
import { backoffMs } from "../core/backoff.ts";
import { type Clock, sleep } from "../core/clock.ts";
import { decodeRecord } from "../core/codec.ts";
import { dispose } from "../core/disposable.ts";
import type { Entropy } from "../core/entropy.ts";
import type { LeaseRecord, Ticket } from "../core/record.ts";
import { type PollMs, waiterMark, type Watch } from "../core/storage.ts";
import {
  type KvClient,
  type KvEntry,
  type KvEvents,
  type KvKey,
  textOf,
} from "./_deno_kv_client.ts";

/** Options of a {@linkcode KvWatch}. */
export interface KvWatchOptions {
  /** Where the time comes from. */
  readonly clock: Clock;
  /** Where jitter comes from. */
  readonly entropy: Entropy;
  /** Called when the lock may be free. */
  readonly wake: (next?: string) => void;
}

/** The pause before a watch that broke is begun again. */
const AGAIN_MS: PollMs = { min: 1000, max: 30_000 };

/**
 * Watches one record. Renewals and tickets change it too, and are nothing to wake anyone for: a hint is given
 * when a holding has gone or another waiter is first in line. It names the first waiter if there is one.
 *
 * For remote databases only: on a local file the watch hears of nobody but this process (denoland/denokv,
 * sqlite/lib.rs: the notifier is in the process), and with @deno/kv it keeps the process from ending.
 */
export class KvWatch implements Watch {
  readonly #kv: KvClient;
  readonly #key: KvKey;
  readonly #options: KvWatchOptions;
  readonly #end = new AbortController();
  #reader: ReturnType<KvEvents["getReader"]> | undefined;
  #isBegun = false;
  #last: LeaseRecord | undefined;

  /** Begins to watch. */
  constructor(kv: KvClient, key: KvKey, options: KvWatchOptions) {
    this.#kv = kv;
    this.#key = key;
    this.#options = options;
    this.#run();
  }

  /** Whether hints can be expected now. */
  get live(): boolean {
    return this.#isBegun;
  }

  /** Stops. */
  [dispose](): void {
    this.#end.abort();
    this.#reader?.cancel().catch(() => {});
  }

  async #run(): Promise<void> {
    const { clock, entropy } = this.#options;
    const { signal } = this.#end;
    for (let failures = 0; !signal.aborted; failures++) {
      try {
        // Raw, because a stream of @deno/kv that leaves out repeated events spins for ever once it ends.
        const events = this.#kv.watch!([this.#key], { raw: true });
        const reader = this.#reader = events.getReader();
        for (;;) {
          const { done, value } = await reader.read();
          if (done || signal.aborted) break;
          failures = 0;
          this.#look(value![0]!);
        }
      } catch {
        // Without the watch there is still the poll.
      }
      this.#isBegun = false;
      this.#last = undefined;
      const ms = backoffMs(failures, AGAIN_MS, entropy.random());
      await sleep(clock, ms, { keepAlive: false, signal }).catch(() => {});
    }
  }

  #look({ value }: KvEntry): void {
    const { wake, clock } = this.#options;
    const before = this.#last;
    const record = this.#last = recordOf(value);
    const isFirst = !this.#isBegun;
    this.#isBegun = true;
    if (isFirst || !record || !before) return wake();
    const { wallMs } = clock.read();
    const first = firstInLine(record, wallMs);
    const freed = before.holders.some((h) => !record.holders.some((r) => r.fence === h.fence));
    const isNew = first?.token !== firstInLine(before, wallMs)?.token;
    if ((freed || isNew) && fits(record, first, wallMs)) wake(first && waiterMark(first.token));
  }
}

/** A deleted record, or one that is not ours, is for the waiter to see. */
function recordOf(value: unknown): LeaseRecord | undefined {
  try {
    return decodeRecord(textOf(value) ?? "");
  } catch {
    return undefined;
  }
}

function firstInLine(record: LeaseRecord, nowMs: number): Ticket | undefined {
  return record.tickets.find((t) => nowMs < t.expiresAtMs);
}

/** As `step` names whom to wake. */
function fits({ holders }: LeaseRecord, first: Ticket | undefined, nowMs: number): boolean {
  const live = holders.filter((h) => nowMs < h.expiresAtMs);
  const taken = live.reduce((sum, h) => sum + h.permits, 0);
  return taken + (first?.permits ?? 0) <= (live[0]?.capacity ?? Infinity);
}
