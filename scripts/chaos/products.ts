/**
 * Every storage that is put to the test, and how a worker connects to it. Libraries are loaded when they are
 * needed, because a worker that is killed is replaced at once.
 *
 * @module
 */
import type { ServiceName } from "../services.ts";
import type { Connect } from "./client.ts";

/** A storage. */
export interface Product {
  /** The server that it needs; absent for a file. */
  readonly service?: ServiceName | undefined;
  /** Whether the data survive a crash of the server. */
  readonly persist: boolean;
  /** What is in front of the server. */
  readonly front?: "upstash" | "mongo" | undefined;
  /** Who keeps stale writes out. */
  readonly fence: string;
  /** Loads what it takes to connect. */
  readonly load: () => Promise<Connect>;
}

const files = () => import("./client_files.ts");
const redis = () => import("./client_redis.ts");
const servers = () => import("./client_servers.ts");

/** By name. */
export const PRODUCTS: Readonly<Record<string, Product>> = {
  "deno-kv": {
    persist: true,
    fence: "fencedCommit",
    load: async () => (await files()).connectDenoKv,
  },
  "sqlite": {
    persist: true,
    fence: "fenceCheck",
    load: async () => (await files()).connectSqlite,
  },
  "redis-ioredis": {
    service: "redis",
    persist: false,
    fence: "fencedExec",
    load: async () => (await redis()).connectByIoredis,
  },
  "redis-node-redis": {
    service: "redis",
    persist: false,
    fence: "fencedExec",
    load: async () => (await redis()).connectByNodeRedis,
  },
  "redis-aof": {
    service: "redis",
    persist: true,
    fence: "fencedExec",
    load: async () => (await redis()).connectByEither,
  },
  "upstash": {
    service: "redis",
    persist: true,
    front: "upstash",
    fence: "fencedExec",
    load: async () => (await redis()).connectUpstash,
  },
  "postgres": {
    service: "postgres",
    persist: true,
    fence: "fenceCheck",
    load: async () => (await import("./client_postgres.ts")).connectPostgres,
  },
  "dynamodb": {
    service: "dynamodb",
    persist: true,
    fence: "fenceCheck",
    load: async () => (await servers()).connectDynamoDb,
  },
  "mongodb": {
    service: "mongo",
    persist: true,
    front: "mongo",
    fence: "the resource",
    load: async () => (await servers()).connectMongoDb,
  },
  "etcd": {
    service: "etcd",
    persist: true,
    fence: "the resource",
    load: async () => (await servers()).connectEtcd,
  },
};
