import { assert, assertEquals, assertStringIncludes, assertThrows } from "@std/assert";
import fc from "fast-check";
import {
  checkHistory,
  formatHistory,
  type LockCall,
  type LockOperation,
  type LockOutcome,
  parseHistory,
} from "../../src/testing/mod.ts";

type Instants = readonly [invokedAtMs: number, returnedAtMs?: number];

let ops = 0;

function operation(
  process: string,
  call: LockCall,
  [invokedAtMs, atMs]: Instants,
  outcome?: LockOutcome,
): LockOperation {
  const invoked = { process, op: ++ops, lock: "job", call, invokedAtMs };
  return outcome && atMs !== undefined ? { ...invoked, returned: { atMs, outcome } } : invoked;
}

const granted = (fence: number, validUntilMs: number): LockOutcome => ({
  type: "granted",
  fence,
  validUntilMs,
});
const refused: LockOutcome = { type: "refused" };

function acquire(process: string, at: Instants, fence?: number, untilMs = 100): LockOperation {
  return operation(process, { type: "acquire" }, at, fence ? granted(fence, untilMs) : undefined);
}
function acquireRefused(process: string, at: Instants): LockOperation {
  return operation(process, { type: "acquire" }, at, refused);
}
function renew(process: string, at: Instants, fence: number, validUntilMs?: number): LockOperation {
  const outcome: LockOutcome = validUntilMs ? { type: "renewed", validUntilMs } : refused;
  return operation(process, { type: "renew", fence }, at, outcome);
}
function release(process: string, at: Instants, fence: number, freed = true): LockOperation {
  const call = { type: "release", fence } as const;
  return operation(process, call, at, freed ? { type: "released" } : refused);
}
function adopt(
  process: string,
  at: Instants,
  fence: number,
  next?: number,
  untilMs = 100,
): LockOperation {
  const outcome = next ? granted(next, untilMs) : refused;
  return operation(process, { type: "adopt", fence }, at, outcome);
}
function evict(at: Instants, fence: number | undefined, count: number): LockOperation {
  return operation("admin", { type: "evict", fence }, at, { type: "evicted", count });
}
function lose(at: Instants): LockOperation {
  return operation("server", { type: "lose" }, at, { type: "lost" });
}

function unknown({ returned: _, ...invoked }: LockOperation): LockOperation {
  return invoked;
}

const GOOD: Readonly<Record<string, readonly LockOperation[]>> = {
  "nothing happened": [],
  "one holds after the other": [
    acquire("a", [0, 1], 1),
    release("a", [5, 6], 1),
    acquire("b", [7, 8], 2),
    release("b", [9, 10], 2),
  ],
  "a waiter is granted while the release is on its way": [
    acquire("a", [0, 1], 1),
    acquire("b", [2, 9], 2),
    release("a", [5, 10], 1),
  ],
  "a grant at the local deadline of the holder before": [
    acquire("a", [0, 1], 1, 50),
    acquire("b", [10, 50], 2),
  ],
  "a release that finds the lock taken over after the deadline": [
    acquire("a", [0, 1], 1, 50),
    acquire("b", [55, 56], 2),
    release("a", [60, 61], 1, false),
  ],
  "a release that frees after the deadline, as nobody came": [
    acquire("a", [0, 1], 1, 50),
    release("a", [60, 61], 1),
  ],
  "a refusal while another holds, also after its local deadline": [
    acquire("a", [0, 1], 1, 50),
    acquireRefused("b", [10, 11]),
    acquireRefused("b", [51, 52]),
  ],
  "a renewal that moves the deadline": [
    acquire("a", [0, 1], 1, 50),
    renew("a", [40, 41], 1, 90),
    acquire("b", [60, 90], 2),
  ],
  "a renewal that is refused after a takeover": [
    acquire("a", [0, 1], 1, 50),
    acquire("b", [55, 56], 2),
    renew("a", [60, 61], 1),
  ],
  "a hand-over, and the giver's late release": [
    acquire("a", [0, 1], 1),
    adopt("b", [5, 6], 1, 2),
    release("a", [7, 8], 1, false),
    renew("b", [9, 10], 2, 120),
    release("b", [11, 12], 2),
  ],
  "two want the same baton and one gets it": [
    acquire("a", [0, 1], 1),
    adopt("b", [5, 8], 1, 2),
    adopt("c", [6, 7], 1),
  ],
  "a grant after an eviction": [
    acquire("a", [0, 1], 1),
    evict([5, 6], 1, 1),
    acquire("b", [7, 8], 2),
    renew("a", [9, 10], 1),
  ],
  "an eviction that finds nobody": [evict([0, 1], undefined, 0), evict([2, 3], 7, 0)],
  "a grant after the storage lost its data": [
    acquire("a", [0, 1], 1),
    lose([4, 6]),
    acquire("b", [7, 8], 2),
    renew("a", [9, 10], 1),
  ],
  "an acquire of unknown outcome explains a refusal, also late": [
    acquire("a", [0]),
    acquireRefused("b", [50, 51]),
    acquireRefused("b", [60, 61]),
    acquire("b", [70, 71], 2),
  ],
  "an acquire of unknown outcome takes the lock after a release": [
    acquire("a", [0, 1], 1),
    acquire("c", [2]),
    release("a", [5, 6], 1),
    acquireRefused("b", [7, 8]),
  ],
  "a release of unknown outcome takes effect late": [
    acquire("a", [0, 1], 1),
    unknown(release("a", [5], 1)),
    acquireRefused("b", [30, 31]),
    acquire("b", [40, 41], 2),
  ],
  "an eviction of unknown outcome": [
    acquire("a", [0, 1], 1),
    unknown(evict([2], 1, 1)),
    renew("a", [10, 11], 1, 120),
    acquire("b", [20, 21], 2),
  ],
  "an adoption of unknown outcome": [
    acquire("a", [0, 1], 1),
    unknown(adopt("b", [5], 1)),
    acquireRefused("c", [10, 11]),
    release("a", [12, 13], 1, false),
    acquire("c", [20, 21], 3),
  ],
  "a renewal of unknown outcome promises nothing": [
    acquire("a", [0, 1], 1, 50),
    unknown(renew("a", [40], 1, 90)),
    acquire("b", [51, 52], 2),
  ],
};

const BAD: Readonly<Record<string, readonly LockOperation[]>> = {
  "two hold at once": [acquire("a", [0, 1], 1), acquire("b", [5, 6], 2)],
  "a grant just before the local deadline of the holder before": [
    acquire("a", [0, 1], 1, 50),
    acquire("b", [10, 49], 2),
  ],
  "a grant before the deadline of a renewed lease": [
    acquire("a", [0, 1], 1, 50),
    renew("a", [40, 41], 1, 90),
    acquire("b", [60, 80], 2),
  ],
  "a grant before the release was invoked": [
    acquire("a", [0, 1], 1),
    acquire("b", [2, 4], 2),
    release("a", [5, 10], 1),
  ],
  "a fence that goes back": [
    acquire("a", [0, 1], 2),
    release("a", [5, 6], 2),
    acquire("b", [7, 8], 1),
  ],
  "a fence that is granted twice": [
    acquire("a", [0, 1], 1),
    release("a", [5, 6], 1),
    acquire("b", [7, 8], 1),
  ],
  "a fence that goes back where the storage lost its data": [
    acquire("a", [0, 1], 2),
    lose([4, 5]),
    acquire("b", [7, 8], 1),
  ],
  "a release by one who does not hold": [
    acquire("a", [0, 1], 1, 50),
    acquire("b", [55, 56], 2),
    release("a", [60, 61], 1),
  ],
  "a lock that is released twice": [
    acquire("a", [0, 1], 1),
    release("a", [5, 6], 1),
    release("a", [7, 8], 1),
  ],
  "a release that finds nothing although the lease is valid": [
    acquire("a", [0, 1], 1),
    release("a", [5, 6], 1, false),
  ],
  "a renewal after a takeover": [
    acquire("a", [0, 1], 1, 50),
    acquire("b", [55, 56], 2),
    renew("a", [60, 61], 1, 120),
  ],
  "a renewal that is refused although the lease is valid": [
    acquire("a", [0, 1], 1),
    renew("a", [10, 11], 1),
  ],
  "a refusal of a free lock": [
    acquire("a", [0, 1], 1),
    release("a", [5, 6], 1),
    acquireRefused("b", [7, 8]),
  ],
  "a refusal that only a later acquire of unknown outcome could explain": [
    acquireRefused("b", [7, 8]),
    acquire("a", [9]),
  ],
  "two get the same baton": [
    acquire("a", [0, 1], 1),
    adopt("b", [5, 6], 1, 2),
    adopt("c", [7, 8], 1, 3),
  ],
  "a hand-over that keeps its fence": [acquire("a", [0, 1], 1), adopt("b", [5, 6], 1, 1)],
  "an adopted lock is free for others": [
    acquire("a", [0, 1], 1, 50),
    adopt("b", [5, 6], 1, 2),
    acquire("c", [60, 61], 3),
  ],
  "an eviction of nobody": [evict([0, 1], undefined, 1)],
  "an eviction that spares whom it means": [acquire("a", [0, 1], 1), evict([5, 6], 1, 0)],
  "an eviction of another holding": [acquire("a", [0, 1], 2), evict([5, 6], 1, 1)],
  "two grants after one eviction of unknown outcome": [
    acquire("a", [0, 1], 1),
    unknown(evict([2], undefined, 1)),
    acquire("b", [5, 6], 2),
    acquire("c", [7, 8], 3),
  ],
  "a grant that only a later release of unknown outcome could explain": [
    acquire("a", [0, 1], 1),
    acquire("b", [5, 6], 2),
    unknown(release("a", [10], 1)),
  ],
  "a grant where the storage lost its data later": [
    acquire("a", [0, 1], 1),
    acquire("b", [2, 3], 2),
    lose([4, 5]),
  ],
};

for (const [name, history] of Object.entries(GOOD)) {
  Deno.test(`checkHistory() accepts: ${name}`, () => {
    for (const { explanation } of checkHistory(history)) assertEquals(explanation, "");
  });
}

for (const [name, history] of Object.entries(BAD)) {
  Deno.test(`checkHistory() refuses: ${name}`, () => {
    assertEquals(checkHistory(history).map((lock) => lock.verdict), ["violation"]);
  });
}

Deno.test("checkHistory() says what cannot be explained", () => {
  ops = 0;
  const [lock] = checkHistory([acquire("a", [0, 1], 1), acquire("b", [5, 6], 2)]);
  assertEquals(
    lock?.explanation,
    'Lock "job": after 1 of 2 operations, at 0.0 ms, fence 1 holds, valid until 100.0 ms, ' +
      "the last fence is 1, and none of these can be next:\n" +
      '  b 2: {"type":"acquire"} from 5.0 ms to 6.0 ms: ' +
      '{"type":"granted","fence":2,"validUntilMs":100}',
  );
});

Deno.test("checkHistory() looks at each lock alone", () => {
  const other = (o: LockOperation): LockOperation => ({ ...o, lock: "other" });
  const history = [
    acquire("a", [0, 1], 5),
    other(acquire("b", [2, 3], 1)),
    other(acquire("c", [4, 5], 2)),
  ];
  assertEquals(checkHistory(history).map(({ lock, verdict }) => [lock, verdict]), [
    ["job", "linearizable"],
    ["other", "violation"],
  ]);
});

Deno.test("checkHistory() gives up after maxStates", () => {
  const history = Array.from({ length: 40 }, (_, i) => acquire(`p${i}`, [0, 100], i + 1, -1));
  assertEquals(checkHistory(history, { maxStates: 3 })[0]?.verdict, "undecided");
  assertEquals(checkHistory(history)[0]?.verdict, "linearizable");
});

Deno.test("checkHistory() refuses an outcome that the call cannot have", () => {
  const history = [operation("a", { type: "acquire" }, [0, 1], { type: "released" })];
  assertThrows(
    () => checkHistory(history),
    TypeError,
    "Cannot check history as acquire must return one of granted, refused: current value is released",
  );
});

Deno.test("a history of thousands of operations with many unknown ones takes less than a second", () => {
  const history: LockOperation[] = [];
  let nowMs = 0;
  for (let fence = 1; fence <= 2000; fence++) {
    const process = `p${fence % 8}`;
    const untilMs = nowMs + 100;
    history.push(acquire(process, [nowMs - (fence % 7), nowMs + 2], fence, untilMs));
    if (fence % 10 === 0) history.push(acquire(`x${fence}`, [nowMs]));
    if (fence % 3 === 0) history.push(acquireRefused("t", [nowMs + 2.5, nowMs + 3]));
    if (fence % 5 === 0) nowMs = untilMs;
    else history.push(release(process, [nowMs + 5, nowMs + 7], fence));
    nowMs += 6;
  }
  const startMs = performance.now();
  const good = checkHistory(history)[0]!;
  const untilMs = nowMs + 100;
  history.push(acquire("y", [nowMs, nowMs + 1], 3000, untilMs));
  history.push(acquire("z", [nowMs + 2, nowMs + 3], 3001, untilMs));
  const bad = checkHistory(history)[0]!;
  const tookMs = performance.now() - startMs;
  assertEquals([good.verdict, bad.verdict], ["linearizable", "violation"]);
  assert(tookMs < 2000, `it took ${tookMs} ms`);
});

Deno.test("the text of a history is read as it was written, without what was cut off", () => {
  const history = [acquire("a", [0, 1], 1), acquire("b", [2]), release("a", [5, 6], 1)];
  const text = formatHistory(history);
  const note = '{"type":"note","process":"a"}\n';
  assertEquals(parseHistory(note + text + '{"type":"inv'), history);
  assertStringIncludes(text.split("\n")[0]!, '"type":"invoke"');
});

Deno.test("parseHistory() refuses a return without an invocation", () => {
  const text = formatHistory([acquire("a", [0, 1], 1)]).split("\n")[1]!;
  assertThrows(
    () => parseHistory(text),
    TypeError,
    "a return must have an invocation: operation a",
  );
});

/**
 * The same question answered without any cleverness: every order of all operations, unknown ones and expiry
 * included, at the earliest instants.
 */
function canBeExplained(history: readonly LockOperation[]): boolean {
  interface Model {
    readonly owner: number | "unknown" | undefined;
    readonly untilMs: number;
    readonly fence: number;
    readonly nowMs: number;
  }
  function next(m: Model, { call, returned }: LockOperation): Model | undefined {
    const outcome = returned?.outcome;
    const free: Model = { ...m, owner: undefined };
    const mine = "fence" in call && m.owner === call.fence && m.owner !== undefined;
    const isMeant = m.owner !== undefined &&
      (call.type !== "evict" || call.fence === undefined || m.owner === "unknown" || mine);
    if (!outcome) {
      const unknown: Model = { ...m, owner: "unknown", untilMs: -Infinity };
      if (call.type === "acquire") return m.owner === undefined ? unknown : undefined;
      if (call.type === "adopt") return mine ? unknown : undefined;
      if (call.type === "renew") return undefined;
      return (call.type === "release" ? mine : isMeant) ? free : undefined;
    }
    switch (outcome.type) {
      case "granted":
        if (call.type === "adopt" ? !mine : m.owner !== undefined) return undefined;
        if (outcome.fence <= m.fence) return undefined;
        return { ...m, owner: outcome.fence, fence: outcome.fence, untilMs: outcome.validUntilMs };
      case "refused":
        return (call.type === "acquire" ? m.owner !== undefined : !mine) ? m : undefined;
      case "renewed":
        return mine ? { ...m, untilMs: Math.max(m.untilMs, outcome.validUntilMs) } : undefined;
      case "released":
        return mine ? free : undefined;
      case "evicted":
        if (outcome.count > 0) return isMeant ? free : undefined;
        return isMeant && (mine || !("fence" in call && call.fence)) ? undefined : m;
      case "lost":
        return free;
    }
  }
  function explore(m: Model, left: readonly LockOperation[]): boolean {
    if (left.every((o) => !o.returned)) return true;
    if (left.some((o) => o.returned && o.returned.atMs < m.nowMs)) return false;
    if (m.owner !== undefined && m.untilMs < Infinity) {
      const nowMs = Math.max(m.nowMs, m.untilMs);
      if (explore({ ...m, owner: undefined, nowMs }, left)) return true;
    }
    return left.some((o, i) => {
      const after = next({ ...m, nowMs: Math.max(m.nowMs, o.invokedAtMs) }, o);
      return after !== undefined && explore(after, left.toSpliced(i, 1));
    });
  }
  return explore({ owner: undefined, untilMs: 0, fence: 0, nowMs: -Infinity }, history);
}

Deno.test("checkHistory() agrees with a search through every order of small histories", () => {
  const fence = fc.integer({ min: 1, max: 3 });
  const instant = fc.integer({ min: 0, max: 12 });
  const call = fc.oneof(
    { weight: 4, arbitrary: fc.constant<LockCall>({ type: "acquire" }) },
    fc.record({ type: fc.constantFrom("renew", "release", "adopt"), fence }) as fc.Arbitrary<
      LockCall
    >,
    fc.record({ type: fc.constant("evict" as const), fence: fc.option(fence, { nil: undefined }) }),
    fc.constant<LockCall>({ type: "lose" }),
  );
  const outcomeOf = (call: LockCall): fc.Arbitrary<LockOutcome> => {
    const grants = fc.record({
      type: fc.constant("granted" as const),
      fence,
      validUntilMs: instant,
    });
    const no = fc.constant<LockOutcome>(refused);
    switch (call.type) {
      case "acquire":
      case "adopt":
        return fc.oneof({ weight: 3, arbitrary: grants }, no);
      case "renew":
        return fc.oneof(
          fc.record({ type: fc.constant("renewed" as const), validUntilMs: instant }),
          no,
        );
      case "release":
        return fc.oneof(fc.constant<LockOutcome>({ type: "released" }), no);
      case "evict":
        return fc.record({ type: fc.constant("evicted" as const), count: fc.nat({ max: 1 }) });
      case "lose":
        return fc.constant<LockOutcome>({ type: "lost" });
    }
  };
  const anyOperation = call.chain((call) =>
    fc.tuple(instant, fc.nat({ max: 4 }), outcomeOf(call), fc.nat({ max: 3 })).map((
      [invokedAtMs, tookMs, outcome, unknown],
    ) => operation("p", call, [invokedAtMs, invokedAtMs + tookMs], unknown ? outcome : undefined))
  );
  const seen = { linearizable: 0, violation: 0, undecided: 0 };
  fc.assert(
    fc.property(fc.array(anyOperation, { minLength: 2, maxLength: 6 }), (history) => {
      const verdict = checkHistory(history)[0]!.verdict;
      seen[verdict]++;
      assertEquals(verdict, canBeExplained(history) ? "linearizable" : "violation");
    }),
    { numRuns: 4000 },
  );
  assert(seen.linearizable > 400 && seen.violation > 400, JSON.stringify(seen));
});
