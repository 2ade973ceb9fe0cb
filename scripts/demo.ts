/**
 * Four processes take turns through one Deno KV file; one is killed while it holds the lock, one is frozen
 * for longer than its lease and goes on as a zombie. Shows that nothing is lost where writes are fenced:
 * `deno task demo`.
 *
 * Ends with status 1 if anything does not hold, and with 2 for wrong arguments.
 *
 * @module
 */
import { parseArgs } from "node:util";
import { Crew, type Worker } from "./demo_crew.ts";
import {
  areFencesIncreasing,
  countOverlaps,
  type DemoEvent,
  holdingsOf,
  problemsOf,
  type Sabotage,
  type Summary,
  takeoverMs,
} from "./demo_history.ts";
import { Narrator } from "./demo_narrator.ts";
import { drawDemo } from "./demo_picture.ts";
import { POLL_MS, RENEW_EVERY, TTL_MS } from "./demo_terms.ts";
import { openKv, Sentence } from "./open_kv.ts";

const USAGE = `Four processes take turns through one Deno KV file; one is killed, one is frozen.

Usage: deno task demo [options]

  --seconds N      for how long, 3 to 600 [10]
  --json           print the summary as JSON, and everything else to standard error
  --svg PATH       where to draw the timeline [in the temporary folder]
  --sabotage WHAT  no-lock: without the lock; no-fence: with the fence ignored. Must fail
  --help           print this
`;

const WORKERS = 4;

/** How often to try to freeze somebody: one may be frozen with the file locked, and then nobody goes on. */
const FREEZE_TRIES = 3;

/** What the others write before the zombie goes on. */
const WRITES_MEANWHILE = 4;

interface Options {
  readonly seconds: number;
  readonly json: boolean;
  readonly svg: string | undefined;
  readonly sabotage: Sabotage | undefined;
}

function parse(args: string[]): Options {
  const { values } = parseArgs({
    args,
    options: {
      seconds: { type: "string", default: "10" },
      json: { type: "boolean", default: false },
      svg: { type: "string" },
      sabotage: { type: "string" },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    console.log(USAGE);
    Deno.exit(0);
  }
  const seconds = Number(values.seconds);
  if (!(seconds >= 3 && seconds <= 600)) {
    throw new RangeError(
      `Cannot use --seconds as it must be 3 to 600: current value is ${values.seconds}`,
    );
  }
  const { sabotage, svg, json } = values;
  if (sabotage !== undefined && sabotage !== "no-lock" && sabotage !== "no-fence") {
    throw new RangeError(
      `Cannot use --sabotage as it must be no-lock or no-fence: current value is ${sabotage}`,
    );
  }
  return { seconds, json, svg, sabotage };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, Math.max(0, ms)));
}

/** Has whoever comes next linger in its critical section, and waits until well between two renewals. */
async function catchHolder(crew: Crew): Promise<Worker | undefined> {
  const strikeAfterMs = TTL_MS * RENEW_EVERY / 2;
  for (let tries = 0; tries < 5; tries++) {
    const lingering = crew.next((e) => e.type === "lingering", 20_000);
    await crew.tellAll("linger");
    const caught = await lingering;
    await crew.tellAll("work");
    const worker = crew.workers.find(({ id }) => id === caught?.worker);
    const sinceBeatMs = (): number => Date.now() - (crew.lastBeat(worker!)?.at ?? 0);
    while (worker && crew.isInside(worker)) {
      if (sinceBeatMs() >= strikeAfterMs && sinceBeatMs() < 1.5 * strikeAfterMs) return worker;
      await pause(Math.max(5, strikeAfterMs - sinceBeatMs()));
    }
  }
  return undefined;
}

/** Kills a holder, and starts another worker in its place. */
async function kill(crew: Crew): Promise<void> {
  const victim = await catchHolder(crew);
  if (!victim) return;
  const next = crew.next((e) => e.type === "granted" && e.worker !== victim.id, TTL_MS + 15_000);
  crew.strike(victim, "SIGKILL");
  crew.start();
  await next;
}

/** Freezes a holder until others have taken over and written, and waits for what it does then. */
async function freeze(crew: Crew): Promise<void> {
  for (let tries = 0; tries < FREEZE_TRIES; tries++) {
    const victim = await catchHolder(crew);
    if (!victim) return;
    const isByOthers = (e: DemoEvent): boolean => e.worker !== victim.id;
    const taken = crew.next((e) => e.type === "granted" && isByOthers(e), TTL_MS + 5000);
    crew.strike(victim, "SIGSTOP");
    const isTaken = await taken;
    for (let writes = 0; isTaken && writes < WRITES_MEANWHILE; writes++) {
      await crew.next(
        (e) => e.type === "wrote" && e.account === "fenced" && isByOthers(e),
        TTL_MS + 5000,
      );
    }
    const written = crew.next(
      (e) => e.worker === victim.id && (e.type === "refused" || isFencedWrite(e)),
      15_000,
    );
    // So that the freeze is longer than the lease also where there is no lock to wait for.
    await pause(1.2 * TTL_MS - (Date.now() - crew.events.findLast((e) => e.type === "frozen")!.at));
    crew.strike(victim, "SIGCONT");
    await written;
    if (isTaken) return;
  }
}

function isFencedWrite(event: DemoEvent): boolean {
  return event.type === "wrote" && event.account === "fenced";
}

/** How many updates of an account were applied, and then overwritten. */
async function countLost(kv: Deno.Kv, account: "fenced" | "unfenced"): Promise<number> {
  let applied = 0;
  for await (const _ of kv.list({ prefix: ["entry", account] })) applied++;
  return applied - ((await kv.get<number>(["balance", account])).value ?? 0);
}

/** Runs the demo in a folder of its own. */
async function run(options: Options, folder: string): Promise<boolean> {
  const { seconds, json, sabotage } = options;
  const path = `${folder}/demo.kv`;
  const kv = await openKv(path);
  const narrator = new Narrator(json ? Deno.stderr : Deno.stdout);
  const crew = new Crew({ path, sabotage, onEvent: (event) => narrator.tell(event) });
  const onInterrupt = (): void => {
    crew.kill();
    Deno.exit(130);
  };
  Deno.addSignalListener("SIGINT", onInterrupt);
  try {
    narrator.title(`${WORKERS} processes, one lock of ${TTL_MS} ms, one file: ${path}`, sabotage);
    const startMs = Date.now();
    narrator.startMs = startMs;
    const untilPart = (part: number): Promise<void> =>
      pause(startMs + part * 1000 * seconds - Date.now());
    for (let i = 0; i < WORKERS; i++) crew.start();
    await crew.next((e) => e.type === "granted", 30_000);
    await untilPart(0.2);
    await kill(crew);
    await untilPart(0.5);
    await freeze(crew);
    await untilPart(1);
    await crew.stop();

    const holdings = holdingsOf(crew.events);
    const summary: Summary = {
      sections: holdings.length,
      overlaps: countOverlaps(holdings),
      lostFencedUpdates: await countLost(kv, "fenced"),
      lostUnfencedUpdates: await countLost(kv, "unfenced"),
      takeoverMs: takeoverMs(crew.events),
      staleWritesRefused: crew.events.filter((e) => e.type === "refused").length,
      fencesIncreasing: areFencesIncreasing(holdings),
    };
    const problems = problemsOf(summary, { takeoverMs: TTL_MS + POLL_MS });
    const svg = options.svg ??
      await Deno.makeTempFile({ prefix: "holdfast-demo-", suffix: ".svg" });
    await Deno.writeTextFile(svg, drawDemo(crew.events, summary, { startMs, sabotage }));
    narrator.summary(summary, problems, { limitMs: TTL_MS + POLL_MS, svg });
    if (json) console.log(JSON.stringify(summary));
    return problems.length === 0;
  } finally {
    crew.kill();
    kv.close();
    Deno.removeSignalListener("SIGINT", onInterrupt);
  }
}

async function main(): Promise<number> {
  let options: Options;
  try {
    options = parse(Deno.args);
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
    return 2;
  }
  if (Deno.build.os === "windows") {
    console.error("Cannot run the demo on Windows as it has no SIGSTOP: use Linux, macOS or WSL");
    return 2;
  }
  const folder = await Deno.makeTempDir({ prefix: "holdfast-demo-" });
  try {
    return await run(options, folder) ? 0 : 1;
  } catch (error) {
    if (!(error instanceof Sentence)) throw error;
    console.error(error.message);
    return 1;
  } finally {
    await Deno.remove(folder, { recursive: true }).catch(() => {});
  }
}

if (import.meta.main) Deno.exit(await main());
