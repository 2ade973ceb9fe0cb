/**
 * The two tables of Postgres as a register.
 *
 * @module
 */
import { type Clock, systemClock } from "../core/clock.ts";
import { type Entropy, systemEntropy } from "../core/entropy.ts";
import { StorageError } from "../core/errors.ts";
import type { Change, Register, Versioned, Write, Written } from "../core/register.ts";
import type { Watch } from "../core/storage.ts";
import type { PostgresClient, PostgresRow } from "./_postgres_clients.ts";
import { contention, storageError } from "./_postgres_errors.ts";
import type { Statements } from "./_postgres_sql.ts";
import { channelOf, PostgresWaker, wakeUp } from "./_postgres_wake.ts";

/** The version of a record; of an absent one, when it was seen to be absent, by the server's clock. */
export type PostgresVersion = { readonly id: string } | { readonly absentAtUs: string };

/** A record whose holdings stay the same. */
export interface Prolonged {
  /** The lock. */
  readonly name: string;
  /** The version that it was read with. */
  readonly version: string;
  /** Its text. */
  readonly value: string;
  /** From when on it may be deleted, in milliseconds since the epoch. */
  readonly retain_until_ms: number;
}

/** The two tables, as a register. */
export class PostgresRegister implements Register<PostgresVersion> {
  /** Present if the client can listen. */
  readonly watch?: (name: string, wake: (next?: string) => void) => Watch;

  readonly #client: PostgresClient;
  readonly #statements: Statements;
  readonly #channel: string;

  /**
   * Sends nothing yet.
   *
   * @param client asks
   * @param statements what to say
   * @param sources time and jitter
   */
  constructor(
    client: PostgresClient,
    statements: Statements,
    sources: { readonly clock?: Clock | undefined; readonly entropy?: Entropy | undefined },
  ) {
    this.#client = client;
    this.#statements = statements;
    this.#channel = channelOf(statements.records);
    const listen = client.listen?.bind(client);
    if (!listen) return;
    const { clock = systemClock, entropy = systemEntropy } = sources;
    const notify = (channel: string, payload: string): Promise<unknown> =>
      client.query(statements.notify, [channel, payload]);
    const waker = new PostgresWaker(this.#channel, { listen, notify }, { clock, entropy });
    this.watch = (name, wake) => waker.watch(name, wake);
  }

  async read(name: string): Promise<Versioned<PostgresVersion>> {
    const what = `read key "${name}"`;
    const [row] = onPrimary(what, await this.#ask(what, this.#statements.read, [name]));
    const { version, value, us: nowUs } = row as Record<string, string | null>;
    return {
      value: value ?? null,
      version: version ? { id: version } : { absentAtUs: nowUs! },
      nowUs: Number(nowUs),
    };
  }

  async write(
    name: string,
    next: Write,
    version: PostgresVersion,
    change: Change,
  ): Promise<Written<PostgresVersion>> {
    const values = [
      name,
      "id" in version ? version.id : version.absentAtUs,
      next.value,
      `${next.fence}`,
      `${next.retainUntilMs}`,
      arrayLiteral(change.granted.map(({ fence }) => fence)),
      arrayLiteral(change.granted.map(({ token }) => token!)),
      // Also where this client does not listen, because others may.
      this.#channel,
      next.wake === undefined ? "" : wakeUp(name, next.wake),
    ];
    const { create, replace } = this.#statements;
    const ended = arrayLiteral(change.ended.map(({ fence }) => fence));
    const what = `write key "${name}"`;
    try {
      const [row] = "id" in version
        ? await this.#ask(what, replace, [...values, ended])
        : await this.#ask(what, create, values);
      return typeof row?.["version"] === "string"
        ? { ok: true, version: { id: row["version"] } }
        : { ok: false, blocked: row?.["blocked"] === "true" };
    } catch (error) {
      return { ok: false, blocked: contentionOf(error) === "blocked" };
    }
  }

  /**
   * Reads many records.
   *
   * @param names the locks
   * @returns a row for each record that is there
   */
  async readAll(names: readonly string[]): Promise<readonly PostgresRow[]> {
    const what = `read ${names.length} keys`;
    return onPrimary(
      what,
      await this.#ask(what, this.#statements.readAll, [JSON.stringify(names)]),
    );
  }

  /**
   * Writes many records, each only if its version is unchanged, and none that grants or ends a holding.
   *
   * @param records what is to be stored
   * @returns the names of those that were written
   */
  async writeAll(records: readonly Prolonged[]): Promise<unknown[]> {
    try {
      const what = `write ${records.length} keys`;
      const json = JSON.stringify(records);
      const rows = await this.#ask(what, this.#statements.replaceAll, [json]);
      return rows.map(({ name }) => name);
    } catch (error) {
      contentionOf(error);
      return [];
    }
  }

  key(name: string): string {
    return name;
  }

  async #ask(
    what: string,
    text: string,
    values: readonly string[],
  ): Promise<readonly PostgresRow[]> {
    try {
      return await this.#client.query(text, values);
    } catch (cause) {
      const { records, guards } = this.#statements;
      throw storageError(what, `${records} and ${guards}`, cause);
    }
  }
}

/** A replica may lag, and what it says would be believed. */
function onPrimary(what: string, rows: readonly PostgresRow[]): readonly PostgresRow[] {
  if (rows.every((row) => row["replica"] === "false")) return rows;
  throw new StorageError(
    `Cannot ${what} as the server is a read-only replica: connect to the primary`,
    { transient: true },
  );
}

/** Why a write was not applied; throws again what does not say that. */
function contentionOf(error: unknown): "conflict" | "blocked" {
  const why = error instanceof StorageError ? contention(error.cause) : undefined;
  if (why === undefined) throw error;
  return why;
}

/** Fences are digits and tokens letters, digits and hyphens: nothing in them needs quotes. */
function arrayLiteral(items: readonly (string | number)[]): string {
  return `{${items.join(",")}}`;
}
