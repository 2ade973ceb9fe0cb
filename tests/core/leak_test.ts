import { assert, assertEquals } from "@std/assert";
import { runScript } from "../support/run_script.ts";

const flags = ["--v8-flags=--expose-gc"];

/** What a process prints that collects garbage all the time; `events` are told as they come. */
function collecting(code: string, forMs: number): Promise<string> {
  return runScript(
    `
    import { Lock, MemoryStorage } from "./mod.ts";
    const events = [];
    const storage = new MemoryStorage();
    const onEvent = (event) => events.push(event);
    const lock = new Lock({ storage, name: "job", ttlMs: 300, onEvent });
    const pause = async (ms) => {
      for (let i = 0; i < ms; i += 20) {
        await new Promise((resolve) => setTimeout(resolve, 20));
        gc();
      }
    };
    const types = () => new Set(events.splice(0).map((event) => event.type));
    ${code}
    await pause(${forMs});
    globalThis.kept = kept;
    `,
    { flags },
  );
}

/** What becomes of a lease that is used in a function which has returned. */
async function afterCollection(use: string): Promise<{ abandoned: boolean; renewed: boolean }> {
  const output = await collecting(
    `
    const kept = await (async () => { const lease = await lock.acquire(); ${use} })();
    await pause(300);
    const first = types();
    await pause(300);
    const then = types();
    console.log(JSON.stringify({
      abandoned: first.has("abandoned") || then.has("abandoned"),
      renewed: then.has("renewed"),
    }));
    `,
    0,
  );
  return JSON.parse(output);
}

const uses: readonly [what: string, use: string, isKept: boolean][] = [
  ["that nothing refers to any more is abandoned", "lease.isHeld();", false],
  ["whose fence is kept is abandoned", "return lease.fencingToken;", false],
  ["whose signal was only looked at is abandoned", "lease.signal.aborted;", false],
  [
    "that was pinned and is unpinned by its end is no trouble",
    "lease.hold(); lease.detach();",
    false,
  ],
  ["is kept by lease.hold()", "lease.hold();", true],
  ["is kept by its signal", "return lease.signal;", true],
  ["is kept by its handle", "return lease;", true],
  ["is kept by a function that uses it", "return () => lease.isHeld();", true],
];
for (const [what, use, isKept] of uses) {
  // covers: S1.15 S2.11 S4.10 S3.17
  Deno.test(`a lease ${what}`, async () => {
    const isDetached = use.includes("detach");
    assertEquals(await afterCollection(use), {
      abandoned: !isKept && !isDetached,
      renewed: isKept,
    });
  });
}

const scopes: readonly [what: string, code: string][] = [
  ["with()", "const kept = lock.with(async () => { await pause(700); });"],
  ["tryWith()", "const kept = lock.tryWith(async () => { await pause(700); });"],
  [
    "await using",
    "const kept = (async () => { await using lease = await lock.acquire(); await pause(700); })();",
  ],
];
for (const [what, code] of scopes) {
  Deno.test(`${what} keeps its lease although the work does not look at it`, async () => {
    const output = await collecting(
      `${code}
      await pause(500);
      console.log([...types()].join(" "), await new Lock({ storage, name: "job", gate: false }).tryAcquire());`,
      200,
    );
    assertEquals(output, "acquired renewed null\n");
  });
}

// covers: S2.11 S4.10 S1.14 G4
Deno.test("an abandoned lease is told without its token, opens the gate, and its ttl frees the lock", async () => {
  const output = await collecting(
    `
    const kept = undefined;
    let token;
    await (async () => { const lease = await lock.acquire(); token = lease.token; })();
    while (!events.some((e) => e.type === "abandoned")) await pause(20);
    const event = events.find((e) => e.type === "abandoned");
    const early = await lock.tryAcquire();
    const next = await lock.acquire({ timeoutMs: 1000 });
    console.log(
      Object.keys(event).sort().join(" "),
      event.remainingMs > 0 && event.remainingMs <= 295,
      JSON.stringify(event).includes(token),
      early,
      next.isHeld(),
    );
    `,
    0,
  );
  assertEquals(output, "fence name remainingMs type true false null true\n");
});

Deno.test("a lease that had expired when it was collected is lost, not abandoned", async () => {
  const output = await collecting(
    `
    const short = new Lock({ storage, name: "short", ttlMs: 10, autoRenew: false, onEvent });
    const kept = (async () => {
      await short.acquire();
      // Nobody is told of a collection before this is over.
      for (const untilMs = performance.now() + 20; performance.now() < untilMs;);
    })();
    while (events.length < 2) await pause(20);
    console.log(events.map((event) => event.type).join(" "));
    `,
    40,
  );
  assertEquals(output, "acquired lost\n");
});

// covers: G8
Deno.test("an acquire() whose promise is all that is kept is not collected", async () => {
  const output = await collecting(
    `
    const holder = await new Lock({ storage, name: "job" }).acquire();
    const kept = lock.acquire().then((lease) => { console.log("granted"); return lease; });
    await pause(300);
    await holder.release();
    await (await kept).release();
    `,
    0,
  );
  assertEquals(output, "granted\n");
});

// What is used leaves nothing.

/** How many bytes of heap one of so many runs leaves. */
async function leftBytes(setUp: string, run: string, runs: number): Promise<number> {
  const output = await runScript(
    `
    import { Lock } from "./mod.ts";
    let fence = 0;
    const outcomes = {
      acquire: () => ({ type: "granted", fence: ++fence }),
      renew: () => ({ type: "renewed" }),
      release: () => ({ type: "released", freed: true }),
    };
    const storage = {
      pollMs: { min: 5, max: 50 },
      maxClockSkewMs: 0,
      execute: async (_, { type }) => outcomes[type](),
    };
    const lock = new Lock({ storage, name: "job", ttlMs: 1000 });
    ${setUp}
    const run = async (i) => { ${run} };
    const used = async () => {
      for (let i = 0; i < 5; i++) { await new Promise((r) => setTimeout(r, 10)); gc(); }
      return Deno.memoryUsage().heapUsed;
    };
    for (let i = 0; i < ${Math.min(runs, 500)}; i++) await run(-i);
    const before = await used();
    for (let i = 1; i <= ${runs}; i++) await run(i);
    console.log(Math.round((await used() - before) / ${runs}));
    `,
    { flags, timeoutMs: 30_000 },
  );
  return Number(output);
}

const uselesses: readonly [what: string, setUp: string, run: string, runs: number][] = [
  [
    "a lease of a name that is used once",
    "",
    "const lease = await lock.withName(`n${i}`).acquire(); lease.signal; await lease.release();",
    10_000,
  ],
  [
    "a refusal of a name that is used once",
    "outcomes.acquire = () => ({ type: 'held', retryAfterMs: 5, ahead: 0 });",
    "await lock.withName(`n${i}`).tryAcquire();",
    10_000,
  ],
  [
    "a lease that was lost",
    "outcomes.renew = () => ({ type: 'refused', reason: 'evicted' });",
    "const lease = await lock.withName(`n${i}`).acquire(); await lease.renew().catch(() => {});",
    10_000,
  ],
  [
    "an attempt whose signal outlives it",
    "const { signal } = new AbortController();",
    "await (await lock.acquire({ signal })).release();",
    10_000,
  ],
  [
    "a section",
    "",
    "await lock.with(() => i);",
    10_000,
  ],
  [
    "an attempt that timed out",
    "storage.execute = () => new Promise(() => {}); const short = new Lock({ storage, name: 'job', ttlMs: 10 });",
    "await Promise.all(Array.from({ length: 50 }, (_, k) => short.withName(`n${i}-${k}`).acquire({ timeoutMs: 1 }).catch(() => {})));",
    40,
  ],
];
for (const [what, setUp, run, runs] of uselesses) {
  // covers: G7 S1.11
  Deno.test(`${what} leaves nothing in memory`, async () => {
    const bytes = await leftBytes(setUp, run, runs);
    // A map entry alone would take more.
    assert(bytes < (runs < 100 ? 50 * 60 : 40), `${bytes} bytes for each run`);
  });
}
