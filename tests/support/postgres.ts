/**
 * The clients of Postgres that tests run with, made alike.
 *
 * @module
 */
import { assertEquals, assertRejects } from "@std/assert";
import pg from "pg";
import postgres from "postgres";
import { StorageError } from "../../src/core/errors.ts";
import type { Granted } from "../../src/core/record.ts";
import {
  nodePg,
  type NodePgClient,
  type NodePgPool,
  type PostgresClient,
  postgresJs,
  type PostgresRow,
  PostgresStorage,
} from "../../src/storage/postgres.ts";
import { acquire, token } from "./commands.ts";

/** Runs one statement. */
export type Query = (text: string, values?: readonly string[]) => Promise<readonly PostgresRow[]>;

/** How a transaction is isolated. */
export type Isolation = "READ COMMITTED" | "REPEATABLE READ" | "SERIALIZABLE";

export const ISOLATIONS: readonly Isolation[] = [
  "READ COMMITTED",
  "REPEATABLE READ",
  "SERIALIZABLE",
];

/** A pool of connections, and what the storage makes of it. */
export interface Connected extends AsyncDisposable {
  readonly client: PostgresClient;
  readonly query: Query;
  /** Runs work in a transaction: committed if it resolves, rolled back if it rejects. */
  transact<T>(isolation: Isolation, work: (query: Query) => Promise<T>): Promise<T>;
}

/** What tests decide for a connection. */
export interface ConnectOptions {
  readonly max?: number;
  readonly listen?: boolean;
  /** How `postgres` names what it returns. */
  readonly transform?: typeof postgres.camel;
  /** Run-time parameters of each session. */
  readonly parameters?: Readonly<Record<string, string>>;
}

/** One of the packages that speak to a server. */
export interface Driver {
  readonly name: "postgres" | "pg";
  connect(url: string, options?: ConnectOptions): Connected;
}

const withPostgres: Driver = {
  name: "postgres",
  connect(url, { max = 4, listen = true, parameters = {}, transform } = {}) {
    const sql = postgres(url, {
      max,
      connection: { ...parameters },
      onnotice: () => {},
      ...(transform && { transform }),
    });
    const queryOn = (on: postgres.Sql | postgres.TransactionSql): Query => async (text, values) =>
      await on.unsafe(text, [...values ?? []]);
    return {
      client: postgresJs(sql, { listen }),
      query: queryOn(sql),
      transact: async <T>(isolation: Isolation, work: (query: Query) => Promise<T>) =>
        await sql.begin(`ISOLATION LEVEL ${isolation}`, (tx) => work(queryOn(tx))) as T,
      [Symbol.asyncDispose]: () => sql.end({ timeout: 0.1 }),
    };
  },
};

const withPg: Driver = {
  name: "pg",
  connect(connectionString, { max = 4, listen = true, parameters = {} } = {}) {
    const options = Object.entries(parameters).map(([k, v]) => `-c ${k}=${v.replace(" ", "\\ ")}`);
    const pool: NodePgPool & NodePgClient & { end(): Promise<void> } = new pg.Pool({
      connectionString,
      max,
      options: options.join(" "),
    });
    // Idle connections are lost with their server; without a listener that ends the process.
    pool.on("error", () => {});
    const queryOn = (on: Pick<NodePgPool, "query">): Query => async (text, values) =>
      (await on.query(text, [...values ?? []])).rows;
    return {
      client: nodePg(pool, { listen }),
      query: queryOn(pool),
      async transact(isolation, work) {
        const connection = await pool.connect();
        try {
          await connection.query(`BEGIN ISOLATION LEVEL ${isolation}`);
          const result = await work(queryOn(connection));
          await connection.query("COMMIT");
          connection.release();
          return result;
        } catch (error) {
          await connection.query("ROLLBACK").catch(() => {});
          connection.release(true);
          throw error;
        }
      },
      [Symbol.asyncDispose]: () => pool.end(),
    };
  },
};

/** A single connected `Client` of the package `pg`. */
export async function connectPgClient(url: string): Promise<NodePgClient & AsyncDisposable> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() });
}

export const drivers: readonly Driver[] = [withPostgres, withPg];

/** A client that shows each statement to `onQuery` before it goes on its way, and its rows after. */
export function observed(
  client: PostgresClient,
  onQuery: (text: string, values: readonly string[]) => void | Promise<void>,
): PostgresClient {
  return {
    query: async (text, values) => {
      await onQuery(text, values);
      return await client.query(text, values);
    },
    ...(client.listen && { listen: client.listen.bind(client) }),
  };
}

/** Fails, instead of waiting for a transaction of the test itself. */
export function soon<T>(work: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout>;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("somebody waits for the transaction")), 5000);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Acquires, which must be granted. */
export async function grant(
  storage: PostgresStorage,
  name: string,
  more: Parameters<typeof acquire>[1] = {},
): Promise<Granted & { readonly token: string }> {
  const command = acquire(token(), more);
  const outcome = await storage.execute(name, command);
  assertEquals(outcome.type, "granted");
  return { ...outcome as Granted, token: command.token };
}

/** The message of the storage error that work must fail with, and whether it is transient. */
export async function storageErrorOf(work: Promise<unknown>): Promise<[string, boolean]> {
  const error = await assertRejects(() => work, StorageError);
  return [error.message, error.transient];
}

/** Runs tests with a storage on connections of its own. */
export function openedOn(url: () => string) {
  return async (
    run: (storage: PostgresStorage, connected: Connected) => Promise<void>,
    driver: Driver = withPostgres,
  ): Promise<void> => {
    await using connected = driver.connect(url());
    const storage = new PostgresStorage(connected.client);
    await storage.migrate();
    await run(storage, connected);
  };
}

/** The fences that the guards of a lock have. */
export async function guardsOf({ query }: Connected, name: string): Promise<string[]> {
  const rows = await query(
    "SELECT fence::text FROM holdfast_guard WHERE name = $1 ORDER BY fence",
    [name],
  );
  return rows.map((row) => row["fence"] as string);
}
