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
import { PostgresWaker } from "./_postgres_wake.ts";

/** The version of a record; of an absent one, when it was seen to be absent, by the server's clock. */
export type PostgresVersion = { readonly id: string } | { readonly absentAtUs: string };

/** The two tables, as a register. */
export class PostgresRegister implements Register<PostgresVersion> {
  /** Present if the client can listen. */
  readonly watch?: (name: string, wake: (next?: string) => void) => Watch;

  readonly #client: PostgresClient;
  readonly #statements: Statements;
  readonly #waker: PostgresWaker | undefined;

  /**
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
    const listen = client.listen?.bind(client);
    if (!listen) return;
    const { clock = systemClock, entropy = systemEntropy } = sources;
    const notify = (channel: string, payload: string): Promise<unknown> =>
      client.query(statements.notify, [channel, payload]);
    const waker = new PostgresWaker(statements.records, listen, notify, { clock, entropy });
    this.#waker = waker;
    this.watch = (name, wake) => waker.watch(name, wake);
  }

  async read(name: string): Promise<Versioned<PostgresVersion>> {
    const what = `read key "${name}"`;
    const row = await this.#one(what, this.#statements.read, [name]);
    if (row["is_replica"] !== false) {
      throw new StorageError(
        `Cannot ${what} as the server is a read-only replica: connect to the primary`,
        { transient: true },
      );
    }
    const { version, value, now_us: nowUs } = row as Record<string, string | null>;
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
    const { channel = "" } = this.#waker ?? {};
    const values = [
      name,
      "id" in version ? version.id : version.absentAtUs,
      next.value,
      `${next.fence}`,
      `${next.retainUntilMs}`,
      arrayLiteral(change.granted.map(({ fence }) => fence)),
      arrayLiteral(change.granted.map(({ token }) => token!)),
      channel,
      next.wake === undefined ? "" : this.#waker?.payload(name, next.wake) ?? "",
    ];
    const { create, replace } = this.#statements;
    try {
      const row = "id" in version
        ? await this.#one(`write key "${name}"`, replace, [
          ...values,
          arrayLiteral(change.ended.map(({ fence }) => fence)),
        ])
        : await this.#one(`write key "${name}"`, create, values);
      return typeof row["version"] === "string"
        ? { ok: true, version: { id: row["version"] } }
        : { ok: false, blocked: row["is_blocked"] === true };
    } catch (error) {
      const why = error instanceof StorageError ? contention(error.cause) : undefined;
      if (why === undefined) throw error;
      return { ok: false, blocked: why === "blocked" };
    }
  }

  key(name: string): string {
    return name;
  }

  /** The row of a statement that has one. */
  async #one(what: string, text: string, values: readonly string[]): Promise<PostgresRow> {
    let rows: readonly PostgresRow[];
    try {
      rows = await this.#client.query(text, values);
    } catch (cause) {
      const { records, guards } = this.#statements;
      throw storageError(what, `${records} and ${guards}`, cause);
    }
    return rows[0]!;
  }
}

/** Fences are digits and tokens letters, digits and hyphens: nothing in them needs quotes. */
function arrayLiteral(items: readonly (string | number)[]): string {
  return `{${items.join(",")}}`;
}
