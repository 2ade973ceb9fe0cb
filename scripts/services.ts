/**
 * Real servers for tests, benchmarks and chaos runs.
 *
 * ```sh
 * deno run -A scripts/services.ts install [name ...]   # fetches and builds what is missing
 * deno run -A scripts/services.ts start redis          # runs one until Ctrl-C
 * ```
 *
 * @module
 */

import process from "node:process";
import { ServiceUnavailable } from "./services/install.ts";
import { PRODUCTS, type ServiceName } from "./services/products.ts";
import { type Service, type ServiceOptions, startService } from "./services/service.ts";
import { isRequired } from "./services/with_service.ts";

export { ServiceUnavailable } from "./services/install.ts";
export { freePort, type Service, type ServiceOptions } from "./services/service.ts";
export type { ServiceName } from "./services/products.ts";
export {
  type ServiceTests,
  type TestFunction,
  testsFor,
  withService,
} from "./services/with_service.ts";

/** Starts the product called `name`; throws `ServiceUnavailable` where it cannot be had. */
export function start(name: ServiceName, options?: ServiceOptions): Promise<Service> {
  return startService(PRODUCTS[name], options);
}

/** Starts a `redis-server`. */
export function startRedis(options?: ServiceOptions): Promise<Service> {
  return start("redis", options);
}

/** Starts a cluster of one node that owns all slots, enough to see `CROSSSLOT` errors. */
export function startRedisCluster(options?: ServiceOptions): Promise<Service> {
  return start("redis-cluster", options);
}

/** Starts DynamoDB Local; any region and credentials will do. */
export function startDynamoDb(options?: ServiceOptions): Promise<Service> {
  return start("dynamodb", options);
}

/** Starts Postgres 18 with the superuser `postgres`, who needs no password. */
export function startPostgres(options?: ServiceOptions): Promise<Service> {
  return start("postgres", options);
}

/** Starts `mongod` where it is on `PATH`, else FerretDB on SQLite. */
export function startMongo(options?: ServiceOptions): Promise<Service> {
  return start("mongo", options);
}

/** Starts an etcd of one node. */
export function startEtcd(options?: ServiceOptions): Promise<Service> {
  return start("etcd", options);
}

async function installAll(names: readonly ServiceName[], areRequired: boolean): Promise<void> {
  for (const name of names) {
    const startedMs = performance.now();
    try {
      const path = await PRODUCTS[name].install();
      const seconds = ((performance.now() - startedMs) / 1000).toFixed(1);
      console.log(`${name}: there after ${seconds} s: ${path}`);
    } catch (error) {
      if (!(error instanceof ServiceUnavailable)) throw error;
      console.log(`${name}: unavailable: ${error.message}`);
      if (areRequired || isRequired(name)) process.exitCode = 1;
    }
  }
}

async function runInForeground(name: ServiceName): Promise<void> {
  const service = await start(name);
  console.log(service.url);
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, () => void service.stop().then(() => process.exit(0)));
  }
}

async function main([verb, ...names]: readonly string[]): Promise<void> {
  const known = Object.keys(PRODUCTS) as ServiceName[];
  const chosen = known.filter((name) => names.includes(name));
  if (verb === "install" && chosen.length === names.length) {
    return await installAll(chosen.length > 0 ? chosen : known, chosen.length > 0);
  }
  if (verb === "start" && names.length === 1 && chosen[0] !== undefined) {
    return await runInForeground(chosen[0]);
  }
  console.error(`Usage: services.ts install [name ...] | start name\nNames: ${known.join(", ")}`);
  process.exitCode = 2;
}

if (import.meta.main) await main(process.argv.slice(2));
