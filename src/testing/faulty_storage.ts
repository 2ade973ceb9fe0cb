/**
 * A storage with faults.
 *
 * @module
 */
import { type Clock, systemClock } from "../core/clock.ts";
import { StorageError } from "../core/errors.ts";
import type { Command, Outcome, OutcomeOf } from "../core/record.ts";
import type { Entry, ExecuteOptions, LeaseStorage, PollMs } from "../core/storage.ts";

/** One thing that goes wrong with one request. */
export type Fault =
  /** It never arrives, and the client learns of that. */
  | { readonly type: "lose-request" }
  /** It is applied, and the client sees an error. */
  | { readonly type: "lose-reply" }
  /** It is applied at once and answered late. */
  | { readonly type: "late-reply"; readonly ms: number }
  /** It is applied, answered, and applied again later, when nobody waits for it. */
  | { readonly type: "duplicate"; readonly afterMs: number }
  /** It never arrives, and nobody says so. */
  | { readonly type: "hang" }
  /** It is applied, and never answered. */
  | { readonly type: "hang-after" }
  /** The product refuses. */
  | { readonly type: "error"; readonly error: Error };

/** Which requests a scripted fault befalls. */
export interface FaultOptions {
  /**
   * How many of them.
   *
   * @default {1}
   */
  readonly times?: number | undefined;
  /** Only these; all if absent. */
  readonly when?: ((command: Command, name: string) => boolean) | undefined;
}

/** Options of a {@linkcode FaultyStorage}. */
export interface FaultyStorageOptions {
  /** Whose time delays are in. */
  readonly clock?: Clock | undefined;
  /** Decides by itself which requests suffer, on top of the script: called for each request. */
  readonly draw?: ((command: Command, name: string) => Fault | undefined) | undefined;
}

/**
 * Wraps any storage and does to its requests what networks and client libraries do: by a script
 * ({@linkcode FaultyStorage.inject}), or drawn from a seeded source.
 *
 * @example
 * ```ts
 * import { Lock, MemoryStorage } from "@holdfast/lock";
 * import { FaultyStorage } from "@holdfast/lock/testing";
 * import { assertEquals } from "@std/assert";
 *
 * const storage = new FaultyStorage(new MemoryStorage());
 * storage.inject({ type: "lose-reply" });
 * await using lease = await new Lock({ storage, name: "job" }).acquire();
 * assertEquals(storage.sent.map((entry) => entry.command.type), ["acquire", "acquire"]);
 * assertEquals(lease.status, "held");
 * ```
 */
export class FaultyStorage implements LeaseStorage {
  /** Every request that was made, in order. */
  readonly sent: Entry[] = [];
  /** As the storage behind. */
  readonly pollMs: PollMs;
  /** As the storage behind. */
  readonly maxClockSkewMs: number;
  /** As the storage behind. */
  readonly wakesTickets: boolean;
  /** As the storage behind. */
  readonly watch?: NonNullable<LeaseStorage["watch"]>;

  readonly #storage: LeaseStorage;
  readonly #clock: Clock;
  readonly #draw: FaultyStorageOptions["draw"];
  readonly #script: { fault: Fault; left: number; when: FaultOptions["when"] }[] = [];

  /**
   * Wraps a storage.
   *
   * @param storage the storage behind
   * @param options `clock`, `draw`
   */
  constructor(storage: LeaseStorage, options: FaultyStorageOptions = {}) {
    this.#storage = storage;
    this.#clock = options.clock ?? systemClock;
    this.#draw = options.draw;
    this.pollMs = storage.pollMs;
    this.maxClockSkewMs = storage.maxClockSkewMs;
    this.wakesTickets = storage.wakesTickets ?? false;
    if (storage.watch) this.watch = storage.watch.bind(storage);
  }

  /**
   * Adds a fault to the script.
   *
   * @param fault what goes wrong
   * @param options with which requests
   */
  inject(fault: Fault, options: FaultOptions = {}): void {
    this.#script.push({ fault, left: options.times ?? 1, when: options.when });
  }

  /** Ends every scripted fault. */
  heal(): void {
    this.#script.length = 0;
  }

  /**
   * Applies one command, as far as the script lets it.
   *
   * @param name the lock
   * @param command what to do
   * @param options handed on
   * @returns the outcome
   * @throws {StorageError} as the fault says
   */
  async execute<C extends Command>(
    name: string,
    command: C,
    options: ExecuteOptions = {},
  ): Promise<OutcomeOf<C>> {
    this.sent.push({ name, command });
    const fault = this.#next(command, name) ?? this.#draw?.(command, name);
    switch (fault?.type) {
      case undefined:
        return await this.#storage.execute(name, command, options);
      case "lose-request":
        throw lost(name);
      case "lose-reply":
        await this.#storage.execute(name, command);
        throw lost(name);
      case "late-reply": {
        const outcome = await this.#storage.execute(name, command);
        await new Promise<void>((resolve) => {
          this.#clock.setTimer(fault.ms, resolve, { keepAlive: false });
        });
        return outcome;
      }
      case "duplicate":
        this.#clock.setTimer(fault.afterMs, () => {
          this.#storage.execute(name, command).catch(() => {});
        }, { keepAlive: false });
        return await this.#storage.execute(name, command, options);
      case "hang":
        return await never(options.signal);
      case "hang-after":
        await this.#storage.execute(name, command);
        return await never(options.signal);
      case "error":
        throw fault.error;
    }
  }

  /**
   * Applies many commands, each with its own faults.
   *
   * @param entries locks and what to do to them
   * @param options handed on
   * @returns an outcome or an error for each
   */
  executeAll(
    entries: readonly Entry[],
    options: ExecuteOptions = {},
  ): Promise<PromiseSettledResult<Outcome>[]> {
    return Promise.allSettled(
      entries.map(({ name, command }) => this.execute(name, command, options)),
    );
  }

  #next(command: Command, name: string): Fault | undefined {
    const entry = this.#script.find((e) => e.left > 0 && (e.when?.(command, name) ?? true));
    if (entry) entry.left--;
    return entry?.fault;
  }
}

function lost(name: string): StorageError {
  return new StorageError(`Cannot reach lock "${name}" as the connection was lost`, {
    transient: true,
  });
}

/** Never answers; an abort only ends the wait. */
function never(signal: AbortSignal | undefined): Promise<never> {
  return new Promise((_, reject) => {
    signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}
