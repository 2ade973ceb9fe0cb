import { assert, assertEquals } from "@std/assert";
import { findOverlaps } from "../../scripts/chaos/overlaps.ts";
import type { Fault, Note, Resource } from "../../scripts/chaos/terms.ts";
import { holdingsOf, type Trace } from "../../scripts/chaos/trace.ts";
import { measureLiveness } from "../../scripts/chaos/liveness.ts";
import { countUpdates, findFromBeforeLoss } from "../../scripts/chaos/updates.ts";
import type { Verdict } from "../../scripts/chaos/verdict.ts";
import { testsFor } from "../../scripts/services.ts";
import type { LockOperation } from "../../src/testing/mod.ts";

const CHAOS = new URL("../../scripts/chaos.ts", import.meta.url).pathname;

/** Starts a run whose temporary files are in a folder of its own. */
function start(args: readonly string[], folder: string): Deno.ChildProcess {
  return new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--no-check", CHAOS, ...args],
    env: { TMPDIR: folder, NO_COLOR: "1" },
    stdin: "null",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
}

/** The processes whose temporary folder is this one, or that work in it. */
function processesOf(folder: string): string[] {
  return [...Deno.readDirSync("/proc")].map(({ name }) => name).filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      // Redis writes its title over its environment.
      return Deno.readTextFileSync(`/proc/${pid}/environ`).includes(`TMPDIR=${folder}\0`) ||
        Deno.readLinkSync(`/proc/${pid}/cwd`).startsWith(folder);
    } catch (error) {
      // It has ended meanwhile, or is somebody else's, or a part of the kernel.
      const { NotFound, PermissionDenied } = Deno.errors;
      if (error instanceof NotFound || error instanceof PermissionDenied) return false;
      if (error instanceof Error && error.message.includes("os error 3")) return false;
      throw error;
    }
  });
}

/** Runs to the end: the exit status, what came of it, and what it left. */
async function run(args: readonly string[]): Promise<{ code: number; verdict: Verdict }> {
  const folder = await Deno.makeTempDir();
  try {
    const { code, stdout, stderr } = await start([...args, "--json"], folder).output();
    const text = new TextDecoder();
    assertEquals([...Deno.readDirSync(folder)], [], "temporary files are left");
    assertEquals(processesOf(folder), [], "processes are left");
    assert(stdout.length > 0, text.decode(stderr));
    return { code, verdict: JSON.parse(text.decode(stdout)).verdicts[0] };
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}

const STORAGES = [["deno-kv", Deno.test], ["sqlite", Deno.test], [
  "redis-ioredis",
  await testsFor("redis"),
]] as const;

for (const [storage, test] of STORAGES) {
  // covers: G1 G2 G3 G8 G9 G11
  test(`eight processes on ${storage} keep every promise under chaos`, async () => {
    const { code, verdict } = await run(["--storage", storage, "--for", "2"]);
    assertEquals([verdict.violations, code], [[], 0]);
    const { grants, faults, guarded, linearizability } = verdict;
    assert(grants >= 10 && guarded.applied >= 10, JSON.stringify({ grants, guarded }));
    // How many faults find room in two seconds depends on the machine; that there were some does not.
    const count = Object.values(faults).reduce((sum, times) => sum + (times ?? 0), 0);
    assert(count >= 3 && (faults.freeze ?? 0) + (faults.kill ?? 0) >= 1, JSON.stringify(faults));
    assertEquals(linearizability.verdict, "linearizable");
  });
}

Deno.test("chaos without a lock is found out", async () => {
  const { code, verdict } = await run([
    ...["--storage", "sqlite", "--for", "1", "--sabotage", "no-lock"],
  ]);
  assertEquals([code, verdict.linearizability.verdict], [1, "violation"]);
  assert(verdict.overlaps.unexplained.length > 0);
});

Deno.test("chaos without fences is found out", async () => {
  // Whether a freeze strikes between a read and a write is a matter of luck, though not of much.
  for (let tries = 1;; tries++) {
    const { code, verdict } = await run([
      ...["--storage", "sqlite", "--for", "2", "--sabotage", "no-fence"],
    ]);
    if (verdict.guarded.lost === 0 && tries < 4) continue;
    assert(verdict.guarded.lost > 0);
    assertEquals([code, verdict.linearizability.verdict], [1, "linearizable"]);
    return;
  }
});

(await testsFor("redis"))("chaos leaves nothing behind after Ctrl-C", async () => {
  const folder = await Deno.makeTempDir();
  const child = start(["--storage", "redis-ioredis", "--for", "60"], folder);
  const output = child.output();
  try {
    // Eight workers, the server, and the run itself.
    while (processesOf(folder).length < 10) await new Promise((next) => setTimeout(next, 100));
    await new Promise((next) => setTimeout(next, 1000));
  } finally {
    child.kill("SIGINT");
    await output;
  }
  assertEquals((await child.status).code, 130);
  assertEquals([[...Deno.readDirSync(folder)], processesOf(folder)], [[], []]);
  await Deno.remove(folder);
});

for (
  const [args, words] of [
    [["--storage", "nonsense"], "Cannot use --storage as there must be one"],
    [["--for", "soon"], "Cannot use --for as it must be a number"],
    [["--sabotage", "all"], "Cannot use --sabotage as it must be no-lock or no-fence"],
    [["--nonsense"], "Unknown option"],
  ] as const
) {
  Deno.test(`chaos ${args.join(" ")} is a wrong argument`, async () => {
    const { code, stderr } = await start(args, Deno.env.get("TMPDIR") ?? "/tmp").output();
    const said = new TextDecoder().decode(stderr);
    assert(said.includes(words) && said.includes("Usage: deno task chaos"), said);
    assertEquals(code, 2);
  });
}

/** Notes on one write. */
function write(
  id: string,
  from: string | null,
  how?: "applied" | "stale",
  more: { atMs?: number; fence?: number } = {},
): Note[] {
  const resource: Resource = "guarded";
  const { atMs = 0, fence = 1 } = more;
  const note = { process: "w1", atMs, resource, id };
  return [
    { ...note, type: "write", from, fence },
    ...how ? [{ ...note, type: "wrote", how } as const] : [],
  ];
}

const UPDATES = {
  "a chain": [[write("a", null, "applied"), write("b", "a", "applied")], "b", 0, 0, []],
  "an unknown write that was applied": [
    [write("a", null), write("b", "a", "applied")],
    "b",
    0,
    0,
    [],
  ],
  "an unknown write that was not": [[write("a", null, "applied"), write("b", "a")], "a", 0, 0, []],
  "an update overwritten unseen": [
    [write("a", null, "applied"), write("b", "a", "applied"), write("c", "a", "applied")],
    "c",
    0,
    1,
    [],
  ],
  "an update overwritten unseen by one of unknown outcome": [
    [write("a", null, "applied"), write("b", "a", "applied"), write("c", "a")],
    "c",
    0,
    1,
    [],
  ],
  "a stale write that was applied": [
    [write("a", null, "applied"), write("b", "a", "stale"), write("c", "b", "applied")],
    "c",
    0,
    0,
    ["b"],
  ],
  "data that the server lost": [
    [write("a", null, "applied"), write("b", "a", "applied"), write("c", null, "applied")],
    "c",
    1,
    0,
    [],
  ],
  "an update lost before the data": [
    [
      ...[write("a", null, "applied"), write("b", "a", "applied"), write("c", "a", "applied")],
      write("d", null, "applied"),
    ],
    "d",
    1,
    1,
    [],
  ],
} as const;

for (const [name, [notes, last, losses, lost, undead]] of Object.entries(UPDATES)) {
  Deno.test(`countUpdates() judges ${name}`, () => {
    const updates = countUpdates(notes.flat(), "guarded", last, losses);
    assertEquals([updates.lost, updates.undead], [lost, undead]);
  });
}

Deno.test("findFromBeforeLoss() finds a write of a holder that the server had forgotten", () => {
  const notes = [
    ...write("a", null, "applied", { atMs: 10, fence: 1 }),
    ...write("b", "a", "applied", { atMs: 50, fence: 1 }),
    ...write("c", null, "applied", { atMs: 60, fence: 2 }),
    ...write("d", null, "stale", { atMs: 60, fence: 1 }),
  ];
  const grantedMs = new Map([[1, 5], [2, 45]]);
  assertEquals(findFromBeforeLoss(notes, grantedMs, [{ fromMs: 20, toMs: 40 }]), ["b"]);
});

/** A trace in which `a` works under fence 1 from 10 to 50 and `b` under fence 2 from 30 to 40. */
function overlapping(faults: readonly Fault[], more: readonly Note[] = []): Trace {
  const section = (process: string, fence: number, fromMs: number, toMs: number): Note[] => [
    { type: "enter", process, fence, atMs: fromMs },
    { type: "write", process, resource: "plain", id: process, from: null, fence, atMs: toMs - 1 },
    { type: "wrote", process, resource: "plain", id: process, how: "applied", atMs: toMs },
  ];
  const notes = [...section("a", 1, 10, 50), ...section("b", 2, 30, 40), ...more];
  return { history: [], notes, faults, startedMs: 0, healedMs: 100, endedMs: 100 };
}

const fault = (kind: Fault["kind"], target: string, more: Partial<Fault> = {}): Fault => ({
  ...{ kind, target, fromMs: 20, toMs: 45 },
  ...more,
});

const CAUSES: readonly (readonly [string, Trace, object])[] = [
  ["a freeze of the late one", overlapping([fault("freeze", "a")]), { freeze: 1 }],
  ["an eviction", overlapping([fault("evict", "a", { fence: 1 })]), { evicted: 1 }],
  [
    "data that were lost meanwhile",
    overlapping([fault("server kill", "server", { losesData: true, toMs: 25 })]),
    { "data lost": 1 },
  ],
  [
    "a machine that was too busy",
    overlapping([], [{ type: "stall", process: "a", fromMs: 15, atMs: 45 }]),
    { stall: 1 },
  ],
  ["nothing: a freeze of the rightful one", overlapping([fault("freeze", "b")]), {}],
  ["nothing: a freeze before", overlapping([fault("freeze", "a", { fromMs: 1, toMs: 5 })]), {}],
  ["nothing: a server that kept its data", overlapping([fault("server kill", "server")]), {}],
  ["nothing: a cut connection", overlapping([fault("cut", "a")]), {}],
];

for (const [name, trace, causes] of CAUSES) {
  Deno.test(`findOverlaps() explains an overlap by ${name}`, () => {
    const found = findOverlaps(trace);
    assertEquals(found.causes, causes);
    assertEquals(found.unexplained.length, Object.keys(causes).length === 0 ? 1 : 0);
  });
}

/** An acquire, and the release of what it granted. */
function held(process: string, fence: number, [askedMs, fromMs, toMs]: readonly number[]) {
  const outcome = { type: "granted", fence, validUntilMs: fromMs! + 500 } as const;
  const operation = { process, lock: "chaos" };
  return [
    {
      ...operation,
      op: 1,
      call: { type: "acquire" },
      invokedAtMs: askedMs!,
      returned: { atMs: fromMs!, outcome },
    },
    {
      ...operation,
      op: 2,
      call: { type: "release", fence },
      invokedAtMs: toMs!,
      ...toMs === undefined ? {} : { returned: { atMs: toMs + 1, outcome: { type: "released" } } },
    },
  ].filter((o) => o.invokedAtMs !== undefined) as LockOperation[];
}

Deno.test("a process that died before it wrote did not overlap with anybody", () => {
  const { notes, ...rest } = overlapping([fault("kill", "a", { toMs: 45 })]);
  const dead = notes.filter((note) => note.process === "b" || note.type === "enter");
  assertEquals(findOverlaps({ ...rest, notes: dead }), { causes: {}, unexplained: [] });
});

Deno.test("holdingsOf() ends a holding with its release or its deadline", () => {
  const history = [...held("a", 1, [0, 10, 20]), ...held("b", 2, [0, 30])];
  assertEquals(holdingsOf(history).map(({ fence, toMs }) => [fence, toMs]), [[1, 20], [2, 530]]);
});

Deno.test("measureLiveness() measures how long a free lock is waited for after the faults", () => {
  const history = [
    ...held("a", 1, [0, 10, 950]),
    ...held("b", 2, [0, 1030, 1100]),
    ...held("c", 3, [0, 1250, 1300]),
    ...held("d", 4, [1400, 1410, 1420]),
  ];
  const trace = { history, notes: [], faults: [], startedMs: 0, healedMs: 1000, endedMs: 2000 };
  assertEquals(measureLiveness(trace), { longestGapMs: 149, served: 3 });
});
