/**
 * What holders believe, and whether they are right to: an account of every lease that is independent of the
 * library's own, kept from what went over the wire.
 *
 * @module
 */
import { elapsedForHolderMs, type Stamp } from "../../core/clock.ts";
import type { LockEvent } from "../../core/events.ts";
import type { Baton, Lease } from "../../core/lease.ts";
import type { Command, Outcome } from "../../core/record.ts";
import { isLive, type Ledger } from "./ledger.ts";
import type { Process } from "./process.ts";
import type { World } from "./world.ts";

/** A promise of the storage, from before it was asked for. */
interface Promised {
  readonly since: Stamp;
  readonly ms: number;
  /** Whether the library had given the request up before the answer came. */
  readonly isLate: boolean;
}

/** A lease, as far as its holder may trust it. */
interface Trust {
  readonly process: Process;
  readonly name: string;
  readonly token: string;
  readonly fence: number;
  readonly permits: number;
  readonly capacity: number;
  readonly askedAtMs: number;
  readonly maxHold: Promised | undefined;
  promises: Promised[];
  /** The storage said that the holding is no more. */
  refused: boolean;
  lease: Lease | undefined;
  signal: AbortSignal | undefined;
  /** When its time was first found over. */
  overAtMs: number | undefined;
}

/** A request of the library that was not answered yet. */
interface Asked {
  readonly process: Process;
  readonly name: string;
  readonly command: Command;
  readonly at: Stamp;
  readonly atMs: number;
  /** How long the library waits for the answer, in milliseconds. */
  readonly limitMs: number;
}

/** What the account needs to know of the run. */
export interface TrustOptions {
  /** The longest that a lease may be held, in milliseconds; 0 for no limit. */
  readonly maxHoldMs: number;
  /** The longest that the library waits for an answer, in milliseconds. */
  readonly requestTimeoutMs: number;
  /** The instant by the storage's clock, in microseconds; the latest of the clients' where it has none. */
  readonly latestUs: () => number;
  /** Told of each token that somebody asks with. */
  readonly onAcquire: (token: string) => void;
  /** Told of each lease that is lost. */
  readonly onLoss: (what: string) => void;
  /** Whether something happened since an instant that takes a run out of the bounds of G5. */
  readonly isOutside: (process: Process, sinceMs: number) => boolean;
}

/** How late a timer may be, in milliseconds: its own lag, and a deadline within a fraction of one. */
const TIMER_MS = 3;

/** After its clock was stepped, a holder finds out when it next looks. */
const LOOK_MS = 260;

/** Float noise. */
const EPSILON_MS = 1e-3;

/** All leases that are trusted. */
export class Trusts {
  /** The longest span that was asked for, in milliseconds. */
  longestMs = 0;
  readonly #world: World;
  readonly #ledger: Ledger;
  readonly #options: TrustOptions;
  readonly #open = new Set<Trust>();
  /** Grants that the library knows of, by process, name and fence. */
  readonly #answered = new Map<string, { readonly asked: Asked; readonly token: string }>();
  /** Tokens whose release has settled, by process. */
  readonly #released = new Set<string>();
  /** Batons that somebody took. */
  readonly #taken = new Set<string>();
  /** Leases that were given back. */
  readonly #clean: { readonly lease: Lease; readonly signal: AbortSignal }[] = [];

  constructor(world: World, ledger: Ledger, options: TrustOptions) {
    this.#world = world;
    this.#ledger = ledger;
    this.#options = options;
  }

  /** The library asks the storage. */
  asks(process: Process, name: string, command: Command): Asked {
    if (command.type === "release") this.#close(name, (t) => t.token === command.token);
    this.sends(process, command);
    if (command.type === "acquire") this.#options.onAcquire(command.token);
    if ("ttlMs" in command) this.longestMs = Math.max(this.longestMs, command.ttlMs);
    if ("keepMs" in command) this.longestMs = Math.max(this.longestMs, command.keepMs);
    const at = process.clock.read();
    const trust = command.type === "renew"
      ? this.#find(name, command.token, command.fence)
      : undefined;
    const { requestTimeoutMs } = this.#options;
    const limitMs = trust ? Math.min(requestTimeoutMs, leftInTimeMs(trust, at)) : requestTimeoutMs;
    return { process, name, command, at, atMs: this.#world.nowMs, limitMs };
  }

  /** The library sends a request to the product. */
  sends(process: Process, command: Command): void {
    if (!("token" in command) || process.isDead) return;
    if (this.#released.has(`${process.id} ${command.token}`)) {
      this.#world.fail("G7", `${process.id} sends a ${command.type} after its release had settled`);
    }
  }

  /** The library has its answer. */
  answers(asked: Asked, outcome: Outcome): void {
    const { process, name, command, at, limitMs } = asked;
    if (process.isDead) return;
    if (outcome.type === "granted") {
      const token = command.type === "adopt"
        ? command.newToken
        : (command as { token: string }).token;
      const { fence } = outcome;
      if (!this.#ledger.shareOf(name, token, fence)) {
        this.#world.fail("G1", `${process.id} is told of a grant of ${name} that never was`);
      }
      this.#answered.set(`${process.id} ${name} ${fence}`, { asked, token });
    } else if (outcome.type === "renewed" && command.type === "renew") {
      const trust = this.#find(name, command.token, command.fence);
      const now = process.clock.read();
      const isLate = now.monotonicMs - at.monotonicMs >= limitMs ||
        trust !== undefined && leftInTimeMs(trust, now) <= 0;
      trust?.promises.push({ since: at, ms: trustedMs(command.ttlMs), isLate });
    } else if (outcome.type === "refused" && command.type === "renew") {
      const trust = this.#find(name, command.token, command.fence);
      if (trust) trust.refused = true;
      this.#checkRefusal(asked, command, outcome.type);
    } else if (outcome.type === "held" && command.type === "acquire") {
      this.#checkRefusal(asked, command, outcome.type);
    }
  }

  /** Something happened to a lock in a process. */
  happened(process: Process, event: LockEvent): void {
    if (process.isDead) return;
    if (event.type === "acquired") this.#begin(process, event.name, event.fence);
    if (event.type === "detached" || event.type === "abandoned") {
      this.#close(event.name, (t) => t.process === process && t.fence === event.fence);
    }
    if (event.type === "lost") {
      for (const trust of this.#open) {
        if (trust.process !== process || trust.name !== event.name || trust.fence !== event.fence) {
          continue;
        }
        this.#checkLoss(trust, event.reason);
        this.#open.delete(trust);
      }
    }
  }

  /** A process got the handle of a lease. `signal`: whether it looks at its signal. */
  handle(process: Process, lease: Lease, signal: boolean): void {
    const trust = this.#find(lease.name, lease.token, lease.fencingToken);
    if (!trust || trust.process !== process) return;
    trust.lease = lease;
    if (signal) trust.signal = lease.signal;
  }

  /** A baton was taken; whoever comes after must be refused. */
  resumed({ name, token, fencingToken }: Baton): void {
    const key = `${name} ${token} ${fencingToken}`;
    this.#world.count("batons taken");
    if (this.#taken.has(key)) {
      this.#world.fail("G3", `${name} at ${fencingToken} was taken over twice`);
    }
    this.#taken.add(key);
  }

  /** A release of the library has settled. */
  released(process: Process, lease: Lease, signal: AbortSignal | undefined): void {
    if (process.isDead) return;
    this.#released.add(`${process.id} ${lease.token}`);
    if (signal && lease.status === "released") this.#clean.push({ lease, signal });
  }

  /** Checks all trusted leases at this instant. */
  check(): void {
    for (const trust of this.#open) {
      const leftNowMs = leftMs(trust, trust.process.clock.read());
      if (trust.process.isDead) this.#open.delete(trust);
      else if (leftNowMs > EPSILON_MS) this.#checkHeld(trust);
      else if (leftNowMs < -EPSILON_MS) this.#checkOver(trust);
    }
    this.#checkPermits();
  }

  /** No signal of a lease that was given back may ever abort. */
  checkSignals(): void {
    for (const { lease, signal } of this.#clean) {
      if (signal.aborted) {
        this.#world.fail("G6", `the signal of ${lease.fencingToken} aborted after a clean release`);
      }
    }
  }

  #begin(process: Process, name: string, fence: number): void {
    const answered = this.#answered.get(`${process.id} ${name} ${fence}`);
    if (!answered) {
      return this.#world.fail(
        "G1",
        `${process.id} acquired ${name} at ${fence}, which nobody granted`,
      );
    }
    const { asked: { at, atMs, command }, token } = answered;
    const { maxHoldMs } = this.#options;
    const { permits, capacity } = this.#ledger.shareOf(name, token, fence)!;
    this.#open.add({
      process,
      name,
      token,
      fence,
      permits,
      capacity,
      askedAtMs: atMs,
      maxHold: maxHoldMs > 0 ? { since: at, ms: maxHoldMs, isLate: false } : undefined,
      promises: [{
        since: at,
        ms: trustedMs((command as { ttlMs: number }).ttlMs),
        isLate: false,
      }],
      refused: false,
      lease: undefined,
      signal: undefined,
      overAtMs: undefined,
    });
    this.#world.count("leases");
  }

  /** G5: whoever trusts its lease is in the record, and live by every clock that could judge it. */
  #checkHeld(trust: Trust): void {
    // A wall clock that was set right in time has ended nothing.
    trust.overAtMs = undefined;
    const { process, name, token, fence, askedAtMs } = trust;
    const holder = this.#ledger.holder(name, token, fence);
    if (holder && isLive(holder, this.#options.latestUs())) return;
    const end = this.#ledger.endOf(name, token, fence);
    if (end === "evicted" || trust.refused) return this.#drop(trust);
    if (this.#options.isOutside(process, askedAtMs) || end === "lost with record") {
      this.#world.count("outside G5");
      return this.#drop(trust);
    }
    this.#world.fail(
      "G5",
      `${process.id} trusts ${name} at ${fence}, which is ${end ?? "expired"}`,
    );
  }

  /**
   * G6: a lease whose time is over is not held, and its signal aborts by itself. Asking declares the loss, so
   * a lease with a signal is asked only after its timer had its chance.
   */
  #checkOver(trust: Trust): void {
    const { process, name, fence, signal, lease } = trust;
    trust.overAtMs ??= this.#world.nowMs;
    if (!process.isRunning) return;
    const sinceMs = Math.max(trust.overAtMs, process.thawedAtMs);
    const lateMs = this.#world.nowMs - sinceMs;
    if (signal && !signal.aborted) {
      if (lateMs <= this.#graceMs(process, sinceMs)) return;
      this.#world.fail(
        "G6",
        `${process.id} is not told that ${name} at ${fence} is over since ${lateMs} ms`,
      );
    }
    this.#world.isStirred = true;
    if (lease?.isHeld()) {
      this.#world.fail("G5", `${process.id} holds ${name} at ${fence} for too long`);
    }
    this.#open.delete(trust);
  }

  #graceMs({ host }: Process, sinceMs: number): number {
    const wasStepped = Math.max(host.steppedAtMs, host.suspendedAtMs) > sinceMs - LOOK_MS;
    return wasStepped ? LOOK_MS : TIMER_MS;
  }

  /** Nobody may end its lease for no reason. */
  #checkLoss(trust: Trust, reason: string): void {
    const { process, name, token, fence } = trust;
    const leftNowMs = leftInTimeMs(trust, process.clock.read());
    this.#world.count(`lost ${reason}`);
    const end = this.#ledger.endOf(name, token, fence);
    this.#options.onLoss(`${process.id} loses ${name} as ${reason}`);
    const isRight = reason === "evicted" || reason === "superseded"
      ? end !== undefined
      : trust.refused || leftNowMs <= EPSILON_MS || process.host.steppedAtMs >= trust.askedAtMs;
    if (!isRight) {
      this.#world.fail(
        "G11",
        `${process.id} loses ${name} at ${fence} as ${reason} with ${leftNowMs} ms left`,
      );
    }
  }

  /** G11: a token that holds since before it asked is not refused; a renewal is of one holding of it. */
  #checkRefusal(
    { process, name, atMs }: Asked,
    command: { readonly token: string; readonly fence?: number },
    what: string,
  ): void {
    const holding = this.#ledger.holdingOf(name, command.token);
    if (!holding || holding.changedAtMs >= atMs) return;
    if ((command.fence ?? holding.holder.fence) !== holding.holder.fence) return;
    if (!isLive(holding.holder, this.#options.latestUs())) return;
    this.#world.fail("G11", `${process.id} is told that ${name} is ${what}, and holds it itself`);
  }

  /** No more permits are trusted at once than there are. */
  #checkPermits(): void {
    if (this.#open.size < 2) return;
    const taken = new Map<string, number>();
    for (const trust of this.#open) {
      if (leftMs(trust, trust.process.clock.read()) <= EPSILON_MS) continue;
      const permits = (taken.get(trust.name) ?? 0) + trust.permits;
      taken.set(trust.name, permits);
      if (permits > trust.capacity) {
        this.#world.fail(
          "G1",
          `${permits} of ${trust.capacity} permits of ${trust.name} are trusted at once`,
        );
      }
    }
  }

  #find(name: string, token: string, fence: number): Trust | undefined {
    for (const t of this.#open) {
      if (t.name === name && t.token === token && t.fence === fence) return t;
    }
    return undefined;
  }

  #close(name: string, isMeant: (trust: Trust) => boolean): void {
    for (const trust of this.#open) {
      if (trust.name === name && isMeant(trust)) this.#open.delete(trust);
    }
  }

  /** What its holder believes is known to be wrong, and not its fault. */
  #drop(trust: Trust): void {
    this.#open.delete(trust);
  }
}

/** For how long the library trusts its lease: it does not count what it did not wait for. */
function leftInTimeMs(trust: Trust, now: Stamp): number {
  return leftMs({ ...trust, promises: trust.promises.filter((p) => !p.isLate) }, now);
}

/** DESIGN.md section 4, once more. */
function trustedMs(ttlMs: number): number {
  return ttlMs * 0.99 - 2;
}

function leftMs(trust: Trust, now: Stamp): number {
  let left = -Infinity;
  for (const p of trust.promises) left = Math.max(left, p.ms - elapsedForHolderMs(p.since, now));
  const { maxHold } = trust;
  return maxHold ? Math.min(left, maxHold.ms - elapsedForHolderMs(maxHold.since, now)) : left;
}
