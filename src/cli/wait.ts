/**
 * Getting the lease, and showing who has it while we wait.
 *
 * @module
 */
import { LockTimeoutError } from "../core/errors.ts";
import type { Lease } from "../core/lease.ts";
import type { Lock, LockView } from "../core/lock.ts";
import type { CountedStorage } from "./counted.ts";
import { EXIT, Failure, failureOf } from "./failure.ts";
import { duration, holdersOf, tableOf } from "./format.ts";
import { within } from "./open.ts";
import type { LiveView, Output } from "./output.ts";

/** What to wait for, and how. */
export interface WaitOptions {
  /** The lock, on `storage`. */
  readonly lock: Lock;
  /** Where it is. */
  readonly storage: CountedStorage;
  /** How long to wait, in milliseconds; without limit if absent; 0 for not at all. */
  readonly waitMs: number | undefined;
  /** Ends the wait, with its reason. */
  readonly signal: AbortSignal;
  /** Where to say who has the lock. */
  readonly output: Output;
  /** Work that goes on after a wait that is given up. */
  readonly background: Set<Promise<unknown>>;
}

/** From one drawing of the view to the next, in milliseconds. */
const DRAW_MS = 250;

/** The view asks the storage at most this often, and at least this often, in milliseconds. */
const ASK_MS = { min: 1000, max: 5000 };

/** From when on it is said that the storage is silent, in milliseconds. */
const SILENT_MS = 2000;

/** How long a wait that is given up may take to leave nothing behind, in milliseconds. */
const LEAVE_MS = 1000;

/**
 * Acquires a lock. A storage that cannot be reached at first is a failure; one that is lost later is waited
 * for.
 *
 * @param options which lock, and how long to wait
 * @returns the lease
 * @throws {Failure} with status 75 if others held the lock for all of `waitMs`
 * @throws {StorageError} if the storage failed
 * @throws the signal's reason
 */
export async function waitForLease(options: WaitOptions): Promise<Lease> {
  const { lock, waitMs, signal, storage, background } = options;
  const startedMs = performance.now();
  try {
    const lease = await tryOnce(options);
    if (lease) return lease;
    if (waitMs === 0) throw await stillHeld(lock, "");
    const viewing = show(options);
    try {
      const spentMs = Math.round(performance.now() - startedMs);
      const timeoutMs = waitMs === undefined ? undefined : Math.max(1, waitMs - spentMs);
      return await lock.acquire({ signal, timeoutMs });
    } catch (error) {
      if (!(error instanceof LockTimeoutError)) throw error;
      throw await stillHeld(lock, ` after ${waitMs} ms of waiting`);
    } finally {
      await viewing.stop();
    }
  } catch (error) {
    const leaving = storage.leave().catch(() => {});
    await within(LEAVE_MS, Promise.all([leaving, ...background]));
    throw error;
  }
}

async function tryOnce({ lock, waitMs, signal }: WaitOptions): Promise<Lease | null> {
  if (!waitMs) return await lock.tryAcquire({ signal });
  const over = AbortSignal.timeout(waitMs);
  try {
    return await lock.tryAcquire({ signal: AbortSignal.any([signal, over]) });
  } catch (error) {
    if (error !== over.reason) throw error;
    throw new Failure(
      EXIT.storage,
      `Cannot acquire lock "${lock.name}" as the storage did not answer: current value is ${waitMs} ms`,
    );
  }
}

async function stillHeld(lock: Lock, when: string): Promise<Failure> {
  const view = await lock.inspect().catch(() => undefined);
  const who = view && view.holders.length > 0 ? holdersOf(view.holders) : "held";
  return new Failure(EXIT.held, `Cannot acquire lock "${lock.name}" as it is ${who}${when}`);
}

/** Shows who has the lock: again and again on a terminal, once elsewhere. */
function show(options: WaitOptions): { stop(): Promise<void> } {
  const { output, lock } = options;
  if (output.isErrorTerminal) return new WaitView(options, output.live("stderr"));
  const said = lock.inspect().catch(() => undefined).then((view) => {
    const who = view ? `, ${holdersOf(view.holders)}` : "";
    const { holders = [], waiters = 0 } = view ?? {};
    output.note(`waiting for "${lock.name}"${who}`, {
      event: "waiting",
      name: lock.name,
      holders,
      waiters,
    });
  });
  return { stop: () => within(LEAVE_MS, said).then(() => {}) };
}

/** The view on a terminal. */
class WaitView {
  readonly #options: WaitOptions;
  readonly #live: LiveView;
  readonly #startedMs = performance.now();
  readonly #askEveryMs: number;
  readonly #timer: ReturnType<typeof setInterval>;
  #seen: { readonly view: LockView; readonly atMs: number } | undefined;
  #failure: string | undefined;
  #askedMs = -Infinity;
  #isAsking = false;

  constructor(options: WaitOptions, live: LiveView) {
    this.#options = options;
    this.#live = live;
    const { max } = options.storage.pollMs;
    this.#askEveryMs = Math.min(Math.max(max, ASK_MS.min), ASK_MS.max);
    this.#timer = setInterval(() => this.#draw(), DRAW_MS);
    this.#draw();
  }

  stop(): Promise<void> {
    clearInterval(this.#timer);
    this.#live.clear();
    return Promise.resolve();
  }

  #draw(): void {
    const nowMs = performance.now();
    const sinceAskedMs = nowMs - this.#askedMs;
    if (!this.#isAsking && sinceAskedMs >= this.#askEveryMs) this.#ask(nowMs);
    const { lock, waitMs } = this.#options;
    const waitedMs = nowMs - this.#startedMs;
    const limit = waitMs === undefined ? "" : ` of at most ${duration(waitMs)}`;
    const waiters = this.#seen?.view.waiters ?? 0;
    const count = waiters > 1 ? `, ${waiters} waiting` : "";
    const lines = [`Waiting for "${lock.name}": ${duration(waitedMs)}${limit}${count}`];
    if (this.#seen) {
      const { view, atMs } = this.#seen;
      const holders = view.holders.map((holder) => ({
        ...holder,
        remainingMs: holder.remainingMs - (nowMs - atMs),
      }));
      lines.push(...tableOf(holders, this.#live.rows - 4));
    }
    if (this.#isAsking && sinceAskedMs >= SILENT_MS && sinceAskedMs < Infinity) {
      lines.push(`  The storage has not answered for ${duration(sinceAskedMs)}`);
    } else if (this.#failure) lines.push(`  ${this.#failure}`);
    this.#live.show(lines);
  }

  #ask(nowMs: number): void {
    this.#askedMs = nowMs;
    this.#isAsking = true;
    this.#options.lock.inspect().then((view) => {
      this.#seen = { view, atMs: performance.now() };
      this.#failure = undefined;
    }, (error) => this.#failure = failureOf(error).message)
      .finally(() => this.#isAsking = false);
  }
}
