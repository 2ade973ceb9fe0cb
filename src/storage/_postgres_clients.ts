/**
 * How Postgres is asked by way of the clients that there are. Each adapter takes a client that the user made
 * and will close; only the methods named here are called, so no client is imported.
 *
 * @module
 */
import { dispose } from "../core/disposable.ts";

/** A row of an answer. */
export type PostgresRow = Readonly<Record<string, unknown>>;

/** What a subscription tells. */
export interface ListenHandlers {
  /** It has begun, or begun again. */
  readonly begun: () => void;
  /** It is over, and does not begin again by itself. */
  readonly lost: () => void;
  /** A notification came. */
  readonly notified: (payload: string) => void;
}

/** What the storage needs of a client. */
export interface PostgresClient {
  /**
   * Runs one statement, outside any transaction of the user's.
   *
   * @returns the rows; rejects with the client's own error, whose `code` is the SQLSTATE if there is one
   */
  query(text: string, values: readonly string[]): Promise<readonly PostgresRow[]>;
  /**
   * Subscribes to a channel, whose name needs no quotes. Absent if notifications cannot be had.
   *
   * @returns disposing it ends the subscription
   */
  listen?(channel: string, handlers: ListenHandlers): Disposable;
}

/** What is called of a `sql` of the package `postgres`. */
export interface PostgresJs {
  /** Runs a text with parameters. */
  unsafe(
    text: string,
    values?: string[],
    options?: { prepare?: boolean },
  ): PromiseLike<readonly PostgresRow[]>;
  /** Subscribes to a channel, on a connection of its own. */
  listen(
    channel: string,
    onNotify: (payload: string) => void,
    onListen?: () => void,
  ): Promise<{ unlisten(): Promise<void> }>;
}

/** What is called of a `Client` of the package `pg`. */
export interface NodePgClient {
  /** Runs a text with parameters. */
  query(text: string, values?: string[]): Promise<{ readonly rows: readonly PostgresRow[] }>;
  /** Adds a listener. */
  on(event: string, listener: (message: { payload?: string | undefined }) => void): unknown;
  /** Removes a listener. */
  removeListener(
    event: string,
    listener: (message: { payload?: string | undefined }) => void,
  ): unknown;
}

/** What is called of a `Pool` of the package `pg`. */
export interface NodePgPool {
  /** Runs a text with parameters on any connection. */
  query(text: string, values?: string[]): Promise<{ readonly rows: readonly PostgresRow[] }>;
  /** Takes a connection. */
  connect(): Promise<NodePgClient & { release(destroy?: boolean): void }>;
  /** Tells a pool from a client. */
  readonly totalCount: number;
}

/** What is called of a `PGlite`. */
export interface PGliteDatabase {
  /** Runs a text with parameters. */
  query(text: string, values?: string[]): Promise<{ readonly rows: readonly PostgresRow[] }>;
  /** Subscribes to a channel. */
  listen(channel: string, onNotify: (payload: string) => void): Promise<() => Promise<void>>;
}

/** Options of an adapter. */
export interface ListenOptions {
  /** Whether releases wake waiters by `LISTEN` and `NOTIFY`. */
  readonly listen?: boolean | undefined;
}

/**
 * Adapts a `sql` of the package `postgres`. It prepares statements unless `sql` was made with
 * `prepare: false`, which costs a second round trip for each. While somebody waits it listens on a
 * connection of its own, which `postgres` keeps until `sql.end()`; a transaction pooler that swallows
 * notifications is noticed, and waiters poll.
 *
 * @example
 * ```ts ignore
 * import postgres from "postgres";
 * import { PostgresStorage, postgresJs } from "@holdfast/lock/postgres";
 *
 * const sql = postgres("postgres://localhost/app", { fetch_types: false });
 * const storage = new PostgresStorage(postgresJs(sql));
 * ```
 *
 * @param sql the client; its pool needs a connection beside those of fenced transactions
 * @param options `listen`: true unless given
 * @returns the client, as the storage needs it
 */
export function postgresJs(sql: PostgresJs, options: ListenOptions = {}): PostgresClient {
  const query: PostgresClient["query"] = async (text, values) =>
    await sql.unsafe(text, [...values], { prepare: true });
  if (options.listen === false) return { query };
  // Where it could not connect, `postgres` goes on trying and has nothing to end that by: it is kept.
  const kept = new Map<string, { handlers?: ListenHandlers | undefined; hasBegun: boolean }>();
  return {
    query,
    listen(channel, handlers) {
      const route = kept.get(channel) ?? { hasBegun: false };
      route.handlers = handlers;
      const end = { [dispose]: () => void (route.handlers = undefined) };
      if (kept.has(channel)) {
        if (route.hasBegun) queueMicrotask(() => route.handlers?.begun());
        return end;
      }
      const request = sql.listen(channel, (payload) => route.handlers?.notified(payload), () => {
        route.hasBegun = true;
        route.handlers?.begun();
      });
      request.catch(() => kept.set(channel, route));
      return {
        [dispose]() {
          end[dispose]();
          request.then((subscription) => subscription.unlisten()).catch(() => {});
        },
      };
    },
  };
}

/**
 * Adapts a `Pool` or a connected `Client` of the package `pg`. A single `Client` must not be the one that
 * fenced transactions run on: the renewals would be part of them.
 *
 * @example
 * ```ts ignore
 * import { Pool } from "pg";
 * import { nodePg, PostgresStorage } from "@holdfast/lock/postgres";
 *
 * const storage = new PostgresStorage(nodePg(new Pool(), { listen: true }));
 * ```
 *
 * @param db the client; a pool needs a connection beside those of fenced transactions
 * @param options `listen`: false unless given, because a pool gives one more of its connections to it
 *   while somebody waits
 * @returns the client, as the storage needs it
 */
export function nodePg(db: NodePgPool | NodePgClient, options: ListenOptions = {}): PostgresClient {
  const query: PostgresClient["query"] = async (text, values) =>
    (await db.query(text, [...values])).rows;
  if (!options.listen) return { query };
  return {
    query,
    listen(channel, { begun, lost, notified }) {
      let isOver = false;
      let connected: NodePgClient | undefined;
      const request = "totalCount" in db ? db.connect() : Promise.resolve(db);
      const onNotification = ({ payload }: { payload?: string | undefined }): void =>
        notified(payload ?? "");
      const end = (client: NodePgClient, isBroken: boolean): void => {
        client.removeListener("notification", onNotification);
        client.removeListener("error", onEnd);
        client.removeListener("end", onEnd);
        if ("release" in client) (client as { release(destroy: boolean): void }).release(isBroken);
      };
      const onEnd = (): void => {
        if (isOver) return;
        isOver = true;
        lost();
        // Where there never was a connection, there is none to end.
        request.then((client) => end(client, true)).catch(() => {});
      };
      request.then(async (client) => {
        if (isOver) return end(client, false);
        connected = client;
        client.on("notification", onNotification);
        client.on("error", onEnd);
        client.on("end", onEnd);
        await client.query(`LISTEN ${channel}`);
        if (!isOver) begun();
      }).catch(onEnd);
      return {
        [dispose]() {
          if (isOver) return;
          isOver = true;
          // A connection that is still to come is given back above: twice would be one too many, and take
          // it away from whoever has it by then.
          const client = connected;
          client?.query(`UNLISTEN ${channel}`).then(
            () => end(client, false),
            () => end(client, true),
          );
        },
      };
    },
  };
}

/**
 * Adapts a PGlite, which is one connection in this process: a transaction of the user's keeps the renewals
 * waiting, so it has to be shorter than the lease.
 *
 * @example
 * ```ts
 * import { PGlite } from "@electric-sql/pglite";
 * import { Lock } from "@holdfast/lock";
 * import { pglite, PostgresStorage } from "@holdfast/lock/postgres";
 *
 * const db = new PGlite();
 * const storage = new PostgresStorage(pglite(db));
 * await storage.migrate();
 * const lock = new Lock({ storage, name: "nightly-report" });
 * await lock.with(async () => {});
 * await db.close();
 * ```
 *
 * @param db the database
 * @returns the client, as the storage needs it
 */
export function pglite(db: PGliteDatabase): PostgresClient {
  return {
    query: async (text, values) => (await db.query(text, [...values])).rows,
    listen(channel, { begun, lost, notified }) {
      let isOver = false;
      const request = db.listen(channel, (payload) => isOver || notified(payload));
      request.then(() => isOver || begun(), () => isOver || lost());
      return {
        [dispose]() {
          isOver = true;
          // A database that was closed meanwhile has nothing to end.
          request.then((unlisten) => unlisten()).catch(() => {});
        },
      };
    },
  };
}
