/**
 * A lease storage over anything that runs the script of `redis_script.ts`; what Redis over TCP and Upstash
 * over REST have in common.
 *
 * @module
 */
import type { Command, Outcome, OutcomeOf } from "../core/record.ts";
import { DEFAULT_RETENTION_MS } from "../core/register.ts";
import type { Entry, ExecuteOptions, LeaseStorage, PollMs } from "../core/storage.ts";
import { checkMs, checkPollMs } from "../core/validate.ts";
import {
  channelOf,
  hashTagOf,
  keyOf,
  mayWake,
  outcomeOf,
  waiterChannelOf,
  wordsOf,
} from "./_redis_command.ts";
import { errorOf } from "./_redis_errors.ts";
import { runCalls, type ScriptCall, scriptOf, type SendCalls } from "./_redis_run.ts";
import type { Channels } from "./_redis_watch.ts";
import { LEASE_SCRIPT } from "./redis_script.ts";

/** Options that both storages of this script have. */
export interface ScriptStorageOptions {
  /**
   * What keys and channels begin with: 1 to 64 letters, digits and `. _ - :`, because a channel has to pass
   * through a URL as it is.
   *
   * @default {"holdfast"}
   */
  readonly prefix?: string | undefined;
  /**
   * For how long a record outlives its last expiry, in milliseconds; at least the longest ttl in use.
   *
   * @default {3600000}
   */
  readonly retentionMs?: number | undefined;
  /** How often waiters may ask, in milliseconds. */
  readonly pollMs?: PollMs | undefined;
}

const PREFIX = /^[A-Za-z0-9._:-]{1,64}$/;

const LEASE = scriptOf(LEASE_SCRIPT);

/**
 * Checks what keys begin with.
 *
 * @param prefix the prefix; "holdfast" if absent
 * @returns the prefix
 * @throws {RangeError} if it has other characters, which a hash tag or a URL would not survive
 */
export function checkPrefix(prefix = "holdfast"): string {
  if (PREFIX.test(prefix)) return prefix;
  throw new RangeError(
    `Cannot use prefix as it must be 1 to 64 letters, digits and . _ - : characters: ` +
      `current value is ${JSON.stringify(prefix)}`,
  );
}

/** What a product brings along. */
export interface ScriptTraits {
  /** Sends scripts. */
  readonly send: SendCalls;
  /** Where hints come from, if there are any. */
  readonly channels: Channels | undefined;
  /** Whether a release tells those who wait. */
  readonly publishes: boolean;
  /** How often waiters may ask, unless the user decides. */
  readonly pollMs: PollMs;
}

/** Keeps each record in one key, and moves it by one run of the script. */
export class ScriptStorage implements LeaseStorage {
  /** How often waiters may ask. */
  readonly pollMs: PollMs;
  /** The server says the time. */
  readonly maxClockSkewMs = 0;
  /** Whether this client listens: then a release wakes the first who left a ticket. */
  readonly wakesTickets: boolean;
  /** What keys and channels begin with. */
  readonly prefix: string;
  /** Present if this client listens. */
  readonly watch?: NonNullable<LeaseStorage["watch"]>;

  readonly #send: SendCalls;
  readonly #publishes: boolean;
  readonly #retentionMs: number;

  /**
   * Makes a storage.
   *
   * @param traits what the product brings along
   * @param options what the user decides
   */
  constructor(traits: ScriptTraits, options: ScriptStorageOptions) {
    const { channels } = traits;
    this.#send = traits.send;
    this.#publishes = traits.publishes;
    this.prefix = checkPrefix(options.prefix);
    this.pollMs = checkPollMs(options.pollMs ?? traits.pollMs);
    this.#retentionMs = checkMs("retentionMs", options.retentionMs ?? DEFAULT_RETENTION_MS);
    this.wakesTickets = channels !== undefined;
    if (channels) {
      this.watch = (name, wake, mark) =>
        channels.watch(waiterChannelOf(channelOf(this.prefix, name), mark), wake);
    }
  }

  /**
   * The part of a lock's key that decides its slot on a cluster. Keys that a fenced call touches need it
   * there: `order:7:${storage.hashTag("invoice:42")}`.
   *
   * @param name the lock
   * @returns the hash tag, with its braces
   */
  hashTag(name: string): string {
    return hashTagOf(name.normalize("NFC"));
  }

  /**
   * Applies one command, in one round trip.
   *
   * @param name the lock
   * @param command what to do
   * @param options `signal`: keeps a request from being sent; what is sent cannot be called back
   * @returns the outcome
   * @throws {StorageError} if the outcome is unknown, Redis refused, or what is stored is not a record
   */
  async execute<C extends Command>(
    name: string,
    command: C,
    options: ExecuteOptions = {},
  ): Promise<OutcomeOf<C>> {
    const [result] = await this.executeAll([{ name, command }], options);
    if (result!.status === "rejected") throw result!.reason;
    return result!.value as OutcomeOf<C>;
  }

  /**
   * Applies many commands in one pipeline.
   *
   * @param entries what to do to which lock
   * @param options `signal`: keeps the requests from being sent
   * @returns how each ended, in the same order
   */
  async executeAll(
    entries: readonly Entry[],
    options: ExecuteOptions = {},
  ): Promise<PromiseSettledResult<Outcome>[]> {
    options.signal?.throwIfAborted();
    const results = await runCalls(this.#send, entries.map((entry) => this.#call(entry)));
    return entries.map((entry, i) => this.#settle(entry, results[i]!));
  }

  #call({ name, command }: Entry): ScriptCall {
    const retentionMs = Math.max(this.#retentionMs, "ttlMs" in command ? command.ttlMs : 0);
    const tells = this.#publishes && mayWake(command);
    return {
      script: LEASE,
      keys: [keyOf(this.prefix, name)],
      args: [String(retentionMs), tells ? channelOf(this.prefix, name) : "", ...wordsOf(command)],
    };
  }

  #settle(
    { name, command }: Entry,
    result: PromiseSettledResult<unknown>,
  ): PromiseSettledResult<Outcome> {
    const value = result.status === "fulfilled" ? outcomeOf(command, result.value) : undefined;
    return value
      ? { status: "fulfilled", value }
      : { status: "rejected", reason: errorOf(keyOf(this.prefix, name), result) };
  }
}
