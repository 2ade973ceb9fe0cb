/**
 * The databases that there are, and what their errors mean, by result code (sqlite.org/rescode.html).
 *
 * @module
 */
import { StorageError } from "../core/errors.ts";

/** What is called of a prepared statement. */
export interface SqliteStatement {
  /** Runs it. */
  run(...values: (string | number)[]): unknown;
  /** Runs it, and returns the first row. */
  get(...values: (string | number)[]): unknown;
}

/** What is called of a `DatabaseSync` of `node:sqlite` or a `Database` of `bun:sqlite`. */
export interface SqliteDatabase {
  /** Prepares a statement. */
  prepare(sql: string): SqliteStatement;
  /** Whether a transaction is open, in `node:sqlite`. */
  readonly isTransaction?: boolean;
  /** Whether a transaction is open, in `bun:sqlite`. */
  readonly inTransaction?: boolean;
}

const SQLITE_BUSY = 5;
const SQLITE_LOCKED = 6;

/** Which codes ask for what. */
const ADVICE: Readonly<Record<number, { readonly says: string; readonly transient?: boolean }>> = {
  1: { says: "is missing or has another shape: make a new SqliteStorage, or name another table" },
  8: { says: "is read-only: open the file for writing" },
  10: { says: "cannot be read or written now: try again", transient: true },
  11: { says: "is damaged: restore the file" },
  13: { says: "cannot grow as the disk is full: make room", transient: true },
  14: { says: "cannot be opened: correct path and rights of the file" },
  26: { says: "is in a file that is not a SQLite database: correct its path" },
};

/**
 * Whether a transaction is open on a connection.
 *
 * @param db the connection
 */
export function isInTransaction(db: SqliteDatabase): boolean {
  return (db.isTransaction ?? db.inTransaction) === true;
}

/**
 * Whether somebody else has the file locked.
 *
 * @param error whatever the database threw
 */
export function isBusy(error: unknown): boolean {
  const code = resultCode(error);
  return code === SQLITE_BUSY || code === SQLITE_LOCKED;
}

/**
 * Says in one sentence what failed and what to do.
 *
 * @param what was attempted, and on what: `renew lock "x"`
 * @param table the table, quoted
 * @param cause whatever the database threw
 * @returns the error
 */
export function storageError(what: string, table: string, cause: unknown): StorageError {
  const { says, transient = false } = ADVICE[resultCode(cause) ?? 0] ??
    { says: `is refused by SQLite: ${(cause as Error).message}` };
  return new StorageError(`Cannot ${what} as table ${table} ${says}`, { transient, cause });
}

/** The primary result code: `errcode` in `node:sqlite`, `errno` in `bun:sqlite`. */
function resultCode(error: unknown): number | undefined {
  const { errcode, errno, message } = error as {
    readonly errcode?: unknown;
    readonly errno?: unknown;
    readonly message?: unknown;
  };
  const code = errcode ?? errno;
  if (typeof code === "number") return code & 0xff;
  // Deno leaves the code out where preparing fails; this is the text of sqlite3_errstr().
  return message === "database is locked" ? SQLITE_BUSY : undefined;
}
