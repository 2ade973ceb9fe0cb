/**
 * How a lock is acquired: asking, waiting, asking again with the same token, and cleaning up after an
 * attempt that is given up.
 *
 * @module
 */
import { backoffMs } from "./backoff.ts";
import { type Clock, elapsedForHolderMs, sleep, type Stamp } from "./clock.ts";
import { dispose } from "./disposable.ts";
import { HoldfastError, isTransient, LockTimeoutError, StorageError } from "./errors.ts";
import { emit } from "./events.ts";
import { Gate, type Turn } from "./gate.ts";
import { Holding } from "./holding.ts";
import { granted, leftMs, ttlToAskMs } from "./lifecycle.ts";
import type { AcquireCommand, Full, Granted, Held, ReleaseCommand } from "./record.ts";
import { insist, RETRY_MS, sendCommand } from "./request.ts";
import type { Settings, WaitUntil } from "./settings.ts";
import { waiterMark, type Watch } from "./storage.ts";

/** Options of an attempt that does not wait for a holder. */
export interface TryAcquireOptions {
  /** Gives up, with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** Takes work that goes on in the background, instead of the lock's own. */
  readonly waitUntil?: WaitUntil | undefined;
}

/** Options of an attempt that waits. */
export interface AcquireOptions extends TryAcquireOptions {
  /** How long to wait, in milliseconds; without limit if absent. */
  readonly timeoutMs?: number | undefined;
}

/** How an attempt that does not wait ended. */
export type Tried =
  | { readonly holding: Holding }
  | { readonly reason: "held" | "unavailable"; readonly retryAfterMs: number };

/** The part of `queueMs` after which a waiter refreshes its ticket. */
const REFRESH = 0.75;

/** The pause after a hint for a waiter that lost the race for the last one, in milliseconds. */
const RACE_MS = { min: 8, max: 16 };

/** Who has lost so many, asks for a place that others have to wait for. */
const MAX_RACES = 3;

/** How long such a place outlives its last refresh, in milliseconds. */
const PASSED_OVER_MS = 1000;

/** Those behind in the gate believe in whoever is in front for at least this long, in milliseconds. */
const GATE_PATIENCE_MS = 1000;

/**
 * Acquires a lock, waiting as long as it takes.
 *
 * @throws {LockTimeoutError} if others held it until `timeoutMs` was over
 * @throws {StorageError} if nothing but faults were seen until then, or at once for a fault that stays
 * @throws the signal's reason, if it aborts first
 */
export async function acquire(settings: Settings, options: AcquireOptions): Promise<Holding> {
  options.signal?.throwIfAborted();
  const attempt = new Attempt(settings, options);
  try {
    return await attempt.wait();
  } finally {
    attempt.end();
  }
}

/**
 * Acquires a lock if it is free.
 *
 * @throws {StorageError} if the storage failed three times, or at once for a fault that stays
 * @throws the signal's reason, if it aborts first
 */
export async function tryAcquire(settings: Settings, options: TryAcquireOptions): Promise<Tried> {
  options.signal?.throwIfAborted();
  const attempt = new Attempt(settings, options);
  try {
    return await attempt.once();
  } finally {
    attempt.end();
  }
}

/** One caller's attempt to acquire. */
class Attempt {
  readonly #settings: Settings;
  readonly #clock: Clock;
  readonly #signal: AbortSignal | undefined;
  readonly #waitUntil: WaitUntil | undefined;
  readonly #timeoutMs: number;
  readonly #startedAt: Stamp;
  readonly #waker = new Waker();

  #token: string;
  #turn: Turn | undefined;
  #watch: Watch | undefined;
  /** A hint that will be followed soon. */
  #heard: Disposable | undefined;
  /** Whether a hint was for us, and how many of those that we followed came too late. */
  #isHinted = false;
  #races = 0;
  #won = false;
  /** A ticket of ours, or a grant that we do not want, may be in the storage. */
  #mayHaveLeft = false;
  /** Requests that we do not wait for any more, and the storage may still apply. */
  readonly #abandoned = new Set<Promise<void>>();
  /** Those of them that the storage is through with: forgotten when the next one is sent. */
  #settled: Promise<void>[] = [];
  /** Before our ticket was last asked for, and for how long. */
  #ticket: { readonly askedAt: Stamp; readonly ms: number } | undefined;
  #refused: Held | Full | undefined;
  #fault: unknown;
  #lastTookMs = 0;

  constructor(settings: Settings, options: AcquireOptions) {
    this.#settings = settings;
    this.#clock = settings.clock;
    this.#signal = options.signal;
    this.#waitUntil = options.waitUntil ?? settings.waitUntil;
    this.#timeoutMs = options.timeoutMs ?? Infinity;
    this.#startedAt = this.#clock.read();
    this.#token = settings.entropy.uuid();
  }

  /** Asks until it is granted. */
  async wait(): Promise<Holding> {
    const { storage, fair } = this.#settings;
    const queued = fair || (storage.wakesTickets === true && storage.watch !== undefined);
    let faults = 0;
    for (let tries = 0;; tries++) {
      await this.#passGate();
      this.#waker.clear();
      // A hint that comes from now on is for the next request.
      const wasHinted = this.#isHinted;
      this.#isHinted = false;
      this.#heard?.[dispose]();
      this.#heard = undefined;
      let sleepMs: number;
      try {
        const answer = await this.#ask(queued);
        if (answer instanceof Holding) return answer;
        if (!answer) continue;
        faults = 0;
        this.#contended(answer);
        if (wasHinted) this.#races++;
        this.#watch ??= storage.watch?.(this.#settings.name, (next) => {
          if (next === undefined) this.#waker.wake();
          else if (next === waiterMark(this.#token)) this.#hear();
        }, waiterMark(this.#token));
        sleepMs = this.#sleepMs(answer.retryAfterMs, tries, queued);
      } catch (error) {
        if (!isTransient(error)) throw error;
        this.#fault = error;
        sleepMs = backoffMs(
          faults++,
          { min: RETRY_MS.min, max: storage.pollMs.max },
          this.#random(),
        );
      }
      await this.#sleep(sleepMs);
    }
  }

  /** Asks once; only a storage that fails is asked again. */
  async once(): Promise<Tried> {
    const { name, permits, capacity, gate, storage, onUnavailable } = this.#settings;
    const now = this.#clock.read();
    const blockedMs = gate ? Gate.of(storage).blockedByHoldersMs(name, permits, capacity, now) : 0;
    if (blockedMs > 0) {
      const retryAfterMs = Math.ceil(blockedMs);
      this.#contended({ type: "held", retryAfterMs, ahead: 0 });
      return { reason: "held", retryAfterMs };
    }
    try {
      const answer = await insist(this.#settings, () => this.#askOrFail(), this.#signal);
      if (answer instanceof Holding) return { holding: answer };
      this.#contended(answer);
      return { reason: "held", retryAfterMs: answer.retryAfterMs };
    } catch (error) {
      if (onUnavailable === "throw" || !isTransient(error)) throw error;
      emit(this.#settings.onEvent, { type: "unavailable", name, error });
      return { reason: "unavailable", retryAfterMs: storage.pollMs.max };
    }
  }

  /** An answer that needs a new token is a fault, for who does not wait. */
  async #askOrFail(): Promise<Holding | Held | Full> {
    const answer = await this.#ask(false);
    if (!answer) throw this.#fault;
    return answer;
  }

  /** Whether others were faster so often that from now on they have to wait for us, also in an unfair lock. */
  get #isPassedOver(): boolean {
    return this.#races >= MAX_RACES;
  }

  /** How long to keep our place; one that others have to wait for ends soon if we do not come for it. */
  #queueMs(): number {
    const { queueMs, fair, ttlMs } = this.#settings;
    return this.#isPassedOver && !fair ? Math.min(queueMs, PASSED_OVER_MS, ttlMs) : queueMs;
  }

  /** It is our turn. Where others were faster the last time, asking at once would most likely be in vain. */
  #hear(): void {
    if (!this.#watch) return; // The attempt is over.
    this.#isHinted = true;
    if (this.#races === 0 || this.#isPassedOver) return this.#waker.wake();
    const ms = backoffMs(this.#races - 1, RACE_MS, this.#random());
    this.#heard ??= this.#clock.setTimer(ms, () => {
      this.#heard = undefined;
      this.#waker.wake();
    }, { keepAlive: false });
  }

  /** Leaves the line and the storage as if we had never been there, unless we won. */
  end(): void {
    this.#watch?.[dispose]();
    this.#watch = undefined;
    this.#heard?.[dispose]();
    if (this.#won) return;
    this.#turn?.leave();
    if (this.#mayHaveLeft) this.#compensate();
  }

  /**
   * Sends one acquire.
   *
   * @returns a holding, a refusal, or nothing where the attempt has to go on with a new token
   */
  async #ask(queued: boolean): Promise<Holding | Held | Full | undefined> {
    const settings = this.#settings;
    const { ttlMs, permits, capacity, label } = settings;
    const queueMs = queued ? this.#queueMs() : 0;
    // An abort between two requests finds no listener.
    this.#signal?.throwIfAborted();
    for (const settled of this.#settled.splice(0)) this.#abandoned.delete(settled);
    const sentAt = this.#clock.read();
    const askedMs = ttlToAskMs(ttlMs, undefined, settings, sentAt);
    const command: AcquireCommand = {
      type: "acquire",
      token: this.#token,
      permits,
      capacity,
      ttlMs: askedMs,
      label,
      queueMs,
      fair: settings.fair || this.#isPassedOver,
      presumedDead: [],
    };
    const request = sendCommand(settings, "acquire lock", command, {
      limitMs: Math.min(settings.requestTimeoutMs, this.#leftMs(sentAt)),
      signal: this.#signal,
    });
    const { settled } = request;
    this.#abandoned.add(settled);
    settled.then(() => this.#settled.push(settled));
    // Until it is answered, nobody knows what the request has left in the storage.
    const mayHaveLeft = this.#mayHaveLeft;
    this.#mayHaveLeft = true;
    if (queueMs > 0) this.#ticket = { askedAt: sentAt, ms: queueMs };
    const outcome = await request.result;
    this.#abandoned.delete(settled);
    this.#lastTookMs = this.#clock.read().monotonicMs - sentAt.monotonicMs;
    switch (outcome.type) {
      case "granted":
        return this.#accept(outcome, sentAt, askedMs);
      case "held":
        this.#mayHaveLeft = mayHaveLeft || queueMs > 0;
        return outcome;
      case "full":
        this.#mayHaveLeft = mayHaveLeft;
        return outcome;
      case "spent":
        this.#startOver("its token was released or evicted meanwhile");
        return undefined;
      case "capacity-mismatch":
        this.#mayHaveLeft = mayHaveLeft;
        throw new HoldfastError(
          "capacity-mismatch",
          `Cannot acquire lock "${settings.name}" with a capacity of ${capacity} as its holders use another: ` +
            `current value is ${outcome.capacity}`,
        );
    }
  }

  /** A grant counts if it came in time and is still wanted. */
  #accept(grant: Granted, sentAt: Stamp, ttlMs: number): Holding | undefined {
    this.#signal?.throwIfAborted();
    const now = this.#clock.read();
    if (leftMs(granted(sentAt, ttlMs), this.#settings, now) <= 0) {
      this.#compensate();
      this.#startOver(`the answer came after the lease was over: current value is ${ttlMs} ms`);
      return undefined;
    }
    this.#won = true;
    const { name, permits, capacity, gate, storage } = this.#settings;
    if (gate) this.#turn ??= Gate.of(storage).join(name, permits, capacity, () => {});
    return new Holding(this.#settings, {
      token: this.#token,
      fence: grant.fence,
      sentAt,
      ttlMs,
      waitedMs: now.monotonicMs - this.#startedAt.monotonicMs,
      turn: this.#turn,
      waitUntil: this.#waitUntil,
    });
  }

  /** The old token is over; whatever was sent under it can grant nothing that we would use. */
  #startOver(why: string): void {
    const message = `Cannot acquire lock "${this.#settings.name}" as ${why}`;
    this.#fault = new StorageError(message, { transient: true });
    this.#token = this.#settings.entropy.uuid();
    this.#watch?.[dispose]();
    this.#watch = undefined;
    this.#ticket = undefined;
    this.#races = 0;
    this.#isHinted = false;
    this.#mayHaveLeft = false;
    this.#abandoned.clear();
  }

  /**
   * Waits until nobody of this process is in front. Who has a ticket refreshes it all the same, and follows a
   * hint: a lease that another caller of this process resumed does not cost the place in the queue.
   */
  async #passGate(): Promise<void> {
    const { gate, storage, name, permits, capacity, requestTimeoutMs } = this.#settings;
    if (!gate) return;
    this.#turn ??= Gate.of(storage).join(name, permits, capacity, () => this.#waker.wake());
    for (;;) {
      const now = this.#clock.read();
      const blockedMs = this.#turn.blockedMs(now);
      const dueMs = this.#refreshInMs(now);
      if (this.#isHinted || Math.min(blockedMs, dueMs) <= 0) return this.#promise(requestTimeoutMs);
      this.#contended({ type: "held", retryAfterMs: Math.ceil(blockedMs), ahead: 0 });
      this.#waker.clear();
      await this.#sleep(Math.min(blockedMs, dueMs));
    }
  }

  /** When to ask for our ticket again, in milliseconds from now. */
  #refreshInMs(now: Stamp): number {
    if (!this.#ticket) return Infinity;
    return this.#ticket.ms * REFRESH - elapsedForHolderMs(this.#ticket.askedAt, now);
  }

  /** Tells those behind in the gate when to pass us. */
  #promise(ms: number): void {
    const patienceMs = Math.max(this.#settings.storage.pollMs.max, GATE_PATIENCE_MS);
    this.#turn?.promise({ since: this.#clock.read(), ms: ms + patienceMs });
  }

  #contended(refused: Held | Full): void {
    if (!this.#refused) {
      const { name, onEvent } = this.#settings;
      const ahead = refused.type === "held" ? refused.ahead : 0;
      emit(onEvent, { type: "contended", name, retryAfterMs: refused.retryAfterMs, ahead });
    }
    this.#refused = refused;
  }

  /**
   * Until something expires; no longer than our own ticket, or a lost hint, allows. Nobody gives a hint for
   * a lease that ran out, and the one that did may be newer than what we know of: so never beyond a ttl.
   */
  #sleepMs(retryAfterMs: number, tries: number, queued: boolean): number {
    const { queueMs, ttlMs, storage: { pollMs } } = this.#settings;
    const untilExpiryMs = retryAfterMs + this.#random() * pollMs.min;
    const dueMs = Math.max(this.#refreshInMs(this.#clock.read()), 0);
    const refreshMs = Math.min(dueMs, queueMs * REFRESH);
    const ms = this.#watch?.live
      ? Math.max(pollMs.max, Math.min(refreshMs, ttlMs))
      : backoffMs(tries, pollMs, this.#random());
    return Math.min(untilExpiryMs, queued ? Math.min(ms, refreshMs) : ms);
  }

  /** Sleeps, at most until the last moment at which one more try makes sense. */
  async #sleep(ms: number): Promise<void> {
    const leftMs = this.#leftMs(this.#clock.read());
    const lastTryMs = Math.min(2 * this.#lastTookMs + 5, leftMs / 2);
    const isLast = leftMs - ms < lastTryMs;
    const enoughMs = isLast && leftMs > 2 * lastTryMs ? leftMs - lastTryMs : Math.min(ms, leftMs);
    this.#promise(enoughMs);
    await this.#waker.wait(this.#clock, enoughMs, this.#signal);
    if (this.#leftMs(this.#clock.read()) <= 0) throw this.#timeout();
  }

  #leftMs(now: Stamp): number {
    return this.#timeoutMs - (now.monotonicMs - this.#startedAt.monotonicMs);
  }

  #timeout(): unknown {
    if (!this.#refused && this.#fault) return this.#fault;
    return new LockTimeoutError(
      `Cannot acquire lock "${this.#settings.name}" as others hold it: ` +
        `current value is ${this.#timeoutMs} ms of waiting`,
    );
  }

  #random(): number {
    return this.#settings.entropy.random();
  }

  /** The compensating release: at once, and again when the storage is through with what we abandoned. */
  #compensate(): void {
    const token = this.#token;
    const abandoned = [...this.#abandoned];
    const work = releaseQuietly(this.#settings, token).then(async () => {
      if (abandoned.length === 0) return;
      await within(this.#clock, this.#settings.ttlMs, Promise.all(abandoned));
      await releaseQuietly(this.#settings, token);
    });
    this.#waitUntil?.(work);
  }
}

/**
 * Releases a token that may have been granted and is not wanted: nothing that was sent under it can grant any
 * more. The ttl frees what this could not.
 */
export async function releaseQuietly(settings: Settings, token: string): Promise<void> {
  const command: ReleaseCommand = { type: "release", token, keepMs: 0, spentMs: settings.ttlMs };
  await sendCommand(settings, "release lock", command, { keepAlive: false }).result.catch(() => {});
}

/** Waits for work, but not for ever. */
async function within(clock: Clock, ms: number, work: Promise<unknown>): Promise<void> {
  const done = new AbortController();
  const patience = sleep(clock, ms, { keepAlive: false, signal: done.signal }).catch(() => {});
  await Promise.race([work, patience]);
  done.abort();
}

/** A sleep that others can end, also before it began. */
class Waker {
  #woken = false;
  #end: (() => void) | undefined;

  wake(): void {
    this.#woken = true;
    this.#end?.();
  }

  clear(): void {
    this.#woken = false;
  }

  /** Waits for `ms`, or until woken. Rejects with the signal's reason. */
  wait(clock: Clock, ms: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      if (this.#woken) return resolve();
      const finish = (settle: () => void) => (): void => {
        timer[dispose]();
        signal?.removeEventListener("abort", onAbort);
        this.#end = undefined;
        settle();
      };
      const onAbort = finish(() => reject(signal!.reason));
      const timer = clock.setTimer(ms, finish(resolve), { keepAlive: true });
      this.#end = finish(resolve);
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }
}
