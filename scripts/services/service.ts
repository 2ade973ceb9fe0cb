/**
 * Runs one real server for a test, a benchmark or a chaos run: on loopback, in a temporary
 * folder, ended by its own process id, and never outliving the process that started it.
 *
 * Only Node's modules are used, so that Deno, Bun and Node scripts can all start servers.
 *
 * @module
 */

import { type ChildProcess, spawn, type SpawnOptions, spawnSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
} from "node:fs";
import { chown, mkdir, mkdtemp, rm } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { ServiceUnavailable } from "./install.ts";

/** A running server. */
export interface Service extends AsyncDisposable {
  /** What a client connects to. */
  readonly url: string;
  readonly host: "127.0.0.1";
  readonly port: number;
  /** The id of the server's process; another one after a restart. */
  readonly pid: number;
  /** Its temporary folder. */
  readonly folder: string;
  /** Ends the server and removes its temporary folder; a second call does nothing. */
  stop(): Promise<void>;
  /** Ends the server at once (SIGKILL) and keeps its folder, as a crash would. */
  kill(): void;
  /** Suspends the server (SIGSTOP): connections stay open, and nothing answers. */
  freeze(): void;
  /** Lets a frozen server go on (SIGCONT). */
  thaw(): void;
  /** Starts the server again on the same port, with empty data unless it is to `persist`. */
  restart(): Promise<void>;
}

/** Options of every start function. */
export interface ServiceOptions {
  /** Keeps the data over `restart()`, also after `kill()`. @default {false} */
  readonly persist?: boolean | undefined;
  /** More arguments for the server's command line. */
  readonly args?: readonly string[] | undefined;
}

/** Where one server runs. */
export interface Place {
  /** What `install` returned: the path of a program or of a package. */
  readonly program: string;
  /** The temporary folder of this server, and in it the folder for the data. */
  readonly folder: string;
  readonly data: string;
  readonly port: number;
  readonly peerPort: number;
  readonly persist: boolean;
}

/** What has to be known about a product to run it. */
export interface ServiceSpec {
  readonly name: string;
  /** Finds or installs the server; throws `ServiceUnavailable` where it cannot be had. */
  install(): Promise<string>;
  url(port: number): string;
  command(place: Place): readonly string[];
  /** Fills an empty data folder before the server starts. */
  initialize?(place: Place): Promise<void>;
  /** Frees what a killed server holds outside its folder, before its data is removed. */
  cleanUp?(place: Place): void;
  /** Whether the server on `port` answers requests; may reject while it does not. */
  isReady(port: number): Promise<boolean>;
  readonly env?: Readonly<Record<string, string>>;
  /** The signal that ends the server cleanly. @default {"SIGTERM"} */
  readonly stopSignal?: "SIGTERM" | "SIGINT";
  /** The server refuses to run as root. @default {false} */
  readonly needsUser?: boolean;
}

/** The user and group "nobody", which owns nothing. */
const NOBODY = 65534;
const START_LIMIT_MS = 60_000;
const STOP_LIMIT_MS = 5_000;
const CLASH_ATTEMPTS = 5;
const CLASH = /address (is )?already in use|address in use|pre-existing shared memory/i;

/** The server lost a race for its port, or for what its killed predecessor still held. */
class Clash extends Error {}

/** Installs the product if need be, starts one server of it and waits until that answers. */
export async function startService(
  spec: ServiceSpec,
  options: ServiceOptions = {},
): Promise<Service> {
  const program = await spec.install();
  if (spec.needsUser && isRoot() && !hasSetpriv()) {
    throw new ServiceUnavailable(
      `Cannot start "${spec.name}" as it refuses to run as root: install the package util-linux (setpriv)`,
    );
  }
  removeOrphanFolders();
  const folder = await mkdtemp(join(tmpdir(), `${folderPrefix()}${process.pid}-${spec.name}-`));
  const service = new RunningService(spec, program, folder, options);
  endWithThisProcess(service);
  try {
    await service.launch({ mayMove: true });
  } catch (error) {
    await service.stop();
    throw error;
  }
  return service;
}

class RunningService implements Service {
  readonly host = "127.0.0.1";
  readonly #spec: ServiceSpec;
  readonly #args: readonly string[];
  #place: Place;
  #child: ChildProcess | undefined;
  #exited: Promise<void> = Promise.resolve();

  constructor(spec: ServiceSpec, program: string, folder: string, options: ServiceOptions) {
    const { persist = false, args = [] } = options;
    this.#spec = spec;
    this.#args = args;
    this.#place = { program, folder, data: join(folder, "data"), port: 0, peerPort: 0, persist };
  }

  get url(): string {
    return this.#spec.url(this.#place.port);
  }

  get port(): number {
    return this.#place.port;
  }

  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  get folder(): string {
    return this.#place.folder;
  }

  /** Starts the process, on other ports after a clash if it `mayMove`. */
  async launch({ mayMove }: { readonly mayMove: boolean }): Promise<void> {
    for (let attempt = 1;; attempt++) {
      if (mayMove) {
        this.#place = { ...this.#place, port: await freePort(), peerPort: await freePort() };
      }
      try {
        return await this.#launchOnce();
      } catch (error) {
        await this.#end();
        if (!(error instanceof Clash) || attempt === CLASH_ATTEMPTS) throw error;
        await sleep(200);
      }
    }
  }

  async #launchOnce(): Promise<void> {
    const { data, folder, persist } = this.#place;
    if (!persist) {
      this.#spec.cleanUp?.(this.#place);
      await rm(data, { recursive: true, force: true });
    }
    if (!existsSync(data)) {
      await mkdir(data);
      if (this.#spec.needsUser && isRoot()) {
        for (const path of [folder, data]) await chown(path, NOBODY, NOBODY);
      }
      await this.#spec.initialize?.(this.#place);
    }
    this.#spawn();
    const deadline = performance.now() + START_LIMIT_MS;
    while (performance.now() < deadline) {
      // A rejection says "not yet": the connection was refused, or nothing answered in time.
      const isReady = await this.#spec.isReady(this.port).catch(() => false);
      if (this.#child === undefined) throw this.#failure("it must not exit before it is ready");
      if (isReady) return;
      await sleep(10);
    }
    throw this.#failure(`it must be ready within ${START_LIMIT_MS} ms`);
  }

  #spawn(): void {
    const { folder } = this.#place;
    // A file, not a pipe: nobody has to read it, and a test runner sees no open resource.
    const log = openSync(join(folder, "log"), "w");
    const child = launch([...this.#spec.command(this.#place), ...this.#args], {
      asNobody: this.#spec.needsUser ?? false,
      cwd: folder,
      env: { ...process.env, ...this.#spec.env },
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    this.#child = child;
    this.#exited = new Promise((resolve) => {
      const settle = () => {
        this.#child = undefined;
        resolve();
      };
      child.once("exit", settle);
      child.once("error", settle);
    });
  }

  #failure(constraint: string): Error {
    const log = readFileSync(join(this.#place.folder, "log"), "utf8").trim();
    const said = log.split("\n").slice(-5).join("\n");
    const message = `Cannot start "${this.#spec.name}" as ${constraint}: its log ends with ${said}`;
    return CLASH.test(log) ? new Clash(message) : new Error(message);
  }

  async stop(): Promise<void> {
    await this.#end();
    this.#spec.cleanUp?.(this.#place);
    await rm(this.#place.folder, { recursive: true, force: true, maxRetries: 5 });
    running.delete(this);
  }

  kill(): void {
    this.#signal("SIGKILL");
  }

  freeze(): void {
    this.#signal("SIGSTOP");
  }

  thaw(): void {
    this.#signal("SIGCONT");
  }

  async restart(): Promise<void> {
    await this.#end();
    await this.launch({ mayMove: false });
  }

  /** The last resort, when our own process ends: synchronous. */
  endNow(): void {
    this.kill();
    this.#spec.cleanUp?.(this.#place);
    rmSync(this.#place.folder, { recursive: true, force: true, maxRetries: 5 });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #end(): Promise<void> {
    if (this.#child === undefined) return;
    // A frozen process would see the stop signal only after it is thawed.
    this.thaw();
    sendSignal(this.pid, this.#spec.stopSignal ?? "SIGTERM");
    const patience = setTimeout(() => this.kill(), STOP_LIMIT_MS);
    await this.#exited;
    clearTimeout(patience);
  }

  /** Signals the server and its own children (Postgres has a process for each connection). */
  #signal(signal: NodeJS.Signals): void {
    if (this.#child === undefined) return;
    for (const pid of withDescendants(this.pid)) sendSignal(pid, signal);
  }
}

const running = new Set<RunningService>();
let isHooked = false;

/** Ends `service` when this process does; a process that is killed leaves that to `setpriv`. */
function endWithThisProcess(service: RunningService): void {
  running.add(service);
  if (isHooked) return;
  isHooked = true;
  const endAll = () => running.forEach((one) => one.endNow());
  process.on("exit", endAll);
  // `deno test` ends a test file with this event and not with "exit".
  (globalThis as Partial<EventTarget>).addEventListener?.("unload", endAll);
}

interface LaunchOptions extends SpawnOptions {
  /** Gives up root, for a program that refuses it. */
  readonly asNobody: boolean;
}

/** Spawns `command` such that the kernel ends it when we end, however we do (Linux). */
export function launch(command: readonly string[], options: LaunchOptions): ChildProcess {
  const user = options.asNobody && isRoot()
    ? [`--reuid=${NOBODY}`, `--regid=${NOBODY}`, "--clear-groups"]
    : [];
  // setpriv becomes the command (exec), so the process id is that of the server itself.
  const prefix = hasSetpriv() ? ["setpriv", "--pdeathsig", "KILL", ...user, "--"] : [];
  const [program, ...args] = [...prefix, ...command] as [string, ...string[]];
  return spawn(program, args, options);
}

let setpriv: boolean | undefined;

function hasSetpriv(): boolean {
  setpriv ??= spawnSync("setpriv", ["--pdeathsig", "KILL", "--", "true"]).status === 0;
  return setpriv;
}

function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** A process and all its descendants; only itself where there is no `/proc` to ask. */
function withDescendants(pid: number): number[] {
  const list = `/proc/${pid}/task/${pid}/children`;
  if (!existsSync(list)) return [pid];
  const children = readFileSync(list, "utf8").split(" ").filter(Boolean).map(Number);
  return [pid, ...children.flatMap(withDescendants)];
}

/** Returns whether the process was there to be signalled (0 only asks). */
function sendSignal(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return false;
    throw error;
  }
}

/** The host is in the name because containers may share a folder and not the process ids. */
function folderPrefix(): string {
  return `holdfast-${hostname()}-`;
}

/** Removes what processes left that were killed before they could clean up. */
function removeOrphanFolders(): void {
  const [parent, prefix] = [tmpdir(), folderPrefix()];
  for (const name of readdirSync(parent).filter((one) => one.startsWith(prefix))) {
    const owner = Number.parseInt(name.slice(prefix.length), 10);
    if (!(owner > 0) || sendSignal(owner, 0)) continue;
    const folder = join(parent, name);
    for (const pid of processesIn(folder)) sendSignal(pid, "SIGKILL");
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

/**
 * The processes that work in `folder`. The kernel ends a server with its owner, but not the
 * server's own children, and frozen ones cannot notice that they are alone.
 */
function processesIn(folder: string): number[] {
  if (!existsSync("/proc/self/cwd")) return [];
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number);
  return pids.filter((pid) => {
    try {
      return readlinkSync(`/proc/${pid}/cwd`).startsWith(`${folder}/`);
    } catch (error) {
      // It ended meanwhile, or it is another user's.
      const code = (error as NodeJS.ErrnoException).code ?? "";
      if (["ENOENT", "ESRCH", "EACCES", "EPERM"].includes(code)) return false;
      throw error;
    }
  });
}

/**
 * A port on loopback that nobody listens on.
 *
 * It is below the range from which systems take ports for outgoing connections, so that none of
 * those can sit on it while a server is down for a restart.
 */
export async function freePort(): Promise<number> {
  while (true) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    if (await isFree(port)) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}

/** Sends `request` to a port on loopback; resolves with the reply as soon as it matches `until`. */
export function exchange(
  port: number,
  request: string | Uint8Array,
  until: RegExp,
): Promise<string> {
  return new Promise((resolve, reject) => {
    let reply = "";
    let isDone = false;
    let failure = new Error(`Port ${port} closed the connection`);
    const socket = connect({ port, host: "127.0.0.1" });
    const look = () => {
      isDone = until.test(reply);
      if (isDone) socket.destroy();
    };
    socket.setTimeout(1_000, () => socket.destroy(new Error(`Port ${port} does not answer`)));
    socket.once("connect", () => {
      socket.write(request);
      look();
    });
    socket.on("data", (bytes) => {
      reply += bytes.toString("latin1");
      look();
    });
    socket.once("error", (error) => failure = error);
    socket.once("close", () => isDone ? resolve(reply) : reject(failure));
  });
}
