/**
 * The errors of the library. They are recognised by a brand, not by their constructor, so that
 * `instanceof` works across two bundled copies. No message ever contains a holder token.
 *
 * @module
 */
import type { Refusal } from "./record.ts";

const BRAND = Symbol.for("@holdfast/lock.error");

/** Why a lease cannot be used any more: the holding was lost, or its holder gave it away. */
export type LossReason = Refusal | "max-hold" | "abandoned" | "released" | "detached";

/** The literal codes of the library's errors. */
export type ErrorCode =
  | "lock-timeout"
  | "lease-lost"
  | "storage"
  | "stale-fence"
  | "capacity-mismatch";

/**
 * Any error of this library that is not a wrong argument.
 *
 * @example
 * ```ts
 * import { HoldfastError } from "@holdfast/lock";
 * import { assertEquals } from "@std/assert";
 *
 * const error: unknown = new HoldfastError("capacity-mismatch", "Cannot acquire");
 * assertEquals(error instanceof HoldfastError && error.code, "capacity-mismatch");
 * ```
 */
export class HoldfastError extends Error {
  /** The code that a subclass stands for; none for the base class. */
  static readonly code: ErrorCode | undefined = undefined;
  /** The name of the class, also in minified code. */
  override readonly name: string = "HoldfastError";
  /** Says what happened, for programs. */
  readonly code: ErrorCode;

  /**
   * Makes an error.
   *
   * @param code says what happened, for programs
   * @param message says what happened, for people
   * @param options `cause`: the error behind this one
   */
  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    Object.defineProperty(this, BRAND, { value: code });
  }

  /** Recognises errors of every copy of the library in the program; a user's subclass only its own. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    if (!Object.hasOwn(this, "code")) return super[Symbol.hasInstance](value);
    const code = (value as { [BRAND]?: ErrorCode } | null | undefined)?.[BRAND];
    return code !== undefined && (this.code === undefined || this.code === code);
  }
}

/** The lock stayed held by others for as long as the caller would wait. */
export class LockTimeoutError extends HoldfastError {
  /** What `code` of every instance is. */
  static override readonly code = "lock-timeout";
  /** The name of the class, also in minified code. */
  override readonly name = "LockTimeoutError";

  /**
   * Makes an error.
   *
   * @param message says which lock and how long
   */
  constructor(message: string) {
    super("lock-timeout", message);
  }
}

/** The lease is not held any more. `reason` says why. */
export class LeaseLostError extends HoldfastError {
  /** What `code` of every instance is. */
  static override readonly code = "lease-lost";
  /** The name of the class, also in minified code. */
  override readonly name = "LeaseLostError";
  /** Why the lease is not held. */
  readonly reason: LossReason;
  /** Whether the work that ran under the lease came to an end with {@linkcode value}. */
  readonly hasValue: boolean;
  /** What the work returned, although the lease was lost under it. */
  readonly value: unknown;

  /**
   * Makes an error.
   *
   * @param message says which lease and why
   * @param details `reason`; `value` if the work returned one; `cause`
   */
  constructor(
    message: string,
    details: { readonly reason: LossReason; readonly value?: unknown; readonly cause?: unknown },
  ) {
    super("lease-lost", message, "cause" in details ? { cause: details.cause } : undefined);
    this.reason = details.reason;
    this.hasValue = "value" in details;
    this.value = details.value;
  }
}

/** The storage failed, or did not answer: the outcome is unknown, which is neither free nor held. */
export class StorageError extends HoldfastError {
  /** What `code` of every instance is. */
  static override readonly code = "storage";
  /** The name of the class, also in minified code. */
  override readonly name = "StorageError";
  /** Whether asking again may help; false for wrong credentials, a wrong schema, a foreign record. */
  readonly transient: boolean;
  /** Where one command of several failed: which. */
  readonly index: number | undefined;

  /**
   * Makes an error.
   *
   * @param message says what failed, and the key
   * @param details `transient`: whether asking again may help; `index`; `cause`
   */
  constructor(
    message: string,
    details: {
      readonly transient: boolean;
      readonly index?: number | undefined;
      readonly cause?: unknown;
    },
  ) {
    super("storage", message, "cause" in details ? { cause: details.cause } : undefined);
    this.transient = details.transient;
    this.index = details.index;
  }
}

/** Whether an error says that the storage failed in a way that may pass. */
export function isTransient(error: unknown): boolean {
  return error instanceof StorageError && error.transient;
}

/** A write came with a fencing token that is not, or no longer, the right one. Nothing was written. */
export class StaleFenceError extends HoldfastError {
  /** What `code` of every instance is. */
  static override readonly code = "stale-fence";
  /** The name of the class, also in minified code. */
  override readonly name = "StaleFenceError";
  /** The fencing token of the write. */
  readonly fence: number;

  /**
   * Makes an error.
   *
   * @param message says which resource or lock
   * @param details `fence`: the fencing token of the write; `cause`
   */
  constructor(message: string, details: { readonly fence: number; readonly cause?: unknown }) {
    super("stale-fence", message, "cause" in details ? { cause: details.cause } : undefined);
    this.fence = details.fence;
  }
}
