/**
 * What an error of Postgres means, by its SQLSTATE (PostgreSQL documentation, appendix A).
 *
 * @module
 */
import { StorageError } from "../core/errors.ts";

/** What a fenced transaction fails with whose holding is gone. */
export const STALE_FENCE = "HF001";

/** What a transaction fails with that has to be tried again. */
export const SERIALIZATION_FAILURE = "40001";

const DEADLOCK_DETECTED = "40P01";
const LOCK_NOT_AVAILABLE = "55P03";

/** `postgres` refuses queries after its own `end()` with these. */
const CLIENT_IS_CLOSED = /^CONNECTION_(ENDED|DESTROYED)$/;

/** Five letters and digits; unlike `EPIPE` and other names of the operating system, with a digit. */
const SQLSTATE = /^(?=.*\d)[0-9A-Z]{5}$/;

/** Which states ask for what; the first that fits counts. */
const ADVICE: readonly {
  readonly states: RegExp;
  readonly transient: boolean;
  readonly says: (tables: string) => string;
}[] = [
  {
    states: /^28/,
    transient: false,
    says: () => "the server refuses the login: correct user and password",
  },
  {
    states: /^3D/,
    transient: false,
    says: () => "the database does not exist: create it, or correct its name",
  },
  {
    states: /^(42P01|42703|42883|3F000)$/,
    transient: false,
    says: (tables) => `${tables} are missing or have another shape: run migrate()`,
  },
  {
    states: /^42501$/,
    transient: false,
    says: (tables) => `the role lacks rights: grant SELECT, INSERT, UPDATE, DELETE on ${tables}`,
  },
  {
    states: /^25006$/,
    transient: true,
    says: () => "the server is a read-only replica: connect to the primary",
  },
  {
    states: /^(08|40|53|55|57|58)/,
    transient: true,
    says: () => "the server cannot serve it now: try again",
  },
];

/**
 * The SQLSTATE of an error.
 *
 * @param error whatever a client rejected with
 * @returns the five characters, or nothing where the server did not say why
 */
export function sqlState(error: unknown): string | undefined {
  const code = codeOf(error);
  return code !== undefined && SQLSTATE.test(code) ? code : undefined;
}

/**
 * Whether a statement was not applied because of another one, and how.
 *
 * @param error whatever a client rejected with
 * @returns `"conflict"`: read again; `"blocked"`: somebody's transaction is in the way
 */
export function contention(error: unknown): "conflict" | "blocked" | undefined {
  const state = sqlState(error);
  if (state === LOCK_NOT_AVAILABLE) return "blocked";
  return state === SERIALIZATION_FAILURE || state === DEADLOCK_DETECTED ? "conflict" : undefined;
}

/**
 * Says in one sentence what failed and what to do.
 *
 * @param what was attempted, and on what: `read key "x"`
 * @param tables both tables, for the advice
 * @param cause whatever the client rejected with
 * @returns the error
 */
export function storageError(what: string, tables: string, cause: unknown): StorageError {
  const state = sqlState(cause);
  if (state !== undefined) {
    const advice = ADVICE.find(({ states }) => states.test(state));
    const says = advice?.says(tables) ?? "the server refuses it: see the cause";
    const transient = advice?.transient ?? false;
    return new StorageError(`Cannot ${what} as ${says} (SQLSTATE ${state})`, { transient, cause });
  }
  if (CLIENT_IS_CLOSED.test(codeOf(cause) ?? "")) {
    return new StorageError(`Cannot ${what} as the client was closed: end it after the leases`, {
      transient: false,
      cause,
    });
  }
  return new StorageError(`Cannot ${what} as the connection to the server failed`, {
    transient: true,
    cause,
  });
}

function codeOf(error: unknown): string | undefined {
  const code = (error as { readonly code?: unknown } | null | undefined)?.code;
  return typeof code === "string" ? code : undefined;
}
