/**
 * Any compare-and-swap store becomes a {@linkcode LeaseStorage}: the product gives a
 * {@linkcode Register}, {@linkcode RegisterStorage} runs `step` around it.
 *
 * What must be atomic is one conditional write. Who says the time is the register, if its reads carry
 * `nowUs`; otherwise each client's wall clock does, with `maxClockSkewMs` added to what is stored. What a
 * lost reply means is never guessed: the record is read back and `step` decides again.
 *
 * @module
 */
import { backoffMs } from "./backoff.ts";
import { type Clock, sleep, systemClock } from "./clock.ts";
import { decodeStored, encodeRecord, lastExpiryMs } from "./codec.ts";
import { type Entropy, systemEntropy } from "./entropy.ts";
import { isTransient, StorageError } from "./errors.ts";
import {
  type Command,
  EMPTY_RECORD,
  type Held,
  type Holder,
  type LeaseRecord,
  type OutcomeOf,
  step,
} from "./record.ts";
import { putBounded, Sightings } from "./sightings.ts";
import type { ExecuteOptions, LeaseStorage, PollMs, Watch } from "./storage.ts";
import { MAX_AGE_MS, ToldTime } from "./told_time.ts";
import { checkMs, checkPollMs } from "./validate.ts";

/** A value as it was read, with what it takes to replace exactly this one. */
export interface Versioned<V> {
  /** The stored text; `null` where there is none. */
  readonly value: string | null;
  /** The version of the value; of an absent value too. Never repeats, not even after a deletion. */
  readonly version: V;
  /** The server's clock at the read, in microseconds since the epoch, where the product has one. */
  readonly nowUs?: number | undefined;
}

/** What is to be stored. */
export interface Write {
  /** The text of the record. */
  readonly value: string;
  /** The last fencing token granted, for products that keep it in an attribute of its own. */
  readonly fence: number;
  /** From when on the product may delete the value, in milliseconds since the epoch. */
  readonly retainUntilMs: number;
  /** The token of the first waiter, if it should be woken. */
  readonly wake: string | undefined;
}

/** Which holdings begin and end with a write, for products that keep a guard per holding. */
export interface Change {
  /** Holdings that can write under their fence from now on. */
  readonly granted: readonly Holder[];
  /** Holdings that cannot any more. */
  readonly ended: readonly Holder[];
}

/** How a conditional write ended, as far as the product knows. */
export type Written<V> =
  | { readonly ok: true; readonly version: V }
  | {
    readonly ok: false;
    readonly current?: Versioned<V> | undefined;
    /**
     * The version is unchanged, but a transaction that the user fenced with a holding that would end is
     * open: nothing was written, and asking again at once is no use.
     */
    readonly blocked?: boolean | undefined;
  };

/**
 * A store that reads a value with its version and replaces it only if the version is unchanged. Both
 * methods reject if they do not know: with a `StorageError` that says whether asking again may help.
 */
export interface Register<V> {
  /** Reads what is true now, never from a replica that may lag. */
  read(name: string, options: ExecuteOptions): Promise<Versioned<V>>;
  /**
   * Reads the text alone, where that costs less than with the server's time: what a write that failed
   * before has met, or newer. It serves to refuse a waiter that asks again, and for nothing else.
   */
  glance?(name: string, options: ExecuteOptions): Promise<string | null>;
  /**
   * Writes only if the version is still `version`; `ok: false` if it is not. On `ok: false` the product
   * may hand over what it has, if that is as fresh as a read.
   */
  write(
    name: string,
    next: Write,
    version: V,
    change: Change,
    options: ExecuteOptions,
  ): Promise<Written<V>>;
  /**
   * The version of an absent value, where there is one: the first acquire of a name is then tried as if
   * the record were absent, which saves the read.
   */
  readonly absent?: V | undefined;
  /** As `LeaseStorage.watch`. */
  watch?(name: string, wake: (next?: string) => void): Watch;
  /** The key of a lock in the product, for messages. */
  key(name: string): string;
}

/** Options that every register storage has. */
export interface RegisterStorageOptions {
  /**
   * The bound between the wall clocks of any two clients, in milliseconds; added to every expiry. 0
   * where all clients share one machine. Not used where the product says the time.
   *
   * @default {1000}
   */
  readonly maxClockSkewMs?: number | undefined;
  /**
   * For how long a record outlives its last expiry, in milliseconds; at least the longest ttl in use
   * plus twice `maxClockSkewMs`.
   *
   * @default {3600000}
   */
  readonly retentionMs?: number | undefined;
  /** How often waiters may ask, in milliseconds. */
  readonly pollMs?: PollMs | undefined;
  /** Where the time comes from. */
  readonly clock?: Clock | undefined;
  /** Where jitter comes from. */
  readonly entropy?: Entropy | undefined;
}

/** What a product decides for its register. */
export interface RegisterTraits {
  /** Whether reads carry the server's `nowUs`. */
  readonly serverTime: boolean;
  /** Whether a release gives hints only to those who left a ticket. */
  readonly wakesTickets?: boolean | undefined;
  /**
   * Whether a write refuses a text that was edited under its old version. With `serverTime` a release is
   * then one write, as it needs no exact time.
   */
  readonly checksText?: boolean | undefined;
}

/** For how long a record outlives its last expiry unless the user says otherwise, in milliseconds. */
export const DEFAULT_RETENTION_MS = 3_600_000;

/** After how many lost races in a row a command is given up for now. */
const MAX_TRIES = 64;

const CONFLICT_BACKOFF_MS: PollMs = { min: 1, max: 50 };

/** A record with the version that it was seen under. */
interface Known<V> {
  readonly record: LeaseRecord;
  readonly seen: Versioned<V>;
}

/** The last record that we know of a name, to save the read before a write. */
interface Memory<V> extends Known<V> {
  /** False after the memory was wrong: the next command reads first. */
  readonly trusted: boolean;
}

/** A {@linkcode LeaseStorage} over any {@linkcode Register}. */
export class RegisterStorage<V> implements LeaseStorage {
  /** How often waiters may ask. */
  readonly pollMs: PollMs;
  /** The bound between the wall clocks of any two clients; 0 where the product says the time. */
  readonly maxClockSkewMs: number;
  /** Whether a release gives hints only to those who left a ticket. */
  readonly wakesTickets: boolean;
  /** Present if the register can watch. */
  readonly watch?: (name: string, wake: (next?: string) => void) => Watch;

  readonly #register: Register<V>;
  readonly #serverTime: boolean;
  readonly #checksText: boolean;
  readonly #retentionMs: number;
  readonly #clock: Clock;
  readonly #entropy: Entropy;
  readonly #memory = new Map<string, Memory<V>>();
  readonly #sightings: Sightings;
  readonly #toldTime: ToldTime;

  /**
   * Puts a lease storage around a register.
   *
   * @param register the product
   * @param traits what the product can do
   * @param options what the user decides; `pollMs` must be given
   */
  constructor(
    register: Register<V>,
    traits: RegisterTraits,
    options: RegisterStorageOptions & { readonly pollMs: PollMs },
  ) {
    this.#register = register;
    this.#serverTime = traits.serverTime;
    this.#checksText = traits.checksText ?? false;
    this.wakesTickets = traits.wakesTickets ?? false;
    this.pollMs = checkPollMs(options.pollMs);
    this.maxClockSkewMs = traits.serverTime
      ? 0
      : checkMs("maxClockSkewMs", options.maxClockSkewMs ?? 1000);
    this.#retentionMs = checkMs("retentionMs", options.retentionMs ?? DEFAULT_RETENTION_MS);
    this.#clock = options.clock ?? systemClock;
    this.#entropy = options.entropy ?? systemEntropy;
    this.#sightings = new Sightings(this.#clock, this.maxClockSkewMs);
    this.#toldTime = new ToldTime(this.#clock);
    if (register.watch) this.watch = register.watch.bind(register);
  }

  /**
   * Applies one command: one write if the record is known or absent, a read before it otherwise.
   *
   * @param name the lock
   * @param command what to do
   * @param options `signal`: stops the work between two requests
   * @returns the outcome
   * @throws {StorageError} if the outcome is unknown, or what is stored is not a record
   */
  async execute<C extends Command>(
    name: string,
    command: C,
    options: ExecuteOptions = {},
  ): Promise<OutcomeOf<C>> {
    let known: Known<V> | undefined = this.#recall(name, command);
    let fresh = false;
    let memoryHeld = true;
    let faults = 0;
    /** What we tried to write when we last did not learn, or cannot believe, the outcome. */
    let attempted: { value: string; outcome: OutcomeOf<C> } | undefined;
    for (let tries = 0; tries < MAX_TRIES; tries++) {
      options.signal?.throwIfAborted();
      if (!known) {
        if (faults === 0 && this.#expectsRefusal(name, command, tries > 0)) {
          const refusal = this.#refusal(name, command, await this.#glance(name, options));
          if (refusal) return refusal;
          options.signal?.throwIfAborted();
        }
        known = await this.#read(name, command, options);
        fresh = true;
        if (tries === 0) memoryHeld = this.#remembers(name, known.seen, command);
      }
      if (fresh && !memoryHeld) putBounded(this.#memory, name, { ...known, trusted: false });
      const { record, seen }: Known<V> = known;
      if (fresh && attempted?.value === seen.value) return attempted!.outcome;

      const next = step(
        record,
        this.#sightings.complete(name, fresh ? command : this.#lengthen(command)),
        this.#nowUs(seen),
        this.maxClockSkewMs,
      );
      if (next.record === record) {
        // A refusal is only ever given from a fresh read.
        if (!fresh) {
          known = undefined;
          continue;
        }
        putBounded(this.#memory, name, { record, seen, trusted: memoryHeld });
        return next.outcome;
      }

      // Whoever gave up must not be followed by a write.
      options.signal?.throwIfAborted();
      const value = encodeRecord(next.record);
      const { fence } = next.record;
      const retainUntilMs = lastExpiryMs(next.record) + this.#retentionFor(command);
      let written: Written<V>;
      try {
        written = await this.#register.write(
          name,
          { value, fence, retainUntilMs, wake: next.wake },
          seen.version,
          changeOf(record, next.record),
          options,
        );
      } catch (error) {
        this.#memory.delete(name);
        this.#toldTime.forget(name);
        if (!isTransient(error) || ++faults > 1) throw error;
        written = { ok: false };
      }
      if (written.ok) {
        const kept = { value, version: written.version };
        putBounded(this.#memory, name, { record: next.record, seen: kept, trusted: memoryHeld });
        return next.outcome;
      }
      if (written.blocked) return this.#blocked(name, command, faults > 0);
      // It may have been applied all the same: a resend of our own write is refused like this, too.
      attempted = { value, outcome: next.outcome };
      if (!fresh) memoryHeld = false;
      known = written.current && this.#decode(name, written.current);
      fresh = known !== undefined;
      if (tries > 0) await this.#pause(tries, options.signal);
    }
    throw new StorageError(
      `Cannot write key "${this.#register.key(name)}" as others were faster: ` +
        `current value is ${MAX_TRIES} lost races`,
      { transient: true },
    );
  }

  /** Reads, and notes the time that the server says. */
  async #read(name: string, command: Command, options: ExecuteOptions): Promise<Known<V>> {
    const askedAt = this.#clock.read();
    const seen = await this.#register.read(name, options);
    if (seen.nowUs !== undefined && command.type !== "inspect") {
      this.#toldTime.tell(name, seen.nowUs, askedAt);
    }
    return this.#decode(name, seen);
  }

  /** Whether it is worth a glance: somebody else was faster just now, or had the lock when we last looked. */
  #expectsRefusal(name: string, command: Command, lostRace: boolean): boolean {
    if (!this.#register.glance || command.type !== "acquire" || command.queueMs > 0) return false;
    const record = this.#memory.get(name)?.record;
    return lostRace || (record !== undefined && this.#refusal(name, command, record) !== undefined);
  }

  async #glance(name: string, options: ExecuteOptions): Promise<LeaseRecord> {
    return decodeStored(this.#register.key(name), await this.#register.glance!(name, options));
  }

  /** What a record means for who asks again, at a time that the server has reached: its refusal, if it is one. */
  #refusal<C extends Command>(
    name: string,
    command: C,
    record: LeaseRecord,
  ): OutcomeOf<C> | undefined {
    const nowUs = this.#toldTime.atLeastUs(name);
    if (nowUs === undefined) return undefined;
    const { outcome } = step(record, command, nowUs);
    const isRefusal = outcome.type === "held" || outcome.type === "full";
    return isRefusal ? outcome : undefined;
  }

  /**
   * What is in the way has no known end, so an acquire is refused for one poll. Whatever else would end a
   * holding cannot be refused, and a write of ours that may still be on its way must not be forgotten.
   */
  #blocked<C extends Command>(name: string, command: C, mayHaveWritten: boolean): OutcomeOf<C> {
    if (command.type === "acquire" && !mayHaveWritten) {
      return { type: "held", retryAfterMs: this.pollMs.max, ahead: 0 } as Held as OutcomeOf<C>;
    }
    throw new StorageError(
      `Cannot ${command.type} key "${
        this.#register.key(name)
      }" as a fenced transaction of its holder ` +
        `is open`,
      { transient: true },
    );
  }

  /** What was stored when we last looked, as far as it is to be trusted. */
  #recall(name: string, command: Command): Known<V> | undefined {
    if (command.type === "inspect") return undefined;
    const memory = this.#memory.get(name);
    if (this.#serverTime) return memory && this.#recallAtServer(name, command, memory);
    if (memory) return memory.trusted ? memory : undefined;
    const { absent } = this.#register;
    if (absent === undefined || command.type !== "acquire") return undefined;
    return { record: EMPTY_RECORD, seen: { value: null, version: absent } };
  }

  /**
   * Where the server says the time: for a release, which gives nobody anything. Whoever is dropped at a time
   * that the server has reached is over, and a spent token is forgotten a little early at worst. What has to
   * be kept for a while is counted by the server's own time.
   */
  #recallAtServer(name: string, command: Command, memory: Memory<V>): Known<V> | undefined {
    const isEnough = this.#checksText && memory.trusted;
    if (command.type !== "release" || command.keepMs > 0 || !isEnough) return undefined;
    const nowUs = this.#toldTime.atLeastUs(name);
    return nowUs === undefined ? undefined : { ...memory, seen: { ...memory.seen, nowUs } };
  }

  /** A spent token is kept for its time by any clock, also where the server's is known by one that is old. */
  #lengthen<C extends Command>(command: C): C {
    if (command.type !== "release" || !this.#serverTime) return command;
    return { ...command, spentMs: command.spentMs + MAX_AGE_MS };
  }

  /** Whether the memory of a name agrees with what was read, as far as it would have been used. */
  #remembers(name: string, seen: Versioned<V>, command: Command): boolean {
    const memory = this.#memory.get(name);
    if (memory === undefined) return true;
    const isUsed = !this.#serverTime || command.type === "release";
    return isUsed ? memory.seen.value === seen.value : memory.trusted;
  }

  /** Reads a record, and notes since when each holding has been unchanged: from after the reply. */
  #decode(name: string, seen: Versioned<V>): Known<V> {
    const record = decodeStored(this.#register.key(name), seen.value);
    if (!this.#serverTime) this.#sightings.see(name, record);
    return { record, seen };
  }

  #nowUs(seen: Versioned<V>): number {
    return seen.nowUs ?? Math.floor(this.#clock.read().wallMs * 1000);
  }

  #retentionFor(command: Command): number {
    const ttlMs = "ttlMs" in command ? command.ttlMs : 0;
    return Math.max(this.#retentionMs, ttlMs + 2 * this.maxClockSkewMs);
  }

  #pause(tries: number, signal: AbortSignal | undefined): Promise<void> {
    const ms = backoffMs(tries, CONFLICT_BACKOFF_MS, this.#entropy.random());
    return sleep(this.#clock, ms, { keepAlive: true, signal });
  }
}

/** Which holdings that can write under their fence come, and which go, between two records. */
function changeOf(before: LeaseRecord, after: LeaseRecord): Change {
  const without = (from: LeaseRecord, others: LeaseRecord): Holder[] =>
    from.holders.filter((h) =>
      h.token !== null && !others.holders.some((o) => o.token === h.token && o.fence === h.fence)
    );
  return { granted: without(after, before), ended: without(before, after) };
}
