/**
 * The options of a lock: checked, completed with their defaults, and fixed for its life.
 *
 * @module
 */
import { type Clock, systemClock } from "./clock.ts";
import { type Entropy, systemEntropy } from "./entropy.ts";
import type { LockEvent } from "./events.ts";
import { trustedMs } from "./lifecycle.ts";
import type { LeaseStorage } from "./storage.ts";
import { checkInteger, checkMs, checkText, MAX_CAPACITY, MIN_TTL_MS } from "./validate.ts";

/** Takes work that goes on after its function returned, so that the platform keeps the process alive. */
export type WaitUntil = (work: Promise<unknown>) => void;

/** What a lock is, and how its leases behave. */
export interface LockOptions {
  /** Where the record of the lock lives. */
  readonly storage: LeaseStorage;
  /** 1 to 512 UTF-8 bytes, well-formed, without control characters; brought into NFC. */
  readonly name: string;
  /**
   * How long a lease lasts without renewal, in milliseconds: 10 to 30 days.
   *
   * @default {30000}
   */
  readonly ttlMs?: number | undefined;
  /**
   * From one renewal to the next, in milliseconds.
   *
   * @default {ttlMs / 3}
   */
  readonly renewEveryMs?: number | undefined;
  /**
   * Whether a lease renews itself while it is used. `"own-timer"`: with a timer per lease, where timers
   * belong to a request (Workers). `false`: no background work at all.
   *
   * @default {true}
   */
  readonly autoRenew?: boolean | "own-timer" | undefined;
  /**
   * The longest that one request to the storage may take, in milliseconds.
   *
   * @default {Math.min(ttlMs / 3, 5000)}
   */
  readonly requestTimeoutMs?: number | undefined;
  /**
   * How long the lock stays taken even if released earlier, in milliseconds (cron on many machines).
   *
   * @default {0}
   */
  readonly minHoldMs?: number | undefined;
  /** The longest time that a lease can be held, in milliseconds; without limit if absent. */
  readonly maxHoldMs?: number | undefined;
  /**
   * How many permits a lease takes.
   *
   * @default {1}
   */
  readonly permits?: number | undefined;
  /**
   * How many permits there are: 1 for a mutex, N for a semaphore.
   *
   * @default {1}
   */
  readonly capacity?: number | undefined;
  /**
   * Whether grants follow the queue. Without it whoever asks first has a free lock; only a waiter that was
   * woken and came too late three times has a place that others wait for.
   *
   * @default {false}
   */
  readonly fair?: boolean | undefined;
  /**
   * For how long a waiter that stopped asking keeps its place in the queue, in milliseconds.
   *
   * @default {10000}
   */
  readonly queueMs?: number | undefined;
  /**
   * Whether waiters of one process queue in the process, so that one of them talks to the storage.
   *
   * @default {true}
   */
  readonly gate?: boolean | undefined;
  /** What others see of a holder: at most 64 UTF-8 bytes, without control characters. */
  readonly label?: string | undefined;
  /** Where the time comes from. */
  readonly clock?: Clock | undefined;
  /** Where tokens and jitter come from. */
  readonly entropy?: Entropy | undefined;
  /**
   * What `tryAcquire` and `tryWith` do when the storage cannot be reached: throw, or answer like
   * "not acquired" after an `unavailable` event.
   *
   * @default {"throw"}
   */
  readonly onUnavailable?: "throw" | "skip" | undefined;
  /** Told of everything that happens. */
  readonly onEvent?: ((event: LockEvent) => void) | undefined;
  /** Takes work that goes on in the background. */
  readonly waitUntil?: WaitUntil | undefined;
}

/** {@linkcode LockOptions}, checked and complete. */
export interface Settings {
  readonly storage: LeaseStorage;
  readonly name: string;
  readonly ttlMs: number;
  readonly renewEveryMs: number;
  readonly autoRenew: boolean | "own-timer";
  readonly requestTimeoutMs: number;
  readonly minHoldMs: number;
  readonly maxHoldMs: number | undefined;
  readonly permits: number;
  readonly capacity: number;
  readonly fair: boolean;
  readonly queueMs: number;
  readonly gate: boolean;
  readonly label: string;
  readonly clock: Clock;
  readonly entropy: Entropy;
  readonly onUnavailable: "throw" | "skip";
  readonly onEvent: ((event: LockEvent) => void) | undefined;
  readonly waitUntil: WaitUntil | undefined;
}

/**
 * Checks a lock's options.
 *
 * @param options what the user gave
 * @returns the complete settings
 * @throws {TypeError | RangeError} if an option is wrong
 */
export function settingsOf(options: LockOptions): Settings {
  const { storage, maxHoldMs } = options;
  if (typeof storage?.execute !== "function") {
    throw new TypeError(
      `Cannot use storage as it must have an execute() method: current value is ${typeof storage}`,
    );
  }
  const ttlMs = checkMs("ttlMs", options.ttlMs ?? 30_000, MIN_TTL_MS);
  const capacity = checkInteger("capacity", options.capacity ?? 1, 1, MAX_CAPACITY);
  const renewEveryMs = options.renewEveryMs ?? Math.floor(ttlMs / 3);
  return {
    storage,
    name: checkName(options.name),
    ttlMs,
    renewEveryMs: checkInteger(
      "renewEveryMs",
      renewEveryMs,
      1,
      Math.floor(trustedMs(ttlMs)),
      " ms",
    ),
    autoRenew: checkOneOf("autoRenew", options.autoRenew ?? true, [true, false, "own-timer"]),
    requestTimeoutMs: checkMs(
      "requestTimeoutMs",
      options.requestTimeoutMs ?? Math.min(Math.floor(ttlMs / 3), 5000),
      1,
    ),
    minHoldMs: checkMs("minHoldMs", options.minHoldMs ?? 0),
    maxHoldMs: maxHoldMs === undefined ? undefined : checkMs("maxHoldMs", maxHoldMs, MIN_TTL_MS),
    permits: checkInteger("permits", options.permits ?? 1, 1, capacity),
    capacity,
    fair: checkOneOf("fair", options.fair ?? false, [true, false]),
    queueMs: checkMs("queueMs", options.queueMs ?? 10_000, MIN_TTL_MS),
    gate: checkOneOf("gate", options.gate ?? true, [true, false]),
    label: checkText("label", options.label ?? "", 0, 64),
    clock: options.clock ?? systemClock,
    entropy: options.entropy ?? systemEntropy,
    onUnavailable: checkOneOf("onUnavailable", options.onUnavailable ?? "throw", ["throw", "skip"]),
    onEvent: checkFunction("onEvent", options.onEvent),
    waitUntil: checkFunction("waitUntil", options.waitUntil),
  };
}

/**
 * Checks a lock's name.
 *
 * @returns the name in NFC
 * @throws {TypeError | RangeError} if it is wrong
 */
export function checkName(name: string): string {
  return checkText("name", name, 1, 512);
}

function checkOneOf<T>(what: string, value: T, allowed: readonly T[]): T {
  if (allowed.includes(value)) return value;
  const list = allowed.map((a) => JSON.stringify(a)).join(", ");
  throw new TypeError(
    `Cannot use ${what} as it must be one of ${list}: current value is ${JSON.stringify(value)}`,
  );
}

function checkFunction<T>(what: string, value: T | undefined): T | undefined {
  if (value === undefined || typeof value === "function") return value;
  throw new TypeError(
    `Cannot use ${what} as it must be a function: current value is of type ${typeof value}`,
  );
}
