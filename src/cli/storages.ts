/**
 * The storages, by the scheme of their URL.
 *
 * @module
 */
import { openKvFile, openKvRemote, openSqlite } from "./open_embedded.ts";
import { openDynamoDb, openMongoDb, openPostgres, openRedis, openUpstash } from "./open_servers.ts";
import type { Open } from "./opened.ts";

/** What can be opened, by what the URL begins with. */
export const STORAGES: Readonly<Record<string, Open>> = {
  "kv:": openKvFile,
  "kv+https:": openKvRemote,
  "kv+http:": openKvRemote,
  "redis:": openRedis,
  "rediss:": openRedis,
  "upstash+https:": openUpstash,
  "upstash+http:": openUpstash,
  "postgres:": openPostgres,
  "postgresql:": openPostgres,

  "mongodb:": openMongoDb,
  "mongodb+srv:": openMongoDb,
  "dynamodb:": openDynamoDb,
  "sqlite:": openSqlite,
};
