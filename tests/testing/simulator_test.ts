import { assert, assertEquals } from "@std/assert";
import {
  type Failure,
  type Scenario,
  scenarioOf,
  shrink,
  simulate,
  type Violation,
} from "../../src/testing/simulator.ts";

/** What every run of one kind begins with. */
const PLAIN: Scenario = {
  seed: 25,
  storage: "script",
  lock: "mutex",
  fair: true,
  queueMs: 1500,
  ttlMs: 5000,
  requestTimeoutMs: 833,
  minHoldMs: 0,
  maxHoldMs: 0,
  autoRenew: true,
  gate: true,
  watch: "tickets",
  batches: false,
  absent: false,
  pollMs: { min: 5, max: 2000 },
  maxClockSkewMs: 0,
  retentionMs: 50_000,
  latencyMs: { min: 1, max: 1.5 },
  lateMs: 2000,
  deafLibrary: false,
  processes: 3,
  actors: 1,
  names: 1,
  holdMs: 12_000,
  thinkMs: 1000,
  forMs: 20_000,
  deeds: ["acquire"],
  faults: {},
};

/** Runs that broke a guarantee once, as small as they could be made. */
const REGRESSIONS: readonly { readonly what: string; readonly scenario: Scenario }[] = [
  { what: "G10: a waiter that sleeps refreshes its ticket in time", scenario: PLAIN },
  {
    what: "G10: a lease that its own process resumed does not cost a waiter its place",
    scenario: { ...PLAIN, holdMs: 6000, forMs: 40_000, deeds: ["acquire", "hand-over"] },
  },
  {
    what: "G8: the next in line finds a lease that ran out, although nobody gives a hint",
    scenario: {
      ...PLAIN,
      seed: 1220,
      storage: "register",
      queueMs: 10_000,
      ttlMs: 600,
      requestTimeoutMs: 100,
      autoRenew: false,
      pollMs: { min: 50, max: 300 },
      maxClockSkewMs: 100,
      retentionMs: 2600,
      latencyMs: { min: 0.2, max: 4 },
      lateMs: 900,
      deafLibrary: true,
      processes: 4,
      holdMs: 3000,
    },
  },
  {
    what: "G7: a request that was given up sends nothing after the release",
    scenario: {
      ...PLAIN,
      seed: 29,
      storage: "register",
      fair: false,
      ttlMs: 600,
      requestTimeoutMs: 200,
      watch: "none",
      absent: true,
      pollMs: { min: 250, max: 300 },
      maxClockSkewMs: 100,
      retentionMs: 6200,
      latencyMs: { min: 1, max: 10 },
      lateMs: 1500,
      deafLibrary: true,
      processes: 2,
      holdMs: 6000,
      forMs: 40_000,
      faults: { "reply-late": 0.2, "failed-after": 0.1 },
    },
  },
  {
    what: "G10: a waiter that was passed over refreshes its short ticket in time",
    scenario: {
      ...PLAIN,
      seed: 9,
      fair: false,
      queueMs: 10_000,
      requestTimeoutMs: 5000,
      pollMs: { min: 50, max: 2000 },
      latencyMs: { min: 0.2, max: 0.3 },
      lateMs: 7500,
      processes: 2,
      actors: 2,
      thinkMs: 2000,
      forMs: 3750,
    },
  },
  {
    what: "G8: a waiter whose process was suspended is again in front of whoever passed it",
    scenario: {
      ...PLAIN,
      seed: 2017582,
      storage: "machine",
      lock: "readers-writer",
      queueMs: 10_000,
      ttlMs: 600,
      requestTimeoutMs: 600,
      absent: true,
      pollMs: { min: 50, max: 1000 },
      retentionMs: 6000,
      latencyMs: { min: 0.2, max: 4 },
      lateMs: 300,
      deafLibrary: true,
      actors: 2,
      thinkMs: 2000,
      forMs: 120_000,
      faults: {
        "failed-before": 0.01,
        "freeze-after-send": 0.02,
        "freeze-after-reply": 0.003,
        "crash-before-send": 0.003,
        "crash-after-reply": 0.02,
        "suspend": 0.01,
      },
    },
  },
  {
    what: "the ticket that a late copy leaves for a lease that ran out is nobody's",
    scenario: {
      ...PLAIN,
      seed: 10,
      queueMs: 10_000,
      ttlMs: 600,
      requestTimeoutMs: 600,
      autoRenew: false,
      watch: "none",
      absent: true,
      pollMs: { min: 50, max: 300 },
      retentionMs: 6000,
      lateMs: 900,
      processes: 2,
      actors: 2,
      thinkMs: 500,
      forMs: 2500,
      faults: { "duplicate-late": 0.2 },
    },
  },
];

// covers: G7 G8 G10
for (const { what, scenario } of REGRESSIONS) {
  Deno.test(`simulate() finds nothing any more: ${what}`, async () => {
    assertEquals((await simulate(scenario)).violation?.message, undefined);
  });
}

/** How many runs; a few at a time, so that a failure is found near its seed. */
const FIXED_SEEDS = 200;
const NEW_SEEDS = 50;

// covers: G1 G2 G3 G4 G5 G6 G7 G8 G9 G10 G11 G12
for (let first = 1; first <= FIXED_SEEDS; first += 10) {
  Deno.test(`simulate() breaks no guarantee with the seeds from ${first} to ${first + 9}`, async () => {
    for (let seed = first; seed < first + 10; seed++) {
      const { violation } = await simulate(scenarioOf(seed));
      assertEquals(violation && `seed ${seed}: ${violation.message}`, undefined);
    }
  });
}

Deno.test("simulate() breaks no guarantee with seeds that nobody tried before", async () => {
  const first = Date.now();
  for (let seed = first; seed < first + NEW_SEEDS; seed++) {
    const { violation } = await simulate(scenarioOf(seed));
    assertEquals(violation && `seed ${seed}: ${violation.message}`, undefined);
  }
});

Deno.test("simulate() does the same twice", async () => {
  for (const seed of [3, 4, 5]) {
    const [one, two] = [
      await simulate(scenarioOf(seed), { trace: true }),
      await simulate(scenarioOf(seed)),
    ];
    assertEquals(one.traceHash, two.traceHash);
    assert(one.trace!.length > 10);
  }
});

Deno.test("simulate() does another thing with another seed", async () => {
  const hashes = new Set<string>();
  for (let seed = 0; seed < 5; seed++) {
    hashes.add((await simulate({ ...PLAIN, seed })).traceHash);
  }
  assertEquals(hashes.size, 5);
});

Deno.test("simulate() does the same on Deno, Bun and Node", async () => {
  const folder = await Deno.makeTempDir();
  try {
    const entry = `${folder}/entry.ts`;
    const simulator = new URL("../../src/testing/simulator.ts", import.meta.url).pathname;
    await Deno.writeTextFile(
      entry,
      `import { scenarioOf, simulate } from ${JSON.stringify(simulator)};
       const hashes = [];
       for (let seed = 1; seed <= 8; seed++) hashes.push((await simulate(scenarioOf(seed))).traceHash);
       console.log(hashes.join(" "));`,
    );
    const bundle = `${folder}/bundle.mjs`;
    const { build, stop } = await import("esbuild");
    await build({ entryPoints: [entry], bundle: true, format: "esm", outfile: bundle });
    await stop();
    const hashes: string[] = [];
    for (let seed = 1; seed <= 8; seed++) {
      hashes.push((await simulate(scenarioOf(seed))).traceHash);
    }
    for (const engine of ["node", "bun"]) {
      const { stdout } = await new Deno.Command(engine, { args: [bundle] }).output();
      assertEquals(new TextDecoder().decode(stdout).trim(), hashes.join(" "), engine);
    }
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});

Deno.test("shrink() leaves out what a failure does not need", async () => {
  const violation = { guarantee: "G1", atMs: 7000, message: "G1: two of one" } as Violation;
  const scenario: Scenario = {
    ...PLAIN,
    processes: 5,
    faults: { "crash": 0.1, "reply-lost": 0.1, "freeze": 0.1 },
    deeds: ["acquire", "with", "inspect"],
  };
  const size = (s: Scenario): number =>
    s.forMs + 1000 * s.processes + 100 * s.deeds.length + 10 * Object.keys(s.faults).length;
  const run = (s: Scenario) =>
    Promise.resolve({
      violation: s.faults.crash && s.deeds.includes("with") && s.processes > 1 && s.forMs > 7000
        ? violation
        : undefined,
      events: size(s),
    });
  const failure: Failure = { scenario, violation, events: size(scenario) };
  const { scenario: least } = await shrink(failure, run, 500);
  assertEquals(least.faults, { "crash": 0.1 });
  assertEquals(least.deeds, ["with"]);
  assertEquals(least.processes, 2);
  assertEquals(least.forMs, 7001);
});
