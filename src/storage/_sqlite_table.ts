/**
 * The table of records in a SQLite file.
 *
 * @module
 */
import type { SqliteDatabase, SqliteStatement } from "./_sqlite_database.ts";

/** All prepared when the table is there. */
interface Statements {
  readonly read: SqliteStatement;
  readonly insert: SqliteStatement;
  readonly update: SqliteStatement;
  readonly purge: SqliteStatement;
}

const HOUR_MS = 3_600_000;

/** A table with one row for each lock, made when it is first used. */
export class SqliteTable {
  /** Its name in double quotes. */
  readonly quoted: string;

  readonly #db: SqliteDatabase;
  readonly #index: string;
  #prepared: Statements | undefined;

  /**
   * Does nothing yet.
   *
   * @param db the storage's own connection
   * @param name the name of the table
   */
  constructor(db: SqliteDatabase, name: string) {
    this.#db = db;
    this.quoted = quoteIdentifier(name);
    this.#index = `${name}_retain_until_ms`;
  }

  /**
   * Reads what is stored.
   *
   * @param name the lock
   * @returns the text, or `null`
   */
  read(name: string): string | null {
    return valueOf(this.#statements.read.get(name));
  }

  /**
   * Reads what is stored through another connection.
   *
   * @param db the connection
   * @param name the lock
   * @returns the text, or `null`
   */
  readOn(db: SqliteDatabase, name: string): string | null {
    return valueOf(db.prepare(this.#readSql()).get(name));
  }

  /**
   * Writes, within a transaction. A new row makes room: two that are out of use are deleted.
   *
   * @param name the lock
   * @param value the text
   * @param retainUntilMs from when on it is out of use, in milliseconds since the epoch
   * @param nowMs what time it is, in milliseconds since the epoch
   */
  write(name: string, value: string, retainUntilMs: number, nowMs: number): void {
    const { update, insert, purge } = this.#statements;
    // Rounded up, so that most renewals leave the index alone.
    const untilMs = (Math.floor(retainUntilMs / HOUR_MS) + 1) * HOUR_MS;
    if (update.get(value, untilMs, name)) return;
    insert.run(name, value, untilMs);
    purge.run(nowMs);
  }

  get #statements(): Statements {
    return this.#prepared ??= this.#prepare();
  }

  #prepare(): Statements {
    const table = this.quoted;
    // IF NOT EXISTS alone would wait for writers, also where there is nothing to do.
    const made = this.#db.prepare("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?");
    if (!made.get(this.#index)) {
      this.#db.prepare(
        `CREATE TABLE IF NOT EXISTS ${table} ` +
          `(name TEXT PRIMARY KEY, value TEXT NOT NULL, retain_until_ms INTEGER NOT NULL)`,
      ).run();
      this.#db.prepare(
        `CREATE INDEX IF NOT EXISTS ${quoteIdentifier(this.#index)} ON ${table} (retain_until_ms)`,
      ).run();
    }
    return {
      read: this.#db.prepare(this.#readSql()),
      insert: this.#db.prepare(`INSERT INTO ${table} VALUES (?, ?, ?)`),
      update: this.#db.prepare(
        `UPDATE ${table} SET value = ?, retain_until_ms = ? WHERE name = ? RETURNING 1`,
      ),
      purge: this.#db.prepare(
        `DELETE FROM ${table} WHERE name IN (` +
          `SELECT name FROM ${table} WHERE retain_until_ms < ? ORDER BY retain_until_ms LIMIT 2)`,
      ),
    };
  }

  #readSql(): string {
    return `SELECT value FROM ${this.quoted} WHERE name = ?`;
  }
}

function valueOf(row: unknown): string | null {
  return (row as { readonly value: string } | null | undefined)?.value ?? null;
}

function quoteIdentifier(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
