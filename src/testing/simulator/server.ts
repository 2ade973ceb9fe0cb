/**
 * The simulated product: records by name, with versions, a clock of its own, hints, and a guarded resource
 * next to them.
 *
 * @module
 */
import { decodeRecord, decodeStored, encodeRecord, lastExpiryMs } from "../../core/codec.ts";
import {
  type Command,
  EMPTY_RECORD,
  type LeaseRecord,
  type OutcomeOf,
  step,
} from "../../core/record.ts";
import type { Versioned, Write, Written } from "../../core/register.ts";
import { waiterMark } from "../../core/storage.ts";
import { isLive, type Ledger } from "./ledger.ts";
import type { Destination, Network } from "./network.ts";
import type { Process } from "./process.ts";
import type { Random } from "./random.ts";
import type { World } from "./world.ts";

/** What is stored under a name. */
interface Stored {
  readonly text: string;
  readonly version: number;
  readonly retainUntilMs: number;
  /** The text, decoded once, so that the ledger sees the same object; none if it is not ours. */
  readonly record: LeaseRecord | undefined;
}

/** One who wants hints. */
export interface Watcher {
  readonly process: Process;
  readonly wake: (next?: string) => void;
  /** Only hints for this waiter; all if absent. */
  readonly mark?: string | undefined;
  /** Told when the connection is gone. */
  readonly dropped: () => void;
}

/** How the product is. */
export interface ServerOptions {
  /** Its clock, in milliseconds since the epoch. */
  readonly clockMs: () => number;
  /** Whether it says the time. */
  readonly says: "time" | "nothing";
  /** How long a record outlives its last expiry where the script decides, in milliseconds. */
  readonly retentionMs: number;
  /** Whether an absent value always has the same version. */
  readonly absent: boolean;
  /** Who gets hints: who waits with a ticket and could go on, or all when something is gone. */
  readonly hints: "tickets" | "changes";
}

/** A write to the guarded resource. */
export interface GuardedWrite {
  /** The lock. */
  readonly name: string;
  /** The holding's token. */
  readonly token: string;
  /** The holding's fencing token. */
  readonly fence: number;
  /** Makes a resend harmless. */
  readonly nonce: string;
  /** The value that was read; one more is written. */
  readonly from: number;
}

/** The product. */
export class Server implements Destination {
  /** Whether it answers. */
  isUp = true;
  /** How far its clock is off, in milliseconds. */
  offsetMs = 0;
  /** When its clock was last stepped forward, in true time. */
  steppedForwardAtMs = -Infinity;

  readonly #world: World;
  readonly #ledger: Ledger;
  readonly #network: Network;
  readonly #random: Random;
  readonly #options: ServerOptions;
  readonly #records = new Map<string, Stored>();
  /** The versions of absent values, where they differ. */
  readonly #absences = new Map<string, number>();
  readonly #watchers = new Map<string, Set<Watcher>>();
  readonly #resources = new Map<string, number>();
  readonly #nonces = new Map<string, number | undefined>();
  #version = 0;
  #upAtMs = 0;

  constructor(
    world: World,
    ledger: Ledger,
    network: Network,
    random: Random,
    options: ServerOptions,
  ) {
    this.#world = world;
    this.#ledger = ledger;
    this.#network = network;
    this.#random = random;
    this.#options = options;
  }

  /** How many of some processes watch. */
  watchers(isMeant: (process: Process) => boolean): number {
    let count = 0;
    for (const set of this.#watchers.values()) {
      for (const { process } of set) if (isMeant(process)) count++;
    }
    return count;
  }

  /** The server's clock, in microseconds since the epoch. */
  nowUs(): number {
    return Math.floor((this.#options.clockMs() + this.offsetMs) * 1000);
  }

  /** The script: runs the record machine in one step, by the server's clock. */
  execute<C extends Command>(name: string, command: C, by: string): OutcomeOf<C> {
    const before = this.#record(name);
    const nowUs = this.nowUs();
    const next = step(before, command, nowUs);
    if (next.record !== before) {
      const retainUntilMs = lastExpiryMs(next.record) + this.#options.retentionMs;
      const after = this.#put(name, encodeRecord(next.record), retainUntilMs)!;
      this.#ledger.changed({ name, before, after, by, command, nowUs });
      if (next.wake !== undefined) this.#wake(name, waiterMark(next.wake));
      else if (this.#options.hints === "changes") this.#wakeIfFreer(name, before, after);
    }
    this.#ledger.answered(name, before, command, next.outcome, nowUs);
    return next.outcome;
  }

  /** The register: reads a value. */
  read(name: string): Versioned<number> {
    const { text, version } = this.#stored(name) ??
      { text: null, version: this.#absences.get(name) ?? 0 };
    const versioned = { value: text, version };
    return this.#options.says === "time" ? { ...versioned, nowUs: this.nowUs() } : versioned;
  }

  /** The register: replaces a value if its version is unchanged. */
  write(
    name: string,
    next: Write,
    version: number,
    by: Process,
    command: Command,
  ): Written<number> {
    const now = this.read(name);
    if (now.version !== version) {
      return this.#random.chance(0.5) ? { ok: false } : { ok: false, current: now };
    }
    const before = this.#records.get(name)?.record ?? EMPTY_RECORD;
    if (now.value !== null && !this.#records.get(name)!.record) {
      this.#world.fail("G12", `${by.id} overwrites ${name}, which is not ours`);
    }
    const after = this.#put(name, next.value, next.retainUntilMs);
    if (!after) {
      this.#world.fail("G12", `${by.id} writes what is not a record`);
      return { ok: false };
    }
    const nowUs = this.#options.says === "time"
      ? this.nowUs()
      : Math.floor(by.host.wallMs() * 1000);
    this.#ledger.changed({ name, before, after, by: by.id, command, nowUs });
    if (next.wake !== undefined) this.#wake(name, waiterMark(next.wake));
    else if (this.#options.hints === "changes") this.#wakeIfFreer(name, before, after);
    return { ok: true, version: this.#version };
  }

  /** Subscribes a process; calling the result ends that. */
  watch(name: string, watcher: Watcher): () => void {
    let set = this.#watchers.get(name);
    if (!set) this.#watchers.set(name, set = new Set());
    set.add(watcher);
    return () => set.delete(watcher);
  }

  /** What the guarded resource is at. */
  readGuarded(name: string): number {
    return this.#resources.get(name) ?? 0;
  }

  /**
   * Adds one to the guarded resource if the holding is in the record (and live, if the server has a clock).
   *
   * @returns the new value, `undefined` if the holding is stale
   */
  writeGuarded(write: GuardedWrite, isExclusive: boolean): number | undefined {
    const { name, token, fence, nonce, from } = write;
    if (this.#nonces.has(nonce)) return this.#nonces.get(nonce);
    const holder = this.#record(name).holders.find((h) => h.token === token && h.fence === fence);
    const isRight = holder && (this.#options.says === "nothing" || isLive(holder, this.nowUs()));
    this.#world.count(isRight ? "guarded writes" : "guarded writes refused");
    this.#nonces.set(nonce, isRight ? from + 1 : undefined);
    if (!isRight) return undefined;
    const end = this.#ledger.endOf(name, token, fence);
    if (end) this.#world.fail("G3", `${name} at ${fence} wrote although it was ${end}`);
    const value = this.readGuarded(name);
    if (isExclusive && value !== from) {
      this.#world.fail("G3", `${name} at ${fence} overwrites ${value}, having read ${from}`);
    }
    this.#resources.set(name, from + 1);
    return from + 1;
  }

  /** One record is gone. */
  evict(name: string): void {
    if (this.#records.has(name)) this.#forget(name, false);
  }

  /** Nothing is answered for a while, and every connection is gone. */
  down(ms: number): void {
    this.#world.log("server", `down for ${ms.toFixed(3)} ms`);
    this.isUp = false;
    for (const set of this.#watchers.values()) {
      for (const { process, dropped } of [...set]) process.deliver(dropped);
      set.clear();
    }
    this.#upAtMs = Math.max(this.#upAtMs, this.#world.nowMs + ms);
    this.#world.at(this.#upAtMs, () => {
      if (this.#world.nowMs >= this.#upAtMs) this.isUp = true;
    });
  }

  /** Everything is gone. */
  loseData(): void {
    for (const name of [...this.#records.keys()]) this.#forget(name, false);
    this.#resources.clear();
    this.#nonces.clear();
  }

  /** The server's clock is set. */
  stepClock(ms: number): void {
    this.#world.log("server", `clock steps by ${ms.toFixed(3)} ms`);
    this.offsetMs += ms;
    if (ms > 0) this.steppedForwardAtMs = this.#world.nowMs;
    else this.#ledger.clockWasSetBack();
  }

  /** Something that is not a record stands where one should, for a while. */
  plant(name: string, text: string, ms: number): void {
    this.evict(name);
    this.#world.log("server", `${name} becomes foreign`);
    this.#put(name, text, Infinity);
    const planted = this.#records.get(name);
    this.#world.at(this.#world.nowMs + ms, () => {
      if (this.#records.get(name) !== planted) return;
      this.#world.log("server", `${name} is cleared`);
      this.#delete(name);
    });
  }

  /** A later version of the library adds a line of its own. */
  extend(name: string, line: string): void {
    const stored = this.#records.get(name);
    if (!stored?.record) return;
    const { record } = stored;
    const text = encodeRecord({ ...record, extra: [...record.extra, line] });
    this.#ledger.extended(name, this.#put(name, text, stored.retainUntilMs)!);
  }

  #stored(name: string): Stored | undefined {
    const stored = this.#records.get(name);
    // A product reaps when it likes.
    const isOld = stored && stored.retainUntilMs * 1000 < this.nowUs();
    if (isOld && this.#random.chance(0.5)) this.#forget(name, true);
    return this.#records.get(name);
  }

  #put(name: string, text: string, retainUntilMs: number): LeaseRecord | undefined {
    let record: LeaseRecord | undefined;
    try {
      record = decodeRecord(text);
    } catch {
      // Not ours.
    }
    this.#records.set(name, { text, version: ++this.#version, retainUntilMs, record });
    return record;
  }

  #forget(name: string, expected: boolean): void {
    this.#ledger.lost(name, expected);
    this.#delete(name);
  }

  #delete(name: string): void {
    this.#records.delete(name);
    if (!this.#options.absent) this.#absences.set(name, ++this.#version);
  }

  #record(name: string): LeaseRecord {
    const stored = this.#stored(name);
    return stored ? stored.record ?? decodeStored(name, stored.text) : EMPTY_RECORD;
  }

  /**
   * A product that reports every change must not wake waiters for their own tickets: each would answer with
   * a change, and so on.
   */
  #wakeIfFreer(name: string, before: LeaseRecord, after: LeaseRecord): void {
    const isGone = (entry: { readonly token: string | null }): boolean =>
      ![...after.holders, ...after.tickets].some((e) => e.token === entry.token);
    if ([...before.holders, ...before.tickets].some(isGone)) this.#wake(name, undefined);
  }

  #wake(name: string, next: string | undefined): void {
    for (const { process, wake, mark } of this.#watchers.get(name) ?? []) {
      if (next && mark && next !== mark) continue;
      this.#network.push(process, () => wake(next));
    }
  }
}
