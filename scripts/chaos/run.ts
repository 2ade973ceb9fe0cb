/**
 * One run on one storage: starts the server, the proxies and the workers, lets the nemesis rage, brings everybody
 * home, looks for what is left, and judges.
 *
 * @module
 */
import { existsSync } from "node:fs";
import { type LeaseStorage, Lock, StorageError } from "../../mod.ts";
import { Random } from "../../src/testing/simulator/random.ts";
import { Crew, type End } from "./crew.ts";
import { Journal } from "./journal.ts";
import { Nemesis } from "./nemesis.ts";
import { observed } from "./observed.ts";
import { readPlain } from "./plain.ts";
import { PRODUCTS } from "./products.ts";
import { openSite } from "./site.ts";
import { LOCK, nowMs, pause, type Sabotage, TTL_MS, WORKERS } from "./terms.ts";
import { readJournals, type Trace } from "./trace.ts";
import { type Evidence, judge, type Verdict } from "./verdict.ts";

/** Options of {@linkcode runChaos}. */
export interface RunOptions {
  /** For how long the nemesis rages, in milliseconds. */
  readonly forMs: number;
  /** Decides what it does. */
  readonly seed: number;
  /** What is broken on purpose. */
  readonly sabotage: Sabotage | undefined;
  /** Ends everything early. */
  readonly signal: AbortSignal;
}

/** What a run leaves. */
export interface RunReport {
  /** What came of it. */
  readonly verdict: Verdict;
  /** All that happened. */
  readonly trace: Trace;
  /** The journals as text, one after the other. */
  readonly journal: string;
}

/** How long everybody may take to begin, and to come home, in milliseconds. */
const START_MS = 30_000;
const HOME_MS = 20_000;

/**
 * Runs.
 *
 * @param storage the name of the storage
 * @param options how
 * @throws {ServiceUnavailable} if its server cannot be had
 */
export async function runChaos(storage: string, options: RunOptions): Promise<RunReport> {
  const folder = await Deno.makeTempDir({ prefix: "holdfast-chaos-" });
  try {
    const { evidence, journal, pids, server } = await collect(storage, folder, options);
    const left = [
      ...evidence.left,
      ...[...pids, server?.pid ?? 0].filter(isRunning).map((pid) => `Process ${pid} still runs`),
      ...server && existsSync(server.folder) ? [`The folder ${server.folder} is left`] : [],
    ];
    return { verdict: judge({ ...evidence, left }), trace: evidence.trace, journal };
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

/** What {@linkcode collect} brings home. */
interface Collected {
  readonly evidence: Evidence;
  readonly journal: string;
  readonly pids: readonly number[];
  readonly server: { readonly pid: number; readonly folder: string } | undefined;
}

/** The run itself; when it settles, everything that it started has ended. */
async function collect(
  storage: string,
  folder: string,
  { signal, seed, forMs, sabotage }: RunOptions,
): Promise<Collected> {
  await using stack = new AsyncDisposableStack();
  const product = PRODUCTS[storage]!;
  const site = stack.use(await openSite(product, folder));
  const { server } = site;
  const client = await (await product.load())(site.at, 0);
  stack.defer(() => client.close());
  const journal = new Journal("nemesis", `${folder}/nemesis.jsonl`);
  stack.defer(() => journal.close());
  const lock = new Lock({
    storage: observed(client.storage, (call, atMs) => void journal.invoke(call, atMs)),
    name: LOCK,
    ttlMs: TTL_MS,
  });
  const crew = new Crew({ storage, at: (place) => site.atOf(place), folder, sabotage });
  stack.defer(() => crew.end());
  signal.throwIfAborted();

  for (let place = 0; place < WORKERS; place++) crew.start(place);
  await everybodyWorks(crew, signal);
  const startedMs = nowMs();
  const random = new Random(`${seed}/${storage}`);
  const nemesis = new Nemesis({ crew, site, persist: product.persist, lock, journal, random });
  await nemesis.rage(forMs, signal);
  await untilHealthy(client.storage, signal);
  const healedMs = nowMs();
  const ends = await crew.finish(HOME_MS, signal);
  const endedMs = nowMs();
  signal.throwIfAborted();

  const left = await findHolders(lock);
  const last = { guarded: await client.read(), plain: readPlain(`${folder}/plain`) };
  const { pollMs, maxClockSkewMs } = client.storage;
  const { texts, history, notes } = await readFolder(folder);
  const { faults } = nemesis;
  const trace: Trace = { history, notes, faults, startedMs, healedMs, endedMs };
  return {
    evidence: {
      storage,
      trace,
      ends: await Promise.all(ends.map((end) => withLastWords(end, folder))),
      last,
      pollMaxMs: pollMs.max,
      maxClockSkewMs,
      left,
    },
    journal: texts.join(""),
    pids: crew.pids,
    server: server && { pid: server.pid, folder: server.folder },
  };
}

/** Waits until every worker has had the lock once. */
async function everybodyWorks(crew: Crew, signal: AbortSignal): Promise<void> {
  const endMs = nowMs() + START_MS;
  const working = new Set<number>();
  while (working.size < WORKERS && nowMs() < endMs && !signal.aborted) {
    const place = await crew.nextInSection(100);
    if (place !== undefined) working.add(place);
  }
}

/**
 * Waits until the storage answers as fast as clients expect it to, several times in a row: a server that was
 * started a moment ago and is still too slow is a fault that goes on.
 */
async function untilHealthy(storage: LeaseStorage, signal: AbortSignal): Promise<void> {
  const endMs = nowMs() + START_MS;
  for (let answers = 0; answers < 5 && nowMs() < endMs && !signal.aborted;) {
    const askedMs = nowMs();
    try {
      await storage.execute(LOCK, { type: "inspect" });
    } catch (error) {
      if (!(error instanceof StorageError)) throw error;
      answers = -1;
    }
    answers = nowMs() - askedMs < TTL_MS / 6 ? answers + 1 : 0;
    await pause(20);
  }
}

/** Who still holds or waits when everybody is home, and what a dead process left has had time to run out. */
async function findHolders(lock: Lock): Promise<string[]> {
  const endMs = nowMs() + 2 * TTL_MS;
  for (;;) {
    const { holders, waiters } = await lock.inspect();
    if (holders.length === 0 && waiters === 0) return [];
    const left = holders.map(({ fence, label }) => `${label} still holds under fence ${fence}`);
    if (nowMs() > endMs) return waiters > 0 ? [...left, `${waiters} tickets are left`] : left;
    await pause(50);
  }
}

async function readFolder(
  folder: string,
): Promise<{ texts: string[] } & Pick<Trace, "history" | "notes">> {
  const texts: string[] = [];
  for await (const { name } of Deno.readDir(folder)) {
    if (name.endsWith(".jsonl")) texts.push(await Deno.readTextFile(`${folder}/${name}`));
  }
  return { texts, ...readJournals(texts) };
}

/** What a process that ended by itself said last. */
async function withLastWords(end: End, folder: string): Promise<End> {
  if (end.isKilled || end.code === 0) return end;
  const text = await Deno.readTextFile(`${folder}/${end.process}.stderr`);
  return { ...end, lastWords: text.trim().split("\n").slice(0, 8).join("\n") };
}

/** Whether there is such a process; a server that has ended has the id 0. */
function isRunning(pid: number): boolean {
  return pid > 0 && existsSync(`/proc/${pid}`);
}
