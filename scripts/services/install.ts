/**
 * Finds the servers that tests and benchmarks talk to, and fetches or builds the ones that are
 * missing, once per machine, into a cache folder.
 *
 * @module
 */

import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, mkdir, readFile, rename, rm, symlink } from "node:fs/promises";
import { homedir } from "node:os";
import { delimiter, dirname, join, relative } from "node:path";
import process from "node:process";

/** Thrown when a server cannot be had here; the message is one sentence that says what to install. */
export class ServiceUnavailable extends Error {
  override readonly name = "ServiceUnavailable";
}

/** The folder that keeps what was fetched or built: `HOLDFAST_CACHE`, else `~/.cache/holdfast`. */
export function cacheFolder(): string {
  return process.env["HOLDFAST_CACHE"] || join(homedir(), ".cache", "holdfast");
}

/** The path of a program that is on `PATH` or was built into the cache folder. */
export function findProgram(program: string): string | undefined {
  const folders = (process.env["PATH"] ?? "").split(delimiter).filter((folder) => folder !== "");
  return [...folders, join(cacheFolder(), "bin")]
    .map((folder) => join(folder, program)).find((path) => existsSync(path));
}

/** Returns the path of `program`, or throws {@linkcode ServiceUnavailable} with the advice `install`. */
export function requireProgram(service: string, program: string, install: string): string {
  const path = findProgram(program);
  if (path !== undefined) return path;
  throw new ServiceUnavailable(`Cannot start "${service}" as "${program}" is missing: ${install}`);
}

/** Returns the path of `program`, which the Debian package `debianPackage` brings where we are root. */
export async function debianProgram(
  service: string,
  program: string,
  debianPackage: string,
): Promise<string> {
  if (process.getuid?.() === 0 && findProgram("apt-get") !== undefined) {
    await once(() => findProgram(program) !== undefined, async () => {
      const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
      await run(service, ["apt-get", "update"], { env });
      await run(service, ["apt-get", "install", "-y", "--no-install-recommends", debianPackage], {
        env,
      });
    });
  }
  return requireProgram(service, program, `install the package ${debianPackage} (Debian's name)`);
}

/** Returns the folder of an npm package, fetched without running its install scripts. */
export async function npmPackage(service: string, name: string, version: string): Promise<string> {
  const root = join(cacheFolder(), "npm", `${name.replace("/", "+")}@${version}`);
  await once(() => existsSync(root), async () => {
    requireProgram(service, "npm", "install Node.js with npm");
    const partial = `${root}.partial`;
    await rm(partial, { recursive: true, force: true });
    await mkdir(partial, { recursive: true });
    const flags = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", partial];
    await run(service, ["npm", "install", ...flags, `${name}@${version}`], { cwd: partial });
    await linkLibraries(join(partial, "node_modules", name));
    // The final name appears only when everything is there, so that its existence is the proof.
    await rename(partial, root);
  });
  return join(root, "node_modules", name);
}

/**
 * Returns the path of `program`, built with Go from `folder`, whose go.mod pins what it requires: unlike
 * `go install`, that asks the module proxy for nothing else.
 */
export async function goProgram(service: string, program: string, folder: URL): Promise<string> {
  await once(() => findProgram(program) !== undefined, async () => {
    requireProgram(service, "go", "install Go so that it can be built");
    const cwd = join(cacheFolder(), `go+${program}`);
    await cp(folder, cwd, { recursive: true });
    const env = { ...process.env, CGO_ENABLED: "0" };
    const flags = ["-mod=mod", "-trimpath", "-o", join(cacheFolder(), "bin", program)];
    await run(service, ["go", "build", ...flags, "."], { cwd, env });
  });
  return requireProgram(service, program, "install mongod, or Go so that FerretDB can be built");
}

/** npm tarballs cannot hold symbolic links: packages of native binaries list theirs in a file. */
async function linkLibraries(folder: string): Promise<void> {
  const list = join(folder, "native", "pg-symlinks.json");
  if (!existsSync(list)) return;
  const links: { source: string; target: string }[] = JSON.parse(await readFile(list, "utf8"));
  for (const { source, target } of links) {
    await symlink(relative(dirname(target), source), join(folder, target));
  }
}

interface RunOptions {
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
}

function run(service: string, command: readonly string[], options: RunOptions): Promise<void> {
  const [program, ...args] = command as [string, ...string[]];
  const limits = { timeout: 20 * 60_000, maxBuffer: 64 * 1024 * 1024 };
  return new Promise((resolve, reject) => {
    execFile(program, args, { ...limits, ...options }, (error, stdout, stderr) => {
      if (error === null) return resolve();
      const said = (stderr.trim() || stdout.trim() || error.message).split("\n").at(-1)?.trim();
      reject(
        new ServiceUnavailable(
          `Cannot start "${service}" as "${command.join(" ")}" failed: ${said}`,
        ),
      );
    });
  });
}

/** Runs `make` unless `isMade`, and then in one process of this machine at a time. */
async function once(isMade: () => boolean, make: () => Promise<void>): Promise<void> {
  if (isMade()) return;
  await mkdir(cacheFolder(), { recursive: true });
  const unlock = await lockInstall();
  try {
    if (!isMade()) await make();
  } finally {
    await unlock();
  }
}

/**
 * Takes the machine-wide install lock; the result gives it back.
 *
 * The lock belongs to a child process that echoes one line once it has it, and that ends with its
 * standard input, so that a crash of ours gives the lock back too. Without `flock` (macOS) there
 * is no lock.
 */
async function lockInstall(): Promise<() => Promise<void>> {
  const flock = findProgram("flock");
  if (flock === undefined) return () => Promise.resolve();
  const file = join(cacheFolder(), "install.lock");
  const holder = spawn(flock, [file, "cat"], { stdio: ["pipe", "pipe", "ignore"] });
  const ended = new Promise<void>((resolve) => holder.once("close", () => resolve()));
  const hasLock = new Promise<boolean>((resolve) => {
    holder.stdout.once("data", () => resolve(true));
    ended.then(() => resolve(false));
  });
  // A pipe that breaks means that the process ended, which is seen below.
  holder.stdin.on("error", () => {});
  holder.stdin.write("locked\n");
  if (!await hasLock) throw new Error(`Cannot install a server as "${file}" must be lockable`);
  return () => {
    holder.stdin.end();
    return ended;
  };
}
