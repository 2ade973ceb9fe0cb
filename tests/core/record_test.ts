import { assert, assertEquals, assertStrictEquals } from "@std/assert";
import fc from "fast-check";
import { decodeRecord, encodeRecord } from "../../src/core/codec.ts";
import {
  type AcquireCommand,
  type Command,
  EMPTY_RECORD,
  type Holder,
  type LeaseRecord,
  MAX_ENTRIES,
  MAX_SPENT,
  type Outcome,
  type OutcomeOf,
  type Step,
  step,
} from "../../src/core/record.ts";
import { acquire, adopt, evict, inspect, release, renew } from "../support/commands.ts";

/** The wall clock at the start of a test. */
const START_MS = 1_700_000_000_000;

/** The fence of what must be a grant. */
function fenceOf(outcome: Outcome): number {
  if (outcome.type === "granted") return outcome.fence;
  throw new Error(`expected a grant, got ${JSON.stringify(outcome)}`);
}

/** A record with a clock. */
class Machine {
  record: LeaseRecord;
  ms = 0;
  us = 0;

  constructor(record: LeaseRecord = EMPTY_RECORD, readonly marginMs = 0) {
    this.record = record;
  }

  get nowUs(): number {
    return (START_MS + this.ms) * 1000 + this.us;
  }

  step<C extends Command>(command: C): Step<OutcomeOf<C>> {
    const next = step(this.record, command, this.nowUs, this.marginMs);
    this.record = next.record;
    return next;
  }

  do<C extends Command>(command: C): OutcomeOf<C> {
    return this.step(command).outcome;
  }

  /** Grants, and says under which fence. */
  grant(command: AcquireCommand): number {
    return fenceOf(this.do(command));
  }

  /** Of the holdings, in order. */
  holders(): (string | null)[] {
    return this.record.holders.map((h) => h.token);
  }

  tickets(): string[] {
    return this.record.tickets.map((t) => t.token);
  }

  spent(): string[] {
    return this.record.spent.map((s) => s.token);
  }

  /** Until when a token holds, from the start. */
  expiresInMs(token: string): number {
    return this.record.holders.find((h) => h.token === token)!.expiresAtMs - START_MS;
  }
}

// Rule 1: what is live.

// covers: S4.6 S4.1 S1.20
Deno.test("acquire is refused to the last microsecond of a holding, and granted at its expiry", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { ttlMs: 100 }));
  machine.ms = 99;
  machine.us = 999;
  assertEquals(machine.do(acquire("b")).type, "held");
  machine.ms = 100;
  machine.us = 0;
  assertEquals(machine.do(acquire("b")).type, "granted");
});

// covers: S2.7 S4.1
Deno.test("a grant drops holdings, tickets and spent tokens that are over", () => {
  const machine = new Machine();
  machine.do({ ...release("x"), spentMs: 100 });
  machine.grant(acquire("a", { ttlMs: 100 }));
  machine.do(acquire("b", { queueMs: 100 }));
  machine.ms = 100;
  machine.grant(acquire("c"));
  assertEquals([machine.holders(), machine.tickets()], [["c"], []]);
  machine.do(release("c"));
  assertEquals(machine.spent(), ["c"]);
});

const overs: readonly [what: string, command: (fence: number) => Command, outcome: Outcome][] = [
  ["renew", (fence) => renew("a", fence), { type: "refused", reason: "expired" }],
  ["adopt", (fence) => adopt("a", fence, "b"), { type: "refused", reason: "expired" }],
  ["release", () => release("a"), { type: "released", freed: false }],
  ["evict", (fence) => evict(fence), { type: "evicted", count: 0 }],
];
for (const [what, command, outcome] of overs) {
  // covers: G4 S4.6
  Deno.test(`${what} of a holding at its expiry finds nothing live`, () => {
    const machine = new Machine();
    const fence = machine.grant(acquire("a", { ttlMs: 100 }));
    machine.ms = 100;
    assertEquals(machine.do(command(fence)), outcome);
  });
}

Deno.test("inspect shows only what is live", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { ttlMs: 100, capacity: 3 }));
  const fence = machine.grant(acquire("b", { ttlMs: 200, capacity: 3, permits: 2, label: "two" }));
  machine.do(acquire("c", { capacity: 3, queueMs: 50 }));
  machine.do(acquire("d", { capacity: 3, queueMs: 150 }));
  machine.ms = 100;
  assertEquals(machine.do(inspect), {
    type: "inspected",
    fence,
    holders: [{ fence, label: "two", permits: 2, remainingMs: 100 }],
    waiters: 1,
  });
});

// covers: G4
Deno.test("inspect of a record never shows a token", () => {
  const machine = new Machine();
  machine.grant(acquire("secret-holder", { label: "worker" }));
  machine.do(acquire("secret-waiter", { queueMs: 100 }));
  machine.do(release("secret-spent"));
  assertEquals(JSON.stringify(machine.do(inspect)).includes("secret"), false);
});

// Rule 2: acquire is idempotent.

// covers: G11 S5.9
Deno.test("acquire with a token that holds is granted again with the same fence", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a"));
  machine.ms = 5;
  assertEquals(machine.do(acquire("a")), { type: "granted", fence });
  assertEquals([machine.record.fence, machine.holders()], [fence, ["a"]]);
});

// covers: G11
Deno.test("acquire again prolongs the holding and counts a beat", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { ttlMs: 100 }));
  machine.ms = 30;
  machine.grant(acquire("a", { ttlMs: 100 }));
  assertEquals([machine.expiresInMs("a"), machine.record.holders[0]!.beats], [130, 1]);
});

// covers: G11
Deno.test("acquire again is granted although a fair waiter came in between", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a"));
  machine.do(acquire("b", { queueMs: 100, fair: true }));
  assertEquals(machine.do(acquire("a")), { type: "granted", fence });
});

// covers: G2
Deno.test("acquire with a token whose holding is over gets a new fence", () => {
  const machine = new Machine();
  const first = machine.grant(acquire("a", { ttlMs: 100 }));
  machine.ms = 100;
  const second = machine.grant(acquire("a", { ttlMs: 100 }));
  assert(second > first);
  assertEquals(machine.holders(), ["a"]);
});

// Rule 3: room and order.

const rooms: readonly [
  what: string,
  held: number[],
  wanted: number,
  capacity: number,
  ok: boolean,
][] = [
  ["a free mutex", [], 1, 1, true],
  ["a held mutex", [1], 1, 1, false],
  ["a semaphore with room", [1, 1], 1, 3, true],
  ["a full semaphore", [1, 1, 1], 1, 3, false],
  ["a semaphore with too little room", [1, 1], 2, 3, false],
  ["a semaphore with just enough room", [1], 2, 3, true],
  ["readers beside readers", [1, 1, 1], 1, 1_000_000, true],
  ["a writer beside a reader", [1], 1_000_000, 1_000_000, false],
  ["a reader beside a writer", [1_000_000], 1, 1_000_000, false],
  ["a writer alone", [], 1_000_000, 1_000_000, true],
];
for (const [what, held, permits, capacity, ok] of rooms) {
  // covers: G1 S2.3
  Deno.test(`acquire is ${ok ? "granted" : "refused"} for ${what}`, () => {
    const machine = new Machine();
    held.forEach((p, i) => machine.grant(acquire(`h${i}`, { permits: p, capacity })));
    const outcome = machine.do(acquire("x", { permits, capacity }));
    assertEquals(outcome.type, ok ? "granted" : "held");
  });
}

const queues: readonly [what: string, fair: boolean, ok: boolean][] = [
  ["a fair waiter", true, false],
  ["an unfair waiter", false, true],
];
for (const [what, fair, ok] of queues) {
  // covers: G10
  Deno.test(`acquire ${ok ? "passes" : "does not pass"} ${what} who is ahead`, () => {
    const machine = new Machine();
    machine.grant(acquire("a"));
    machine.do(acquire("first", { queueMs: 1000, fair }));
    machine.do(release("a"));
    assertEquals(machine.do(acquire("second")).type, ok ? "granted" : "held");
  });
}

// covers: G10
Deno.test("grants follow a fair queue", () => {
  const machine = new Machine();
  const queue = ["b", "c", "d"];
  machine.grant(acquire("a"));
  for (const t of queue) machine.do(acquire(t, { queueMs: 1000, fair: true }));
  machine.do(release("a"));
  for (const t of queue) {
    for (const other of queue.filter((o) => o > t)) {
      assertEquals(machine.do(acquire(other, { queueMs: 1000, fair: true })).type, "held");
    }
    machine.grant(acquire(t, { queueMs: 1000, fair: true }));
    machine.do(release(t));
  }
});

// covers: G10
Deno.test("a fair waiter who is gone blocks nobody after its ticket has expired", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("dead", { queueMs: 100, fair: true }));
  machine.do(release("a"));
  machine.ms = 99;
  assertEquals(machine.do(acquire("b")), { type: "held", retryAfterMs: 1, ahead: 1 });
  machine.ms = 100;
  machine.grant(acquire("b"));
});

// covers: G10
Deno.test("a fair waiter that does not fit blocks those behind it who would", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { capacity: 2 }));
  machine.do(acquire("both", { permits: 2, capacity: 2, queueMs: 1000, fair: true }));
  assertEquals(machine.do(acquire("one", { capacity: 2 })).type, "held");
});

// covers: G1
Deno.test("another capacity than that of a live holder is a mismatch and never a grant", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { capacity: 2 }));
  assertEquals(machine.do(acquire("b", { capacity: 3 })), {
    type: "capacity-mismatch",
    capacity: 2,
  });
  assertEquals(machine.holders(), ["a"]);
});

Deno.test("the capacity can change when nobody holds", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { capacity: 2, ttlMs: 100 }));
  machine.ms = 100;
  machine.grant(acquire("b", { capacity: 3 }));
  assertEquals(machine.record.holders[0]!.capacity, 3);
});

// Rule 4: fences.

const fences: readonly [what: string, fence: number, expected: (nowUs: number) => number][] = [
  ["an empty record takes the clock", 0, (nowUs) => nowUs],
  ["a record behind the clock takes the clock", START_MS * 1000 - 1, (nowUs) => nowUs],
  ["a record at the clock takes the next", START_MS * 1000, (nowUs) => nowUs + 1],
  [
    "a record ahead of the clock takes the next",
    START_MS * 1000 + 5_000_000,
    (nowUs) => nowUs + 5_000_001,
  ],
];
for (const [what, fence, expected] of fences) {
  // covers: G2 S5.10
  Deno.test(`the fence of a grant on ${what}`, () => {
    const machine = new Machine({ ...EMPTY_RECORD, fence });
    const { nowUs } = machine;
    assertEquals(machine.grant(acquire("a")), expected(nowUs));
    assertEquals(machine.record.fence, expected(nowUs));
  });
}

// covers: G2 S5.10 S3.3
Deno.test("fences rise over releases within one microsecond", () => {
  const machine = new Machine();
  const seen: number[] = [];
  for (let i = 0; i < 5; i++) {
    seen.push(machine.grant(acquire(`t${i}`)));
    machine.do(release(`t${i}`));
  }
  assertEquals(seen, seen.map((_, i) => seen[0]! + i));
});

// covers: G2
Deno.test("a fence is a safe integer until the year 2255", () => {
  const atUs = Date.UTC(2255, 0, 1) * 1000;
  const { outcome } = step(EMPTY_RECORD, acquire("a"), atUs);
  assert(Number.isSafeInteger(fenceOf(outcome) + 1));
});

// covers: G2
Deno.test("a lost record grants a higher fence as soon as the clock has moved by a microsecond", () => {
  const before = step(EMPTY_RECORD, acquire("a"), START_MS * 1000).outcome;
  const after = step(EMPTY_RECORD, acquire("b"), START_MS * 1000 + 1).outcome;
  assert(fenceOf(after) > fenceOf(before));
});

// Rule 5: refusals and tickets.

Deno.test("a refusal names the earliest expiry of a holder", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { capacity: 2, ttlMs: 300 }));
  machine.grant(acquire("b", { capacity: 2, ttlMs: 100 }));
  machine.ms = 40;
  machine.us = 1;
  assertEquals(machine.do(acquire("c", { capacity: 2 })), {
    type: "held",
    retryAfterMs: 60,
    ahead: 0,
  });
});

// covers: G10
Deno.test("a refusal names the earliest expiry of a fair ticket ahead, and how many are ahead", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("b", { queueMs: 200, fair: true }));
  machine.do(acquire("c", { queueMs: 50, fair: false }));
  machine.do(release("a"));
  assertEquals(machine.do(acquire("d")), { type: "held", retryAfterMs: 200, ahead: 2 });
});

Deno.test("retryAfterMs is at least 1", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { ttlMs: 100 }));
  machine.ms = 99;
  machine.us = 999;
  assertEquals(machine.do(acquire("b")), { type: "held", retryAfterMs: 1, ahead: 0 });
});

// covers: S2.4
Deno.test("contenders never change the expiry of a holder", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { ttlMs: 100 }));
  for (let i = 0; i < 50; i++) {
    machine.ms = i;
    machine.do(acquire(`b${i}`, { queueMs: 1000, ttlMs: 5000 }));
  }
  assertEquals(machine.expiresInMs("a"), 100);
});

Deno.test("a refused acquire without queueMs leaves no ticket", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  const before = machine.record;
  machine.do(acquire("b"));
  assertStrictEquals(machine.record, before);
});

// covers: G10 S5.6
Deno.test("a refreshed ticket keeps its place", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("b", { queueMs: 100 }));
  machine.do(acquire("c", { queueMs: 100 }));
  machine.ms = 50;
  assertEquals(machine.do(acquire("b", { queueMs: 100 })), {
    type: "held",
    retryAfterMs: 59_950,
    ahead: 0,
  });
  assertEquals(machine.record.tickets.map((t) => [t.token, t.expiresAtMs - START_MS]), [
    ["b", 150],
    ["c", 100],
  ]);
});

// covers: G10
Deno.test("a late duplicate of a waiter's request never shortens its ticket", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("b", { queueMs: 500 }));
  machine.ms = 10;
  machine.do(acquire("b", { queueMs: 100 }));
  assertEquals(machine.record.tickets[0]!.expiresAtMs - START_MS, 500);
});

Deno.test("a grant removes the ticket of its token and keeps the others", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("b", { queueMs: 100 }));
  machine.do(acquire("c", { queueMs: 100 }));
  machine.do(release("a"));
  machine.grant(acquire("b", { queueMs: 100 }));
  assertEquals(machine.tickets(), ["c"]);
});

// Rule 6: expiry never moves back.

const prolongings: readonly [what: string, command: (fence: number) => Command][] = [
  ["a shorter renewal", (fence) => renew("a", fence, 10)],
  ["a shorter acquire", () => acquire("a", { ttlMs: 10 })],
  ["a shorter hand-over", (fence) => ({ ...adopt("a", fence, "a2"), ttlMs: 10 })],
];
for (const [what, command] of prolongings) {
  // covers: G5 G11
  Deno.test(`${what} leaves the expiry as it was`, () => {
    const machine = new Machine();
    const fence = machine.grant(acquire("a", { ttlMs: 1000 }));
    machine.ms = 50;
    machine.do(command(fence));
    assertEquals(machine.record.holders[0]!.expiresAtMs - START_MS, 1000);
  });

  // covers: G1
  Deno.test(`${what} does not let observers take over before the older promise has run out`, () => {
    const machine = new Machine();
    const fence = machine.grant(acquire("a", { ttlMs: 1000 }));
    machine.ms = 50;
    machine.do(command(fence));
    assertEquals(machine.record.holders[0]!.ttlMs, 950);
  });
}

// covers: S1.4 S3.6 G5
Deno.test("renew extends to the full ttl from now and counts a beat", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a", { ttlMs: 100 }));
  machine.ms = 60;
  assertEquals(machine.do(renew("a", fence, 100)), { type: "renewed" });
  const { expiresAtMs, beats, ttlMs } = machine.record.holders[0]!;
  assertEquals([expiresAtMs - START_MS, beats, ttlMs], [160, 1, 100]);
});

Deno.test("renew with a longer ttl lets observers wait for the longer one", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a", { ttlMs: 100 }));
  machine.do(renew("a", fence, 5000));
  assertEquals(machine.record.holders[0]!.ttlMs, 5000);
});

Deno.test("every renewal changes the record, also within one microsecond", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("aa"));
  const before = machine.record;
  machine.do(renew("aa", fence));
  assert(encodeRecord(machine.record) !== encodeRecord(before));
});

// covers: G5
Deno.test("expiries are rounded up to the next millisecond", () => {
  const machine = new Machine();
  machine.us = 1;
  const fence = machine.grant(acquire("a", { ttlMs: 100 }));
  assertEquals(machine.expiresInMs("a"), 101);
  machine.ms = 10;
  machine.do(renew("a", fence, 100));
  assertEquals(machine.expiresInMs("a"), 111);
});

// covers: G5
Deno.test("the margin for clock skew is added to every expiry that is written", () => {
  const machine = new Machine(EMPTY_RECORD, 1000);
  const fence = machine.grant(acquire("a", { ttlMs: 100 }));
  machine.do(acquire("b", { queueMs: 50 }));
  machine.do({ ...release("x"), spentMs: 70 });
  const { holders, tickets, spent } = machine.record;
  const expiries = [...holders, ...tickets, ...spent].map((e) => e.expiresAtMs - START_MS);
  assertEquals(expiries, [1100, 1050, 1070]);
  machine.ms = 200;
  machine.do(renew("a", fence, 100));
  assertEquals(machine.expiresInMs("a"), 1300);
  machine.do({ ...release("a"), keepMs: 30 });
  assertEquals(machine.record.holders[0]!.expiresAtMs - START_MS, 1230);
});

// Rule 7: who may renew, adopt, release, evict.

/** How a holding of `a` ended, and what a renewal of it is told. */
const endings: readonly [what: string, end: (m: Machine, fence: number) => void, reason: string][] =
  [
    ["that expired", (m) => m.ms = 100, "expired"],
    ["of a lock whose record was lost", (m) => m.record = EMPTY_RECORD, "expired"],
    ["that was evicted", (m, fence) => m.do(evict(fence)), "evicted"],
    ["that was handed over", (m, fence) => m.do(adopt("a", fence, "b")), "superseded"],
    ["that expired and was replaced", (m) => {
      m.ms = 100;
      m.grant(acquire("b"));
    }, "superseded"],
    ["whose token was granted anew", (m) => {
      m.ms = 100;
      m.grant(acquire("a"));
    }, "superseded"],
    ["that was presumed dead", (m, fence) => {
      m.grant(acquire("b", { presumedDead: [{ fence, beats: 0 }] }));
    }, "superseded"],
  ];
for (const [what, end, reason] of endings) {
  for (const verb of ["renew", "adopt"] as const) {
    // covers: G4 S1.4 S5.12
    Deno.test(`${verb} of a holding ${what} is refused as ${reason} and changes nothing`, () => {
      const machine = new Machine();
      const fence = machine.grant(acquire("a", { ttlMs: 100 }));
      end(machine, fence);
      const before = machine.record;
      const command = verb === "renew" ? renew("a", fence) : adopt("a", fence, "z");
      assertEquals(machine.do(command), { type: "refused", reason } as Outcome);
      assertStrictEquals(machine.record, before);
    });
  }
}

const strangers: readonly [what: string, token: string, by: number][] = [
  ["another token", "b", 0],
  ["a smaller fence", "a", -1],
  ["a larger fence", "a", 1],
];
for (const [what, token, by] of strangers) {
  for (const verb of ["renew", "adopt"] as const) {
    // covers: G4 S3.6
    Deno.test(`${verb} with ${what} changes nothing`, () => {
      const machine = new Machine();
      const fence = machine.grant(acquire("a")) + by;
      const before = machine.record;
      const command = verb === "renew" ? renew(token, fence) : adopt(token, fence, "z");
      assertEquals(machine.do(command).type, "refused");
      assertStrictEquals(machine.record, before);
    });
  }
}

// covers: G4 S2.8 S3.5 S4.5 S1.8
Deno.test("release of another token frees nothing", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  assertEquals(machine.do(release("b")), { type: "released", freed: false });
  assertEquals(machine.holders(), ["a"]);
});

// covers: G4
Deno.test("evict with a fence removes only that holding", () => {
  const machine = new Machine();
  const first = machine.grant(acquire("a", { capacity: 3 }));
  machine.grant(acquire("b", { capacity: 3 }));
  const outcome = machine.do({ ...evict(), fence: first });
  assertEquals([outcome, machine.holders()], [{ type: "evicted", count: 1 }, ["b"]]);
});

// covers: G4
Deno.test("evict never touches a holding after its maxFence", () => {
  const machine = new Machine();
  const first = machine.grant(acquire("a"));
  machine.do(release("a"));
  machine.grant(acquire("b"));
  const before = machine.record;
  assertEquals(machine.do(evict(first)), { type: "evicted", count: 0 });
  assertStrictEquals(machine.record, before);
});

// covers: G4 G9
Deno.test("evict spends the tokens that it removes", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a"));
  machine.do(evict(fence));
  assertEquals(machine.do(acquire("a")), { type: "spent" });
  assertEquals(machine.do(release("a")), { type: "released", freed: false });
});

Deno.test("evict removes what min-hold keeps", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a"));
  machine.do(release("a", 1000));
  assertEquals(machine.do(evict(fence)), { type: "evicted", count: 1 });
  machine.grant(acquire("b"));
});

// Rule 8: release spends the token.

const releases: readonly [what: string, held: boolean][] = [["that held", true], [
  "that never held",
  false,
]];
for (const [what, held] of releases) {
  // covers: G9 G11 G7
  Deno.test(`an acquire with a released token ${what} is refused as spent`, () => {
    const machine = new Machine();
    if (held) machine.grant(acquire("a"));
    assertEquals(machine.do(release("a")), { type: "released", freed: held });
    const before = machine.record;
    assertEquals(machine.do(acquire("a", { queueMs: 1000 })), { type: "spent" });
    assertStrictEquals(machine.record, before);
  });

  // covers: G11 S2.9 S4.4
  Deno.test(`a second release of a token ${what} answers as the first and changes nothing`, () => {
    const machine = new Machine();
    if (held) machine.grant(acquire("a"));
    const first = machine.do(release("a"));
    machine.grant(acquire("b"));
    const before = machine.record;
    assertEquals(machine.do(release("a")), first);
    assertStrictEquals(machine.record, before);
  });
}

// covers: G9
Deno.test("release removes the ticket of its token", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("b", { queueMs: 1000, fair: true }));
  machine.do(acquire("c", { queueMs: 1000, fair: true }));
  machine.do(release("b"));
  assertEquals(machine.tickets(), ["c"]);
});

Deno.test("a token stays spent for spentMs and no longer", () => {
  const machine = new Machine();
  machine.do({ ...release("a"), spentMs: 100 });
  machine.ms = 99;
  assertEquals(machine.do(acquire("a")).type, "spent");
  machine.ms = 100;
  assertEquals(machine.do(acquire("a")).type, "granted");
});

Deno.test(`the newest ${MAX_SPENT} spent tokens are remembered`, () => {
  const machine = new Machine();
  for (let i = 0; i <= MAX_SPENT; i++) machine.do(release(`t${i}`));
  assertEquals(machine.spent(), Array.from({ length: MAX_SPENT }, (_, i) => `t${i + 1}`));
});

// covers: G1
Deno.test("min-hold keeps the permits taken until it is over", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { ttlMs: 100 }));
  machine.ms = 10;
  assertEquals(machine.do(release("a", 500)), { type: "released", freed: true });
  machine.ms = 509;
  assertEquals(machine.do(acquire("b")), { type: "held", retryAfterMs: 1, ahead: 0 });
  machine.ms = 510;
  machine.grant(acquire("b"));
});

const keptAttempts: readonly [what: string, command: (fence: number) => Command, type: string][] = [
  ["renewed", (fence) => renew("a", fence), "refused"],
  ["adopted", (fence) => adopt("a", fence, "b"), "refused"],
  ["acquired again", () => acquire("a"), "spent"],
  ["released again, for longer", () => release("a", 60_000), "released"],
];
for (const [what, command, type] of keptAttempts) {
  // covers: G4
  Deno.test(`what min-hold keeps cannot be ${what}`, () => {
    const machine = new Machine();
    const fence = machine.grant(acquire("a"));
    machine.do(release("a", 500));
    const before = machine.record;
    assertEquals(machine.do(command(fence)).type, type as Outcome["type"]);
    assertStrictEquals(machine.record, before);
  });
}

Deno.test("what min-hold keeps has no token, the fence of its grant, and its own span", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a", { label: "cron" }));
  machine.do(release("a", 500));
  assertEquals(machine.record.holders, [{
    token: null,
    fence,
    permits: 1,
    capacity: 1,
    ttlMs: 500,
    beats: 1,
    expiresAtMs: START_MS + 500,
    label: "cron",
  }]);
});

Deno.test("release of a token that does not hold keeps nothing", () => {
  const machine = new Machine();
  machine.do(release("a", 500));
  assertEquals(machine.holders(), []);
});

// Rule 9: hand-over.

// covers: G2 G4
Deno.test("adopt replaces the token and gives a larger fence", () => {
  const machine = new Machine();
  const first = machine.grant(acquire("a", { ttlMs: 100, label: "giver" }));
  machine.ms = 60;
  const fence = fenceOf(machine.do({ ...adopt("a", first, "b"), ttlMs: 100 }));
  assert(fence > first);
  assertEquals(machine.record.holders, [{
    token: "b",
    fence,
    permits: 1,
    capacity: 1,
    ttlMs: 100,
    beats: 0,
    expiresAtMs: START_MS + 160,
    label: "giver",
  }]);
});

// covers: G11
Deno.test("adopt is idempotent in the new token", () => {
  const machine = new Machine();
  const first = machine.grant(acquire("a"));
  const outcome = machine.do(adopt("a", first, "b"));
  assertEquals(machine.do(adopt("a", first, "b")), outcome);
  assertEquals(machine.holders(), ["b"]);
});

// covers: G1 G4
Deno.test("a hand-over that is delivered twice has one winner", () => {
  const machine = new Machine();
  const first = machine.grant(acquire("a"));
  machine.do(adopt("a", first, "b"));
  assertEquals(machine.do(adopt("a", first, "c")), { type: "refused", reason: "superseded" });
  assertEquals(machine.holders(), ["b"]);
});

const givers: readonly [what: string, command: (fence: number) => Command, outcome: Outcome][] = [
  ["renewal", (fence) => renew("a", fence), { type: "refused", reason: "superseded" }],
  ["release", () => release("a"), { type: "released", freed: false }],
  ["acquire", () => acquire("a"), { type: "spent" }],
];
for (const [what, command, outcome] of givers) {
  // covers: G4
  Deno.test(`a late ${what} of the giver does nothing to the taker`, () => {
    const machine = new Machine();
    const fence = machine.grant(acquire("a"));
    machine.do(adopt("a", fence, "b"));
    const before = machine.record;
    assertEquals(machine.do(command(fence)), outcome);
    assertStrictEquals(machine.record, before);
  });
}

// covers: G9
Deno.test("adopt with a new token that is already over is refused", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a"));
  machine.do(release("b"));
  assertEquals(machine.do(adopt("a", fence, "b")).type, "refused");
  assertEquals(machine.holders(), ["a"]);
});

// Rule 10: presumed dead.

// covers: S5.7
Deno.test("a holding that the caller watched die makes room for its acquire", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a"));
  machine.grant(acquire("b", { presumedDead: [{ fence, beats: 0 }] }));
  assertEquals(machine.holders(), ["b"]);
});

const unlike: readonly [what: string, beat: { fence: number; beats: number }][] = [
  ["has renewed meanwhile", { fence: 0, beats: 1 }],
  ["is another", { fence: -1, beats: 0 }],
];
for (const [what, by] of unlike) {
  // covers: S5.8 G1
  Deno.test(`a holding that ${what} is not presumed dead`, () => {
    const machine = new Machine();
    const fence = machine.grant(acquire("a"));
    const presumedDead = [{ fence: fence + by.fence, beats: by.beats }];
    assertEquals(machine.do(acquire("b", { presumedDead })).type, "held");
    assertEquals(machine.holders(), ["a"]);
  });
}

Deno.test("a refused acquire drops nobody whom it presumes dead", () => {
  const machine = new Machine();
  const fence = machine.grant(acquire("a", { capacity: 2 }));
  machine.grant(acquire("b", { capacity: 2 }));
  const presumedDead = [{ fence, beats: 0 }];
  const outcome = machine.do(acquire("c", { permits: 2, capacity: 2, queueMs: 9, presumedDead }));
  assertEquals([outcome.type, machine.holders()], ["held", ["a", "b"]]);
});

// Rule 11: bounds.

/** A machine with as many holders as fit. */
function fullMachine(): Machine {
  const machine = new Machine();
  for (let i = 0; i < MAX_ENTRIES; i++) {
    machine.grant(acquire(`h${i}`, { capacity: 1000, ttlMs: 1000 + i }));
  }
  return machine;
}

Deno.test(`a holder beyond ${MAX_ENTRIES} is refused as full until one expires`, () => {
  const machine = fullMachine();
  const before = machine.record;
  assertEquals(machine.do(acquire("x", { capacity: 1000 })), { type: "full", retryAfterMs: 1000 });
  assertStrictEquals(machine.record, before);
  machine.ms = 1000;
  machine.grant(acquire("x", { capacity: 1000 }));
});

Deno.test("a full record still renews, hands over and acquires again", () => {
  const machine = fullMachine();
  const { fence } = machine.record.holders[7]!;
  assertEquals(machine.do(renew("h7", fence)).type, "renewed");
  assertEquals(machine.do(acquire("h7", { capacity: 1000 })).type, "granted");
  assertEquals(machine.do(adopt("h7", fence, "x")).type, "granted");
  assertEquals(machine.record.holders.length, MAX_ENTRIES);
});

Deno.test(`a ticket beyond ${MAX_ENTRIES} is refused as full, and one of them can be refreshed`, () => {
  const machine = new Machine();
  machine.grant(acquire("a", { ttlMs: 5000 }));
  for (let i = 0; i < MAX_ENTRIES; i++) machine.do(acquire(`t${i}`, { queueMs: 100 }));
  const before = machine.record;
  assertEquals(machine.do(acquire("x", { queueMs: 100 })), { type: "full", retryAfterMs: 5000 });
  assertStrictEquals(machine.record, before);
  machine.ms = 50;
  assertEquals(machine.do(acquire("t3", { queueMs: 100 })).type, "held");
  assertEquals(machine.do(acquire("y")).type, "held");
  machine.ms = 100;
  assertEquals(machine.do(acquire("x", { queueMs: 100 })).type, "held");
  assertEquals(machine.tickets(), ["t3", "x"]);
});

// Whom to wake.

const wakings: readonly [
  what: string,
  command: (m: Machine) => Command,
  wake: string | undefined,
][] = [
  ["release of the only holder", () => release("a"), "first"],
  ["release of a token that does not hold", () => release("x"), undefined],
  ["evict of the holder", (m) => evict(m.record.fence), "first"],
  ["renew", (m) => renew("a", m.record.fence), undefined],
  ["inspect", () => inspect, undefined],
  ["a refused acquire", () => acquire("x"), undefined],
  ["release of the only holder with min-hold", () => release("a", 100), undefined],
];
for (const [what, command, wake] of wakings) {
  Deno.test(`${what} wakes ${wake === undefined ? "nobody" : "the first waiter"}`, () => {
    const machine = new Machine();
    machine.grant(acquire("a"));
    machine.do(acquire("first", { queueMs: 1000 }));
    machine.do(acquire("second", { queueMs: 1000 }));
    assertEquals(machine.step(command(machine)).wake, wake);
  });
}

Deno.test("a waiter whose ticket has expired is not woken", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("dead", { queueMs: 100 }));
  machine.do(acquire("alive", { queueMs: 1000 }));
  machine.ms = 100;
  assertEquals(machine.step(evict()).wake, "alive");
});

// covers: G10
Deno.test("a waiter that leaves wakes the one that it blocked", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("first", { queueMs: 1000, fair: true }));
  machine.do(acquire("second", { queueMs: 1000, fair: true }));
  machine.do(release("a"));
  assertEquals(machine.step(release("first")).wake, "second");
});

Deno.test("a grant wakes the next waiter where permits are left", () => {
  const machine = new Machine();
  machine.grant(acquire("all", { permits: 2, capacity: 2 }));
  machine.do(acquire("b", { capacity: 2, queueMs: 1000 }));
  machine.do(acquire("c", { capacity: 2, queueMs: 1000 }));
  assertEquals(machine.step(release("all")).wake, "b");
  assertEquals(machine.step(acquire("b", { capacity: 2, queueMs: 1000 })).wake, "c");
});

Deno.test("a release that leaves too little room for the first waiter wakes nobody", () => {
  const machine = new Machine();
  machine.grant(acquire("a", { capacity: 2 }));
  machine.grant(acquire("b", { capacity: 2 }));
  machine.do(acquire("both", { permits: 2, capacity: 2, queueMs: 1000 }));
  machine.do(acquire("one", { capacity: 2, queueMs: 1000 }));
  assertEquals(machine.step(release("a")).wake, undefined);
});

Deno.test("a refresh can make a fair ticket of an unfair one, however fresh it is", () => {
  const machine = new Machine();
  machine.grant(acquire("a"));
  machine.do(acquire("w", { queueMs: 1000 }));
  machine.do(acquire("w", { queueMs: 1000, fair: true }));
  machine.do(release("a"));
  assertEquals(machine.do(acquire("x")).type, "held");
  assertEquals(machine.do(acquire("w")).type, "granted");
});

// Rule 12: what does not change is the same reference.

const unchanged: readonly [what: string, command: (m: Machine) => Command][] = [
  ["a refused acquire", () => acquire("x")],
  ["a refresh of a ticket that ends no later", () => acquire("w", { queueMs: 1000 })],
  ["a capacity mismatch", () => acquire("x", { capacity: 7 })],
  ["an acquire with a spent token", () => acquire("s")],
  ["a refused renewal", () => renew("x", 1)],
  ["a refused hand-over", () => adopt("x", 1, "y")],
  ["a second release", () => release("s")],
  ["inspect", () => inspect],
  ["an eviction of nobody", () => evict(0)],
];
for (const [what, command] of unchanged) {
  Deno.test(`${what} gives back the same record`, () => {
    const machine = new Machine();
    machine.do(release("s"));
    machine.grant(acquire("a"));
    machine.do(acquire("w", { queueMs: 1000 }));
    const before = machine.record;
    machine.do(command(machine));
    assertStrictEquals(machine.record, before);
  });
}

Deno.test("lines of a later minor version go through every change", () => {
  const machine = new Machine({ ...EMPTY_RECORD, extra: ["x of tomorrow"] });
  const fence = machine.grant(acquire("a"));
  machine.do(acquire("b", { queueMs: 10 }));
  machine.do(renew("a", fence));
  machine.do(adopt("a", fence, "c"));
  machine.do(evict());
  machine.do(release("b"));
  assertEquals(machine.record.extra, ["x of tomorrow"]);
});

// Properties.

const CAPACITY = 3;

/** A command as a choice, so that shrinking one does not make the others meaningless. */
const choice = fc.record({
  type: fc.constantFrom(
    ...["acquire", "acquire", "acquire", "acquire", "renew", "renew"] as const,
    ...["release", "release", "adopt", "evict", "inspect"] as const,
  ),
  who: fc.nat(5),
  toWhom: fc.nat(5),
  permits: fc.integer({ min: 1, max: CAPACITY }),
  ttlMs: fc.constantFrom(10, 25, 100),
  spanMs: fc.constantFrom(0, 10, 50),
  fair: fc.boolean(),
  isWrong: fc.boolean(),
  presumes: fc.boolean(),
  passUs: fc.oneof(
    { weight: 6, arbitrary: fc.nat(4000) },
    { weight: 2, arbitrary: fc.nat(60_000) },
    { weight: 1, arbitrary: fc.integer({ min: -60_000, max: 0 }) },
  ),
});
type Choice = typeof choice extends fc.Arbitrary<infer T> ? T : never;

function commandOf(c: Choice, record: LeaseRecord): Command {
  const token = `t${c.who}`;
  const holder = record.holders.find((h) => h.token === token);
  const fence = (holder?.fence ?? record.fence) + (c.isWrong && c.who === 0 ? 1 : 0);
  switch (c.type) {
    case "acquire": {
      const dead = c.presumes ? record.holders.slice(0, 1) : [];
      return acquire(token, {
        permits: c.permits,
        capacity: CAPACITY,
        ttlMs: c.ttlMs,
        queueMs: c.spanMs,
        fair: c.fair,
        presumedDead: dead.map((h) => ({ fence: h.fence, beats: h.beats - (c.isWrong ? 1 : 0) })),
      });
    }
    case "renew":
      return renew(token, fence, c.ttlMs);
    case "release":
      return { type: "release", token, keepMs: c.fair ? c.spanMs : 0, spentMs: c.ttlMs };
    case "adopt":
      return { type: "adopt", token, fence, newToken: `n${c.toWhom}-${c.passUs}`, ttlMs: c.ttlMs };
    case "inspect":
      return inspect;
    case "evict":
      return { ...evict(record.fence - c.spanMs), fence: c.fair ? fence : undefined };
  }
}

interface Moment {
  readonly before: LeaseRecord;
  readonly command: Command;
  readonly nowUs: number;
  readonly marginMs: number;
  readonly next: Step;
}

/** Runs random commands and shows each step; a violation is shrunk to the shortest run. */
function everyStep(name: string, check: (moment: Moment) => void): void {
  Deno.test(name, () => {
    const run = fc.array(choice, { maxLength: 40, size: "max" });
    fc.assert(
      fc.property(run, fc.constantFrom(0, 20), (choices, marginMs) => {
        let record = EMPTY_RECORD;
        let nowUs = START_MS * 1000;
        for (const c of choices) {
          nowUs += c.passUs;
          const command = commandOf(c, record);
          const next = step(record, command, nowUs, marginMs) as Step;
          check({ before: record, command, nowUs, marginMs, next });
          record = next.record;
        }
      }),
      { numRuns: 400 },
    );
  });
}

const isLiveAt = (nowUs: number) => (e: { expiresAtMs: number }): boolean =>
  nowUs < e.expiresAtMs * 1000;

function sameHolding(a: Holder, b: Holder): boolean {
  return a.token === b.token && a.fence === b.fence;
}

// covers: G1
everyStep("the live holders never have more permits than the capacity", ({ next, nowUs }) => {
  const live = next.record.holders.filter(isLiveAt(nowUs));
  const permits = live.reduce((sum, h) => sum + h.permits, 0);
  assert(permits <= CAPACITY, `${permits} permits of ${CAPACITY}`);
});

// covers: G2
everyStep("fences strictly rise in grant order, whatever the clock does", ({ before, next }) => {
  assert(next.record.fence >= before.fence);
  for (const h of next.record.holders) {
    const isNew = !before.holders.some((b) => b.fence === h.fence);
    if (isNew) assert(h.fence > before.fence && h.fence === next.record.fence);
  }
});

// covers: G5 G11
everyStep(
  "the expiry of a holding never moves back except by its release or an eviction",
  ({ before, command, next }) => {
    for (const was of before.holders) {
      const is = next.record.holders.find((h) => sameHolding(was, h));
      if (is) assert(is.expiresAtMs >= was.expiresAtMs || is.token === null);
      else if (is === undefined && command.type === "renew") throw new Error("a renewal removed");
    }
  },
);

// covers: G4
everyStep(
  "only its own token, an eviction or a grant over a dead holding changes a holding",
  ({ before, command, nowUs, next }) => {
    for (const was of before.holders.filter(isLiveAt(nowUs))) {
      const is = next.record.holders.find((h) => sameHolding(was, h));
      if (is === was) continue;
      const isOwn = "token" in command && command.token === was.token;
      const isPresumedDead = command.type === "acquire" &&
        command.presumedDead.some((d) => d.fence === was.fence && d.beats === was.beats);
      assert(isOwn || isPresumedDead || command.type === "evict", JSON.stringify(command));
    }
  },
);

// covers: G1 S5.7
Deno.test("an observer who sees a holding unchanged for its span outlasts every promise to it", () => {
  const marginMs = 20;
  const beat = fc.record({
    command: fc.constantFrom("acquire", "renew"),
    ttlMs: fc.integer({ min: 10, max: 100 }),
    passUs: fc.nat(30_000),
    skewUs: fc.nat(marginMs * 1000),
  });
  fc.assert(fc.property(fc.array(beat, { maxLength: 8 }), (beats) => {
    let record = step(EMPTY_RECORD, acquire("a", { ttlMs: 50 }), START_MS * 1000, marginMs).record;
    let trueUs = START_MS * 1000;
    let promisedUs = trueUs + 50_000;
    for (const { command, ttlMs, passUs, skewUs } of beats) {
      trueUs += passUs;
      const [{ fence }] = record.holders as [Holder];
      const next = step<Command>(
        record,
        command === "acquire" ? acquire("a", { ttlMs }) : renew("a", fence, ttlMs),
        trueUs + skewUs,
        marginMs,
      );
      const [holder] = next.record.holders as [Holder];
      if (next.record === record || holder.fence !== fence) return;
      record = next.record;
      promisedUs = Math.max(promisedUs, trueUs + ttlMs * 1000);
      assert(trueUs + holder.ttlMs * 1000 >= promisedUs - 1000);
    }
  }));
});

everyStep("an unchanged record is the same reference", ({ before, next }) => {
  const same = encodeRecord(before) === encodeRecord(next.record);
  assertEquals(next.record === before, same);
});

// covers: G9 G11 G7
everyStep("a spent token is never granted", ({ before, command, nowUs, next }) => {
  const isSpent = (token: string) =>
    before.spent.some((s) => s.token === token && isLiveAt(nowUs)(s));
  if (command.type !== "acquire" || !isSpent(command.token)) return;
  assertEquals(next, { record: before, outcome: { type: "spent" } });
});

/** Whether a waiter's token had a holding before, as no client's has that waits. */
function wasUsed(token: string, { before, next }: Moment): boolean {
  return [...before.holders, ...next.record.spent].some((e) => e.token === token);
}

everyStep("wake names a ticket that would be granted now", (moment) => {
  const { nowUs, next } = moment;
  if (next.wake === undefined || wasUsed(next.wake, moment)) return;
  const ticket = next.record.tickets.find((t) => t.token === next.wake)!;
  const { token, permits, fair } = ticket;
  const command = acquire(token, { permits, fair, capacity: CAPACITY });
  assertEquals(step(next.record, command, nowUs).outcome.type, "granted");
});

// covers: G8
everyStep(
  "a change that makes room for the first waiter wakes it",
  (moment) => {
    const { before, command, nowUs, next } = moment;
    if (command.type !== "release" && command.type !== "evict") return;
    if (next.record === before) return;
    const first = next.record.tickets.find(isLiveAt(nowUs));
    if (!first || wasUsed(first.token, moment)) return;
    const { token, permits, fair } = first;
    const again = acquire(token, { permits, fair, capacity: CAPACITY });
    const isFree = step(next.record, again, nowUs).outcome.type === "granted";
    assertEquals(next.wake, isFree ? token : undefined);
  },
);

everyStep("contenders leave every holder as it was", ({ before, command, next }) => {
  if (command.type !== "acquire" || next.outcome.type === "granted") return;
  assertStrictEquals(next.record.holders, before.holders);
});

everyStep("what a grant says is in the record", ({ command, nowUs, next }) => {
  const { outcome } = next;
  if (outcome.type !== "granted") return;
  const token = command.type === "adopt" ? command.newToken : (command as AcquireCommand).token;
  const live = next.record.holders.filter(isLiveAt(nowUs)).filter((h) => h.token === token);
  assertEquals(live.map((h) => h.fence), [outcome.fence]);
});

everyStep("a refusal says when to ask again: from 1 ms to the longest span", ({ next }) => {
  const { outcome } = next;
  if (outcome.type !== "held" && outcome.type !== "full") return;
  assert(Number.isInteger(outcome.retryAfterMs) && outcome.retryAfterMs >= 1);
  assert(outcome.retryAfterMs <= 60_000 + 200);
});

// covers: G12
everyStep("every record that can arise is read back as it was", ({ next }) => {
  assertEquals(decodeRecord(encodeRecord(next.record)), next.record);
});

everyStep("a record never grows beyond its bounds", ({ next }) => {
  const { holders, tickets, spent } = next.record;
  assert(holders.length <= MAX_ENTRIES && tickets.length <= MAX_ENTRIES);
  assert(spent.length <= MAX_SPENT);
});

everyStep("step changes none of its inputs", ({ before, command, nowUs, marginMs }) => {
  const freeze = (r: LeaseRecord): LeaseRecord => {
    for (const list of [r.holders, r.tickets, r.spent, r.extra]) {
      for (const entry of list) Object.freeze(entry);
      Object.freeze(list);
    }
    return Object.freeze(r);
  };
  step(freeze(before), Object.freeze(command), nowUs, marginMs);
});
