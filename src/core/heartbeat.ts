/**
 * One renewal loop per storage for all the leases of this process: one timer, and renewals that fall due
 * together go together where the storage can take many at once.
 *
 * @module
 */
import type { Clock, Stamp } from "./clock.ts";
import { dispose } from "./disposable.ts";
import { StorageError } from "./errors.ts";
import type { Refused, RenewCommand, Renewed } from "./record.ts";
import { type Request, sendRequest } from "./request.ts";
import type { LeaseStorage } from "./storage.ts";

/** What the loop needs of a lease. */
export interface Beating {
  /** The lock. */
  readonly name: string;
  /** From one renewal to the next, in milliseconds. */
  readonly renewEveryMs: number;
  /** The longest that one request may take, in milliseconds. */
  readonly requestTimeoutMs: number;
  /** Declares the lease lost if its time is over; whether it is. */
  loseIfOver(now: Stamp): boolean;
  /** When it is over unless renewed, in milliseconds from now. */
  leftMs(now: Stamp): number;
  /** When to renew it, in milliseconds from now; `Infinity` while a renewal is under way. */
  renewInMs(now: Stamp): number;
  /** What to ask for. */
  renewal(now: Stamp): RenewCommand;
  /** A renewal is under way; calling `abort` gives it up. Has to {@linkcode Heartbeat.touch} once it settled. */
  renewing(settled: Promise<void>, abort: (reason: unknown) => void): void;
  /** A renewal was answered, or failed. */
  answered(
    sentAt: Stamp,
    command: RenewCommand,
    answer: { readonly outcome: Renewed | Refused } | { readonly error: unknown },
  ): void;
}

/** Renewals due within this part of their interval go along with one that is due now. */
const COALESCE = 0.1;

/** Leases per request. */
const BATCH = 256;

/** Requests under way at once. */
const MAX_IN_FLIGHT = 64;

/** When to look again while no more requests may go out. */
const CROWDED_MS = 20;

/** The loop looks at the clocks at least this often, because a suspended machine's timers are late. */
const LOOK_EVERY_MS = 250;

const loops = new WeakMap<LeaseStorage, WeakMap<Clock, Heartbeat>>();

/** The loop. */
export class Heartbeat {
  readonly #storage: LeaseStorage;
  readonly #clock: Clock;
  readonly #leases = new Set<Beating>();
  #timer: Disposable | undefined;
  #timerAt: number | undefined;
  #inFlight = 0;

  /** A loop of its own; {@linkcode Heartbeat.of} gives the shared one. */
  constructor(storage: LeaseStorage, clock: Clock) {
    this.#storage = storage;
    this.#clock = clock;
  }

  /** The loop that all leases on a storage share. */
  static of(storage: LeaseStorage, clock: Clock): Heartbeat {
    let ofStorage = loops.get(storage);
    if (!ofStorage) loops.set(storage, ofStorage = new WeakMap());
    let loop = ofStorage.get(clock);
    if (!loop) ofStorage.set(clock, loop = new Heartbeat(storage, clock));
    return loop;
  }

  /** Begins to watch over a lease. */
  add(lease: Beating): void {
    this.#leases.add(lease);
    const now = this.#clock.read();
    this.#arm(nextEventMs(lease, now), now);
  }

  /** Looks anew when a lease needs something. */
  touch(lease: Beating): void {
    if (this.#leases.has(lease)) this.add(lease);
  }

  /** Stops; no timer is left when nothing is held. */
  remove(lease: Beating): void {
    this.#leases.delete(lease);
    if (this.#leases.size === 0) this.#disarm();
  }

  #arm(inMs: number, now: Stamp): void {
    const ms = Math.min(Math.max(inMs, 1), LOOK_EVERY_MS);
    const at = now.monotonicMs + ms;
    if (this.#timerAt !== undefined && this.#timerAt <= at) return;
    this.#disarm();
    this.#timerAt = at;
    this.#timer = this.#clock.setTimer(ms, () => this.#look(), { keepAlive: false });
  }

  #disarm(): void {
    this.#timer?.[dispose]();
    this.#timer = this.#timerAt = undefined;
  }

  #look(): void {
    this.#disarm();
    const now = this.#clock.read();
    const soon: Beating[] = [];
    let due = false;
    for (const lease of this.#leases) {
      if (lease.loseIfOver(now)) continue;
      const inMs = lease.renewInMs(now);
      if (inMs <= lease.renewEveryMs * COALESCE) soon.push(lease);
      if (inMs <= 0) due = true;
    }
    if (due) this.#renew(soon, now);
    const renewInMs = this.#inFlight < MAX_IN_FLIGHT ? 0 : CROWDED_MS;
    let nextMs = Infinity;
    for (const lease of this.#leases) nextMs = Math.min(nextMs, nextEventMs(lease, now, renewInMs));
    if (this.#leases.size > 0) this.#arm(nextMs, now);
  }

  #renew(leases: readonly Beating[], now: Stamp): void {
    const size = this.#storage.executeAll && leases.length > 1 ? BATCH : 1;
    for (let i = 0; i < leases.length && this.#inFlight < MAX_IN_FLIGHT; i += size) {
      const batch = leases.slice(i, i + size);
      if (size === 1) this.#renewOne(batch[0]!, now);
      else this.#renewMany(batch, now);
    }
  }

  #renewOne(lease: Beating, sentAt: Stamp): void {
    const command = lease.renewal(sentAt);
    const request = this.#send(
      `renew lease "${lease.name}"`,
      Math.min(lease.requestTimeoutMs, lease.leftMs(sentAt)),
      (signal) => this.#storage.execute(lease.name, command, { signal }),
    );
    const done = request.result.then(
      (outcome) => lease.answered(sentAt, command, { outcome }),
      (error) => lease.answered(sentAt, command, { error }),
    );
    lease.renewing(done, request.abort);
  }

  /** Many leases in one request, which no single one of them can give up. */
  #renewMany(batch: readonly Beating[], sentAt: Stamp): void {
    const entries = batch.map((lease) => ({ name: lease.name, command: lease.renewal(sentAt) }));
    const request = this.#send(
      `renew ${batch.length} leases`,
      Math.min(...batch.map((lease) => lease.requestTimeoutMs)),
      (signal) => this.#storage.executeAll!(entries, { signal }),
    );
    const done = request.result.then(
      (results) => {
        batch.forEach((lease, i) => {
          const result = results[i] ?? { status: "rejected", reason: noAnswer(lease) };
          const answer = result.status === "fulfilled"
            ? { outcome: result.value as Renewed | Refused }
            : { error: result.reason };
          lease.answered(sentAt, entries[i]!.command, answer);
        });
      },
      (error) => {
        batch.forEach((lease, i) => lease.answered(sentAt, entries[i]!.command, { error }));
      },
    );
    for (const lease of batch) lease.renewing(done, () => {});
  }

  #send<T>(what: string, limitMs: number, send: (signal: AbortSignal) => Promise<T>): Request<T> {
    this.#inFlight++;
    const clock = this.#clock;
    const request = sendRequest({ clock, limitMs, what, keepAlive: false }, send);
    const done = (): void => void this.#inFlight--;
    request.result.then(done, done);
    return request;
  }
}

function noAnswer(lease: Beating): StorageError {
  return new StorageError(`Cannot renew lease "${lease.name}" as the storage left it out`, {
    transient: true,
  });
}

/** When a lease needs something: its loss at its deadline, its renewal no sooner than one can be sent. */
function nextEventMs(lease: Beating, now: Stamp, renewInMs = 0): number {
  return Math.min(lease.leftMs(now), Math.max(lease.renewInMs(now), renewInMs));
}
