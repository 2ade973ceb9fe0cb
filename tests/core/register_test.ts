import { assert, assertEquals, assertRejects, assertThrows } from "@std/assert";
import fc from "fast-check";
import { decodeRecord, encodeRecord } from "../../src/core/codec.ts";
import { StorageError } from "../../src/core/errors.ts";
import {
  type Command,
  EMPTY_RECORD,
  type Held,
  type Holder,
  type Inspected,
  type Outcome,
} from "../../src/core/record.ts";
import {
  DEFAULT_RETENTION_MS,
  RegisterStorage,
  type RegisterStorageOptions,
} from "../../src/core/register.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { acquire, adopt, evict, inspect, release, renew } from "../support/commands.ts";
import {
  MemoryRegister,
  type MemoryRegisterOptions,
  type RegisterFault,
  SharedValues,
} from "../support/memory_register.ts";

const START_MS = 1_700_000_000_000;

/** One process: a storage over a register of its own, and a clock of its own. */
class Client {
  readonly clock: ManualClock;
  readonly register: MemoryRegister;
  readonly storage: RegisterStorage<number | null>;

  constructor(shared: SharedValues, options: ClientOptions = {}) {
    this.clock = options.clock ?? new ManualClock(START_MS);
    this.register = new MemoryRegister(shared, options.register);
    this.storage = new RegisterStorage(
      this.register,
      {
        serverTime: options.register?.nowMs !== undefined,
        checksText: options.register?.glances,
      },
      {
        maxClockSkewMs: 0,
        clock: this.clock,
        entropy: { uuid: () => crypto.randomUUID(), random: () => 0 },
        ...options.storage,
        pollMs: options.storage?.pollMs ?? { min: 10, max: 70 },
      },
    );
  }

  do<C extends Command>(command: C, name = "job"): Promise<Outcome> {
    return this.storage.execute(name, command);
  }

  /** Does it, and says which requests it took. */
  async cost(command: Command, name = "job"): Promise<string> {
    this.register.taken();
    await this.do(command, name);
    return this.register.taken();
  }

  async grant(command: Command, name = "job"): Promise<number> {
    const outcome = await this.do(command, name);
    if (outcome.type !== "granted") throw new Error(`a grant, got ${JSON.stringify(outcome)}`);
    return outcome.fence;
  }
}

interface ClientOptions {
  readonly clock?: ManualClock;
  readonly register?: MemoryRegisterOptions;
  readonly storage?: RegisterStorageOptions;
}

/** Two processes with clocks that agree. */
function twoClients(options: ClientOptions = {}): [Client, Client, SharedValues] {
  const shared = new SharedValues();
  const clock = new ManualClock(START_MS);
  return [
    new Client(shared, { clock, ...options }),
    new Client(shared, { clock, ...options }),
    shared,
  ];
}

function holdersOf(shared: SharedValues, name = "job"): readonly Holder[] {
  return decodeRecord(shared.values.get(name)!.value).holders;
}

// What a command costs.

Deno.test("the first acquire of a name is one write where an absent value has a version", async () => {
  const [a] = twoClients();
  assertEquals(await a.cost(acquire("aa")), "write");
});

Deno.test("the first acquire of a name reads first where an absent value has no version", async () => {
  const [a] = twoClients({ register: { hasAbsent: false } });
  assertEquals(await a.cost(acquire("aa")), "read write");
});

Deno.test("acquire, renew and release without contention are one write each", async () => {
  const [a] = twoClients();
  const fence = await a.grant(acquire("aa"));
  const costs = [
    await a.cost(renew("aa", fence)),
    await a.cost(release("aa")),
    await a.cost(acquire("bb")),
    await a.cost(release("bb")),
  ];
  assertEquals(costs, ["write", "write", "write", "write"]);
});

Deno.test("a wrong guess that a name is absent costs a read and is not repeated", async () => {
  const [a, b] = twoClients();
  await a.do(acquire("aa"));
  assertEquals(await b.cost(acquire("bb")), "write read");
  assertEquals(await b.cost(acquire("bb")), "read");
});

Deno.test("inspect is one read", async () => {
  const [a] = twoClients();
  await a.do(acquire("aa"));
  assertEquals(await a.cost(inspect), "read");
});

Deno.test("a memory that was wrong is not trusted for the next command, and is trusted again after it", async () => {
  const [a, b] = twoClients();
  await a.do(acquire("aa"));
  await a.do(release("aa"));
  await b.do(acquire("bb"));
  await b.do(release("bb"));
  assertEquals(await a.cost(acquire("cc")), "write read write");
  assertEquals(await a.cost(release("cc")), "read write");
  assertEquals(await a.cost(acquire("dd")), "write");
});

Deno.test("a memory that is wrong again and again costs a read each time, and no write that fails", async () => {
  const [a, b] = twoClients();
  const costs: string[] = [];
  for (let i = 0; i < 4; i++) {
    costs.push(await a.cost(acquire(`a${i}`)), await a.cost(release(`a${i}`)));
    await b.do(acquire(`b${i}`));
    await b.do(release(`b${i}`));
  }
  assertEquals(costs.slice(0, 4), ["write", "write", "write read write", "read write"]);
  assertEquals(costs.slice(4), [
    "write read write",
    "read write",
    "write read write",
    "read write",
  ]);
});

Deno.test("a memory that was wrong stays untrusted while it goes on being wrong", async () => {
  const [a, b] = twoClients();
  await a.do(acquire("aa"));
  await a.do(release("aa"));
  const fence = await b.grant(acquire("bb", { ttlMs: 100 }));
  const costs = [await a.cost(acquire("cc"))];
  for (let i = 0; i < 3; i++) {
    await a.clock.advance(i === 0 ? 90 : 75);
    await b.do(renew("bb", fence, 100));
    await a.clock.advance(15);
    costs.push(await a.cost(acquire("cc")));
  }
  assertEquals(costs, ["write read", "read", "read", "read"]);
});

// covers: S5.8
Deno.test("a waiter whose memory was wrong polls with one read, not with a write that fails", async () => {
  const [a, b] = twoClients();
  await a.do(acquire("aa"));
  await a.do(release("aa"));
  await b.do(acquire("bb"));
  assertEquals(await a.cost(acquire("cc")), "write read");
  assertEquals(await a.cost(acquire("cc")), "read");
  assertEquals(await a.cost(acquire("cc")), "read");
});

Deno.test("a memory that says held is asked again before a refusal, with one read", async () => {
  const [a, b] = twoClients();
  await b.do(acquire("bb"));
  await a.do(acquire("aa"));
  assertEquals(await a.cost(acquire("aa")), "read");
});

// covers: G11
Deno.test("a refusal is only ever given from a fresh read", async () => {
  const [a, b] = twoClients();
  await a.do(acquire("aa"));
  await b.do(acquire("bb"));
  assertEquals((await b.do(acquire("bb"))).type, "held");
  await a.do(release("aa"));
  assertEquals((await b.do(acquire("bb"))).type, "granted");
});

// covers: G11
Deno.test("a renewal is not refused from memory", async () => {
  const [a, b] = twoClients();
  const fence = await a.grant(acquire("aa"));
  const baton = await b.do(adopt("aa", fence, "bb"));
  assertEquals(baton.type, "granted");
  assertEquals(await a.do(renew("aa", fence)), { type: "refused", reason: "superseded" });
  assertEquals((await a.do(release("aa"))).type, "released");
});

Deno.test("a conflict that hands over what is stored saves the read", async () => {
  const [a, b] = twoClients({ register: { handsOver: true } });
  await a.do(acquire("aa"));
  assertEquals(await b.cost(acquire("bb")), "write");
  await a.do(release("aa"));
  assertEquals(await b.cost(acquire("bb")), "read write");
});

Deno.test("the records of the last 1,000 names are remembered", async () => {
  const [a] = twoClients({ register: { hasAbsent: false } });
  for (let i = 0; i < 1000; i++) await a.do(acquire("aa"), `n${i}`);
  await a.do(renew("aa", START_MS * 1000), "n0");
  await a.do(acquire("aa"), "n1000");
  assertEquals(await a.cost(release("aa"), "n0"), "write");
  assertEquals(await a.cost(release("aa"), "n2"), "write");
  assertEquals(await a.cost(release("aa"), "n1"), "read write");
});

// Requests that are lost, denied or overtaken.

interface Lost {
  readonly fault: RegisterFault;
  readonly cost: string;
}
const losses: readonly Lost[] = [
  { fault: "lose-request", cost: "write read write" },
  { fault: "lose-reply", cost: "write read" },
  { fault: "deny", cost: "write read" },
  { fault: "conflict", cost: "write read write" },
];
const doings: readonly [
  what: string,
  command: (fence: number) => Command,
  expected: (fence: number) => Outcome,
][] = [
  ["acquire again", () => acquire("aa"), (fence) => ({ type: "granted", fence })],
  ["renew", (fence) => renew("aa", fence), () => ({ type: "renewed" })],
  ["release", () => release("aa"), () => ({ type: "released", freed: true })],
  [
    "adopt",
    (fence) => adopt("aa", fence, "bb"),
    (fence) => ({ type: "granted", fence: fence + 1 }),
  ],
  ["evict", () => evict(), () => ({ type: "evicted", count: 1 })],
];
for (const { fault, cost } of losses) {
  for (const [what, command, expected] of doings) {
    // covers: G11
    Deno.test(`${what} with a write that suffers ${fault} has the outcome that it would have had`, async () => {
      const [a] = twoClients();
      const fence = await a.grant(acquire("aa"));
      a.register.writeFaults.push(fault);
      a.register.taken();
      assertEquals(await a.do(command(fence)), expected(fence));
      assertEquals(a.register.taken(), cost);
    });
  }

  // covers: G11
  Deno.test(`a first acquire with a write that suffers ${fault} is granted once`, async () => {
    const [a, , shared] = twoClients();
    a.register.writeFaults.push(fault);
    const fence = await a.grant(acquire("aa"));
    assertEquals(holdersOf(shared).map((h) => [h.token, h.fence]), [["aa", fence]]);
  });
}

Deno.test("a denied write whose result is handed over costs nothing more", async () => {
  const [a] = twoClients({ register: { handsOver: true } });
  a.register.writeFaults.push("deny");
  assertEquals(await a.cost(acquire("aa")), "write");
});

// covers: G5 G11
Deno.test("a renewal whose write was lost is not confirmed by our token being there", async () => {
  const [a, , shared] = twoClients();
  const fence = await a.grant(acquire("aa", { ttlMs: 1000 }));
  await a.clock.advance(500);
  a.register.writeFaults.push("lose-request");
  await a.do(renew("aa", fence, 1000));
  assertEquals(holdersOf(shared)[0]!.expiresAtMs, START_MS + 1500);
});

// covers: G11
Deno.test("a grant whose reply was lost is found although somebody has queued since", async () => {
  const [a, b, shared] = twoClients();
  a.register.writeFaults.push("lose-reply");
  a.register.onRequest = ({ type }) => {
    if (type !== "read") return;
    a.register.onRequest = undefined;
    const record = decodeRecord(shared.values.get("job")!.value);
    const waiter = { token: "waiter", permits: 1, fair: false, expiresAtMs: START_MS + 5000 };
    shared.put("job", encodeRecord({ ...record, tickets: [waiter] }));
  };
  const fence = await a.grant(acquire("aa"));
  assertEquals(holdersOf(shared).map((h) => [h.token, h.fence]), [["aa", fence]]);
  assertEquals((await b.do(acquire("bb"))).type, "held");
});

Deno.test("a second write that fails is an error", async () => {
  const [a] = twoClients();
  a.register.writeFaults.push("lose-request", "lose-request");
  await assertRejects(() => a.do(acquire("aa")), StorageError, 'Cannot reach key "job"');
  assertEquals(a.register.taken(), "write read write");
});

// covers: G11
Deno.test("after an error the next command reads before it writes", async () => {
  const [a] = twoClients();
  await a.do(acquire("aa"));
  a.register.writeFaults.push(undefined, "lose-request", "lose-reply");
  await a.do(renew("aa", START_MS * 1000));
  await a.do(release("aa")).catch(() => {});
  assertEquals(await a.cost(release("aa")), "read");
});

Deno.test("a write that the product refuses for good is an error at once", async () => {
  const [a] = twoClients();
  a.register.writeFaults.push("refuse");
  await assertRejects(() => a.do(acquire("aa")), StorageError, "Cannot write: denied");
  assertEquals(a.register.taken(), "write");
});

Deno.test("a read that fails is an error", async () => {
  const [a] = twoClients({ register: { hasAbsent: false } });
  a.register.readFaults.push("lose-request");
  await assertRejects(() => a.do(acquire("aa")), StorageError, 'Cannot reach key "job"');
});

Deno.test("a command that loses 64 races in a row is an error that may pass", async () => {
  const [a] = twoClients();
  await a.do(acquire("aa"));
  for (let i = 0; i < 64; i++) a.register.writeFaults.push("conflict");
  const error = a.do(release("aa")).catch((e) => e);
  for (let i = 0; i < 100; i++) await a.clock.advance(50);
  assertEquals(
    [(await error).message, (await error).transient],
    ['Cannot write key "key:job" as others were faster: current value is 64 lost races', true],
  );
  assertEquals(a.register.requests.filter((r) => r.type === "write").length, 65);
});

Deno.test("a command that lost two races waits before the next, for longer each time", async () => {
  const [a] = twoClients();
  await a.do(acquire("aa"));
  a.register.writeFaults.push("conflict", "conflict", "conflict");
  a.register.taken();
  const released = a.do(release("aa"));
  await a.clock.advance(0);
  assertEquals(a.register.taken(), "write read write");
  await a.clock.advance(0.9);
  assertEquals(a.register.taken(), "");
  await a.clock.advance(0.1);
  assertEquals(a.register.taken(), "read write");
  await a.clock.advance(2);
  assertEquals([await released, a.register.taken()], [
    { type: "released", freed: true },
    "read write",
  ]);
});

// covers: G9
Deno.test("a command that is aborted between two requests sends no more", async () => {
  const [a] = twoClients();
  await a.do(acquire("aa"));
  a.register.taken();
  a.register.writeFaults.push("conflict");
  const stop = new AbortController();
  a.register.onRequest = () => stop.abort("enough");
  const reason = await a.storage.execute("job", release("aa"), { signal: stop.signal })
    .catch((r) => r);
  assertEquals([reason, a.register.taken()], ["enough", "write"]);
});

Deno.test("a command that is aborted while it waits after a lost race ends at once", async () => {
  const [a] = twoClients();
  await a.do(acquire("aa"));
  a.register.writeFaults.push("conflict", "conflict", "conflict");
  const stop = new AbortController();
  const ended = a.storage.execute("job", release("aa"), { signal: stop.signal }).catch((r) => r);
  await a.clock.advance(0);
  stop.abort("enough");
  assertEquals(await ended, "enough");
  assertEquals(a.clock.pendingTimers, 0);
});

// A fenced transaction that is open.

Deno.test("an acquire that a fenced transaction blocks is refused for one poll", async () => {
  const [a] = twoClients();
  a.register.writeFaults.push("blocked");
  assertEquals(await a.do(acquire("aa")), { type: "held", retryAfterMs: 70, ahead: 0 });
  assertEquals(a.register.taken(), "write", "asking again at once is no use");
  assertEquals((await a.do(acquire("aa"))).type, "granted", "when the transaction is over");
});

const blocked: readonly [what: string, command: (fence: number) => Command, verb: string][] = [
  ["a release", () => release("aa"), "release"],
  ["an eviction", () => evict(), "evict"],
  ["a hand-over", (fence) => adopt("aa", fence, "bb"), "adopt"],
];
for (const [what, command, verb] of blocked) {
  Deno.test(`${what} that a fenced transaction blocks is an error that may pass`, async () => {
    const [a] = twoClients();
    const fence = await a.grant(acquire("aa"));
    a.register.writeFaults.push("blocked");
    const error = await assertRejects(() => a.do(command(fence)), StorageError);
    assertEquals(
      [error.message, error.transient],
      [`Cannot ${verb} key "key:job" as a fenced transaction of its holder is open`, true],
    );
    assertEquals((await a.do(inspect) as Inspected).holders.length, 1);
    await a.do(command(fence));
    const { holders } = await a.do(inspect) as Inspected;
    assertEquals(holders.some((h) => h.fence === fence), false, "when the transaction is over");
  });
}

// covers: G11
Deno.test("an acquire that may have been written is not refused when it is blocked", async () => {
  const [a] = twoClients();
  a.register.writeFaults.push("lose-request", "blocked");
  await assertRejects(() => a.do(acquire("aa")), StorageError, 'Cannot acquire key "key:job"');
});

// What is not a record.

const foreign: readonly [what: string, text: string][] = [
  ["something else", "not ours"],
  ["nothing at all", ""],
  ["another major version", "holdfast 2 5\n"],
  ["a record that is cut off", "holdfast 1 5\nh aa 1"],
  ["a record without its last line", "holdfast 1 5\n"],
];
for (const [what, text] of foreign) {
  for (const hasAbsent of [true, false]) {
    // covers: G12
    Deno.test(`${what} under the key is an error with the key and is never overwritten${hasAbsent ? ", even by a guess" : ""}`, async () => {
      const [a, , shared] = twoClients({ register: { hasAbsent } });
      const version = shared.put("job", text);
      const commands = [
        acquire("aa"),
        renew("aa", 1),
        release("aa"),
        adopt("aa", 1, "bb"),
        inspect,
        evict(),
      ];
      for (const command of commands) {
        const error = await assertRejects(() => a.do(command), StorageError);
        assertEquals(
          [error.message, error.transient, error.cause instanceof RangeError],
          ['Cannot use key "key:job" as its value is not a Holdfast record', false, true],
        );
      }
      assertEquals(shared.values.get("job"), { value: text, version });
    });
  }
}

// covers: G12
Deno.test("lines of a later minor version outlive a holding", async () => {
  const [a, , shared] = twoClients();
  shared.put("job", "holdfast 1 5\nx of tomorrow\n.\n");
  const fence = await a.grant(acquire("aa"));
  await a.do(renew("aa", fence));
  await a.do(release("aa"));
  assertEquals(decodeRecord(shared.values.get("job")!.value).extra, ["x of tomorrow"]);
});

// Who is presumed dead.

/** The holder's wall clock is ahead by this, so that its stored expiry is out of reach. */
const AHEAD_MS = 24 * 3_600_000;

/** A holder whose wall clock is far ahead, and an observer of it. */
async function holderAndObserver(
  ttlMs: number,
  maxClockSkewMs: number,
): Promise<{ holder: Client; observer: Client; fence: number }> {
  const shared = new SharedValues();
  const storage = { maxClockSkewMs };
  const holder = new Client(shared, { clock: new ManualClock(START_MS + AHEAD_MS), storage });
  const observer = new Client(shared, { storage });
  const fence = await holder.grant(acquire("aa", { ttlMs }));
  assertEquals((await observer.do(acquire("bb"))).type, "held");
  return { holder, observer, fence };
}

const spans: readonly [ttlMs: number, maxClockSkewMs: number, spanMs: number][] = [
  [1000, 0, 1010],
  [1000, 1000, 2020],
  [30_000, 500, 30_805],
];
for (const [ttlMs, maxClockSkewMs, spanMs] of spans) {
  // covers: S5.7 G1 G8
  Deno.test(`a holder of ${ttlMs} ms with a skew of ${maxClockSkewMs} ms is presumed dead after ${spanMs} ms unchanged, and not before`, async () => {
    const { observer } = await holderAndObserver(ttlMs, maxClockSkewMs);
    await observer.clock.advance(spanMs - 1);
    assertEquals((await observer.do(acquire("bb"))).type, "held");
    await observer.clock.advance(1);
    assertEquals((await observer.do(acquire("bb"))).type, "granted");
  });
}

// covers: S5.8 G1
Deno.test("a holder that renewed meanwhile is watched anew", async () => {
  const { holder, observer, fence } = await holderAndObserver(1000, 0);
  await observer.clock.advance(900);
  await holder.do(renew("aa", fence, 1000));
  assertEquals((await observer.do(acquire("bb"))).type, "held");
  await observer.clock.advance(1009);
  assertEquals((await observer.do(acquire("bb"))).type, "held");
  await observer.clock.advance(1);
  assertEquals((await observer.do(acquire("bb"))).type, "granted");
});

// covers: G1
Deno.test("a renewal that nobody saw in time still saves the holder", async () => {
  const { holder, observer, fence } = await holderAndObserver(1000, 0);
  await observer.clock.advance(1005);
  await holder.do(renew("aa", fence, 1000));
  await observer.clock.advance(5);
  assertEquals((await observer.do(acquire("bb"))).type, "held");
});

// covers: G1
Deno.test("an observer that was suspended has not watched", async () => {
  const { observer } = await holderAndObserver(1000, 0);
  observer.clock.suspend(5000);
  assertEquals((await observer.do(acquire("bb"))).type, "held");
});

// covers: G1
Deno.test("an observer whose wall clock stepped forward has not watched", async () => {
  const { observer } = await holderAndObserver(1000, 0);
  observer.clock.stepWall(5000);
  await observer.clock.advance(1009);
  assertEquals((await observer.do(acquire("bb"))).type, "held");
});

// covers: G1
Deno.test("the span that counts is the holder's own, not the observer's", async () => {
  const { observer } = await holderAndObserver(30_000, 0);
  await observer.clock.advance(5000);
  assertEquals((await observer.do(acquire("bb", { ttlMs: 1000 }))).type, "held");
});

// covers: G1
Deno.test("a holder that took over from another is watched for itself", async () => {
  const { holder, observer, fence } = await holderAndObserver(1000, 0);
  await observer.clock.advance(1000);
  await holder.do({ ...adopt("aa", fence, "a2"), ttlMs: 1000 });
  await observer.clock.advance(10);
  assertEquals((await observer.do(acquire("bb"))).type, "held");
  await observer.clock.advance(1010);
  assertEquals((await observer.do(acquire("bb"))).type, "granted");
});

Deno.test("sightings of the last 1,000 names are remembered between calls", async () => {
  const shared = new SharedValues();
  const holder = new Client(shared, { clock: new ManualClock(START_MS + AHEAD_MS) });
  const observer = new Client(shared);
  for (let i = 0; i <= 1000; i++) {
    await holder.do(acquire("aa", { ttlMs: 1000 }), `n${i}`);
    await observer.do(acquire("bb"), `n${i}`);
  }
  await observer.clock.advance(1010);
  assertEquals((await observer.do(acquire("bb"), "n1")).type, "granted");
  assertEquals((await observer.do(acquire("bb"), "n0")).type, "held");
});

// Time.

// covers: G5
Deno.test("the skew is added to the expiry where clients say the time", async () => {
  const [a, , shared] = twoClients({ storage: { maxClockSkewMs: 700 } });
  await a.do(acquire("aa", { ttlMs: 1000 }));
  assertEquals(holdersOf(shared)[0]!.expiresAtMs, START_MS + 1700);
  assertEquals(a.storage.maxClockSkewMs, 700);
});

Deno.test("the skew is 1000 ms unless said otherwise", () => {
  const [a] = twoClients({ storage: { maxClockSkewMs: undefined } });
  assertEquals(a.storage.maxClockSkewMs, 1000);
});

/** Two clients of a server that says the time; their own clocks are wrong. */
function serverClients(
  more: MemoryRegisterOptions = {},
): { a: Client; b: Client; shared: SharedValues; server: ManualClock } {
  const shared = new SharedValues();
  const server = new ManualClock(START_MS);
  const register = { nowMs: () => server.read().wallMs, ...more };
  const a = new Client(shared, { register, clock: new ManualClock(0) });
  const b = new Client(shared, { register, clock: new ManualClock(START_MS * 2) });
  return { a, b, shared, server };
}

// covers: G1 G5
Deno.test("where the server says the time, the clocks of clients do not matter", async () => {
  const { a, b, shared, server } = serverClients();
  const fence = await a.grant(acquire("aa", { ttlMs: 1000 }));
  assertEquals([fence, holdersOf(shared)[0]!.expiresAtMs], [START_MS * 1000, START_MS + 1000]);
  server.freeze(999);
  assertEquals(await b.do(acquire("bb")), { type: "held", retryAfterMs: 1, ahead: 0 });
  server.freeze(1);
  assertEquals((await b.do(acquire("bb"))).type, "granted");
});

// covers: G1
Deno.test("where the server says the time, nobody is presumed dead", async () => {
  const { a, b } = serverClients();
  await a.do(acquire("aa", { ttlMs: 1000 }));
  await b.do(acquire("bb"));
  await b.clock.advance(60_000);
  assertEquals((await b.do(acquire("bb"))).type, "held");
});

Deno.test("where the server says the time, every command reads it first", async () => {
  const { a } = serverClients();
  const costs = [await a.cost(acquire("aa")), await a.cost(release("aa"))];
  assertEquals(costs, ["read write", "read write"]);
  assertEquals(a.storage.maxClockSkewMs, 0);
});

// Where the server says the time, and a product can do without it: a glance for a refusal, none for a release.

Deno.test("a waiter that asks again is refused by a glance", async () => {
  const { a, b } = serverClients({ glances: true });
  await a.do(acquire("aa", { ttlMs: 1000 }));
  assertEquals(await b.cost(acquire("bb")), "read");
  await b.clock.advance(400);
  const { type, retryAfterMs } = await b.do(acquire("bb")) as Held;
  assertEquals([type, b.register.taken()], ["held", "glance"]);
  // As much as may be left by the server's clock, and no less.
  assert(600 <= retryAfterMs && retryAfterMs <= 610, `${retryAfterMs} ms`);
});

// covers: G1
Deno.test("what a glance finds free is read with the server's time before it is taken", async () => {
  const { a, b } = serverClients({ glances: true });
  await a.do(acquire("aa"));
  await b.do(acquire("bb"));
  await a.do(release("aa"));
  assertEquals(await b.cost(acquire("bb")), "glance read write");
});

// covers: G1
Deno.test("a lock that should have expired is not glanced at, and is not taken before the server says so", async () => {
  const { a, b, server } = serverClients({ glances: true });
  await a.do(acquire("aa", { ttlMs: 1000 }));
  await b.do(acquire("bb"));
  server.freeze(999);
  await b.clock.advance(1020);
  assertEquals(await b.do(acquire("bb")), { type: "held", retryAfterMs: 1, ahead: 0 });
  server.freeze(1);
  await b.clock.advance(2);
  assertEquals((await b.do(acquire("bb"))).type, "granted");
});

// covers: G9
Deno.test("a token that is released by a time that is old stays spent for its time", async () => {
  const { a, b, server } = serverClients({ glances: true });
  const read = a.register.read.bind(a.register);
  a.register.read = async (...args) => {
    const versioned = await read(...args);
    for (const clock of [server, a.clock]) clock.freeze(900);
    return versioned;
  };
  await a.do(acquire("aa", { ttlMs: 1000 }));
  a.register.read = read;
  assertEquals(await a.cost({ type: "release", token: "aa", keepMs: 0, spentMs: 1000 }), "write");
  server.freeze(999);
  assertEquals((await b.do(acquire("aa"))).type, "spent");
});

// covers: G8
Deno.test("a wall clock that is set back does not keep a dead holder alive", async () => {
  const { a, b, server } = serverClients({ glances: true });
  await a.do(acquire("aa", { ttlMs: 1000 }));
  await b.do(acquire("bb"));
  b.clock.stepWall(-3_600_000);
  server.freeze(1000);
  await b.clock.advance(1020);
  assertEquals((await b.do(acquire("bb"))).type, "granted");
});

// covers: G9
Deno.test("an abort during a glance sends no read", async () => {
  const { a, b } = serverClients({ glances: true });
  await a.do(acquire("aa"));
  await b.do(acquire("bb"));
  await a.do(release("aa"));
  const stop = new AbortController();
  b.register.taken();
  b.register.onRequest = () => stop.abort("enough");
  const asked = b.storage.execute("job", acquire("bb"), { signal: stop.signal });
  assertEquals(await asked.catch((reason: unknown) => reason), "enough");
  assertEquals(b.register.taken(), "glance");
});

Deno.test("a glance finds no capacity that would be an error", async () => {
  const { a, b } = serverClients({ glances: true });
  await a.do(acquire("aa", { capacity: 2 }));
  await b.do(acquire("bb", { capacity: 2, permits: 2 }));
  assertEquals(await b.cost(acquire("cc", { capacity: 3 })), "read");
});

Deno.test("who has just lost a race is refused by a glance", async () => {
  const { a, b, shared } = serverClients({ glances: true });
  await a.do(acquire("aa"));
  const held = shared.values.get("job")!.value;
  await a.do(release("aa"));
  b.register.onRequest = ({ type }) => {
    if (type === "write") shared.put("job", held);
  };
  assertEquals((await b.do(acquire("bb"))).type, "held");
  assertEquals(b.register.taken(), "read write glance");
});

// covers: G11
Deno.test("a write whose outcome is unknown is followed by a read, never by a glance", async () => {
  const { a, b } = serverClients({ glances: true });
  await a.do(acquire("aa"));
  await b.do(acquire("bb"));
  await a.do(release("aa"));
  b.register.taken();
  b.register.writeFaults.push("lose-reply");
  assertEquals((await b.do(acquire("bb"))).type, "granted");
  assertEquals(b.register.taken(), "glance read write read");
});

const readers: readonly [what: string, command: Command][] = [
  ["a fair waiter, which leaves a ticket,", acquire("bb", { queueMs: 1000, fair: true })],
  ["a renewal", renew("bb", 1)],
  ["an inspection", inspect],
];
for (const [what, command] of readers) {
  Deno.test(`${what} is answered by no glance`, async () => {
    const { a, b } = serverClients({ glances: true });
    await a.do(acquire("aa"));
    await b.do(acquire("bb"));
    assertEquals((await b.cost(command)).includes("glance"), false);
  });
}

Deno.test("the server is asked for its time again after 5 s, also by a clock that stood still", async () => {
  for (const pass of [(clock: ManualClock) => clock.freeze(5001), suspend]) {
    const { a, b } = serverClients({ glances: true });
    await a.do(acquire("aa"));
    await b.do(acquire("bb"));
    pass(b.clock);
    assertEquals(await b.cost(acquire("bb")), "read");
    assertEquals(await b.cost(acquire("bb")), "glance");
  }
});

Deno.test("where a write checks the text a release is one write", async () => {
  const { a } = serverClients({ glances: true });
  for (const token of ["aa", "bb"]) {
    assertEquals(await a.cost(acquire(token)), "read write");
    assertEquals(await a.cost(release(token)), "write");
  }
  assertEquals(await a.cost(release("aa")), "read", "what changes nothing is answered from a read");
});

const exact: readonly [what: string, prepare: (a: Client) => unknown, command: Command][] = [
  ["with min-hold", () => {}, release("aa", 100)],
  ["5 s after the server said the time", (a) => a.clock.freeze(5001), release("aa")],
  ["after a suspension", (a) => suspend(a.clock), release("aa")],
];
for (const [what, prepare, command] of exact) {
  Deno.test(`a release ${what} asks for the server's time`, async () => {
    const { a } = serverClients({ glances: true });
    await a.do(acquire("aa"));
    prepare(a);
    assertEquals(await a.cost(command), "read write");
  });
}

Deno.test("a release whose memory was wrong reads first the next time, until it is right again", async () => {
  const { a, b } = serverClients({ glances: true });
  const costs: string[] = [];
  for (const [i, isQueued] of [true, true, false, false].entries()) {
    await a.do(acquire(`a${i}`));
    if (isQueued) await b.do(acquire(`b${i}`, { queueMs: 1000 }));
    costs.push(await a.cost(release(`a${i}`)));
    await b.do(release(`b${i}`));
  }
  assertEquals(costs, ["write read write", "read write", "read write", "write"]);
});

// covers: G1 G5
Deno.test("a release from memory drops nobody whose lease the server has not seen the end of", async () => {
  const { a, b, shared, server } = serverClients({ glances: true });
  await b.do(acquire("bb", { capacity: 2, ttlMs: 3000 }));
  await a.do(acquire("aa", { capacity: 2 }));
  server.freeze(2960);
  // A clock that runs 1 % fast.
  await a.clock.advance(2990);
  assertEquals(await a.cost(release("aa")), "write");
  assertEquals(holdersOf(shared).map((h) => h.token), ["bb"]);
});

function suspend(clock: ManualClock): void {
  clock.suspend(5001);
}

// What is handed to the product.

const retentions: readonly [
  what: string,
  retentionMs: number | undefined,
  ttlMs: number,
  ms: number,
][] = [
  ["an hour by default", undefined, 1000, 1500 + DEFAULT_RETENTION_MS],
  ["what the user says", 10_000, 1000, 1500 + 10_000],
  ["never less than the ttl and twice the skew", 10_000, 20_000, 20_500 + 21_000],
];
for (const [what, retentionMs, ttlMs, ms] of retentions) {
  // covers: G2
  Deno.test(`a record outlives its last expiry by ${what}`, async () => {
    const [a] = twoClients({ storage: { retentionMs, maxClockSkewMs: 500 } });
    await a.do(acquire("aa", { ttlMs }));
    assertEquals(a.register.requests[0]!.write!.retainUntilMs, START_MS + ms);
  });
}

Deno.test("a record whose fence is ahead of the clock is retained beyond its fence", async () => {
  const [a, , shared] = twoClients({ storage: { retentionMs: 1000 } });
  const fence = (START_MS + 3_600_000) * 1000;
  shared.put("job", encodeRecord({ ...EMPTY_RECORD, fence }));
  await a.do(release("aa"));
  const { write } = a.register.requests.at(-1)!;
  assertEquals(write!.retainUntilMs, START_MS + 3_600_000 + 1000);
});

const changes: readonly [
  what: string,
  command: (fence: number) => Command,
  granted: string[],
  ended: string[],
][] = [
  ["a grant beside it begins one", () => acquire("bb", { capacity: 2 }), ["bb"], []],
  ["a renewal changes none", (fence) => renew("aa", fence), [], []],
  ["a ticket changes none", () => acquire("bb", { permits: 2, capacity: 2, queueMs: 99 }), [], []],
  ["a release ends it", () => release("aa"), [], ["aa"]],
  ["min-hold ends it all the same", () => release("aa", 1000), [], ["aa"]],
  ["a hand-over ends it and begins one", (fence) => adopt("aa", fence, "bb"), ["bb"], ["aa"]],
  ["an eviction ends it", () => evict(), [], ["aa"]],
  [
    "a takeover ends it and begins one",
    (fence) => acquire("bb", { capacity: 2, presumedDead: [{ fence, beats: 0 }] }),
    ["bb"],
    ["aa"],
  ],
];
for (const [what, command, granted, ended] of changes) {
  // covers: G3
  Deno.test(`the product is told of a holding: ${what}`, async () => {
    const [a] = twoClients();
    const fence = await a.grant(acquire("aa", { capacity: 2 }));
    await a.do(command(fence));
    const { change } = a.register.requests.at(-1)!;
    assertEquals(
      [change!.granted.map((h) => h.token), change!.ended.map((h) => h.token)],
      [granted, ended],
    );
  });
}

// covers: G3
Deno.test("a token that is granted anew after its end is a new holding for the product", async () => {
  const [a] = twoClients();
  const first = await a.grant(acquire("aa", { ttlMs: 100 }));
  await a.clock.advance(100);
  const second = await a.grant(acquire("aa", { ttlMs: 100 }));
  const { change } = a.register.requests.at(-1)!;
  assertEquals(
    [change!.granted.map((h) => h.fence), change!.ended.map((h) => h.fence)],
    [[second], [first]],
  );
});

Deno.test("a write carries the fence, and whom to wake", async () => {
  const [a, b] = twoClients();
  const fence = await a.grant(acquire("aa"));
  await b.do(acquire("bb", { queueMs: 1000 }));
  await a.do(release("aa"));
  const { write } = a.register.requests.at(-1)!;
  assertEquals([write!.fence, write!.wake], [fence, "bb"]);
});

Deno.test("watch of the register is watch of the storage", () => {
  class Watching extends MemoryRegister {
    watched = "";
    watch(name: string): Disposable & { live: boolean } {
      this.watched = name;
      return { live: true, [Symbol.dispose]: () => {} };
    }
  }
  const register = new Watching(new SharedValues());
  const storage = new RegisterStorage(register, { serverTime: false, wakesTickets: true }, {
    pollMs: { min: 1, max: 2 },
  });
  assertEquals(storage.watch!("job", () => {}).live, true);
  assertEquals([register.watched, storage.wakesTickets], ["job", true]);
});

Deno.test("a register that cannot watch makes a storage that cannot", () => {
  const [a] = twoClients();
  assertEquals([a.storage.watch, a.storage.wakesTickets], [undefined, false]);
});

const wrong: readonly [what: string, options: RegisterStorageOptions, message: string][] = [
  [
    "a negative skew",
    { maxClockSkewMs: -1 },
    "Cannot use maxClockSkewMs as it must be an integer from 0 to 2592000000 ms: current value is -1",
  ],
  [
    "a fraction of retention",
    { retentionMs: 0.5 },
    "Cannot use retentionMs as it must be an integer from 0 to 2592000000 ms: current value is 0.5",
  ],
  [
    "a poll of 0",
    { pollMs: { min: 0, max: 5 } },
    "Cannot use pollMs.min as it must be an integer from 1 to 2592000000 ms: current value is 0",
  ],
  [
    "polls in the wrong order",
    { pollMs: { min: 6, max: 5 } },
    "Cannot use pollMs.max as it must be an integer from 6 to 2592000000 ms: current value is 5",
  ],
];
for (const [what, storage, message] of wrong) {
  Deno.test(`a storage with ${what} is refused`, () => {
    assertThrows(() => twoClients({ storage }), RangeError, message);
  });
}

// Everything at once.

interface Tick {
  readonly who: number;
  readonly kind: "acquire" | "renew" | "release" | "adopt";
  readonly fault: RegisterFault | undefined;
  readonly passMs: number;
}
const tick: fc.Arbitrary<Tick> = fc.record({
  who: fc.nat(2),
  kind: fc.constantFrom("acquire", "acquire", "renew", "release", "adopt"),
  fault: fc.constantFrom(undefined, undefined, "lose-request", "lose-reply", "deny", "conflict"),
  passMs: fc.nat(60),
});

/** One client that knows what it was told. */
class Player extends Client {
  told: { token: string; fence: number; sentAtMs: number; ttlMs: number } | undefined;
  #count = 0;

  constructor(shared: SharedValues, clock: ManualClock, readonly letter: string) {
    super(shared, { clock });
  }

  async play(kind: Tick["kind"], sentAtMs: number): Promise<void> {
    const ttlMs = 100;
    const { told } = this;
    const next = `${this.letter}-${++this.#count}`;
    try {
      if (kind === "acquire" || !told) {
        const asked = told?.token ?? next;
        const outcome = await this.do(acquire(asked, { ttlMs }));
        this.told = outcome.type === "granted"
          ? { token: asked, fence: outcome.fence, sentAtMs, ttlMs }
          : undefined;
        if (told && !this.told) assert(sentAtMs >= told.sentAtMs + ttlMs, "held by someone else");
      } else if (kind === "renew") {
        const outcome = await this.do(renew(told.token, told.fence, ttlMs));
        this.told = outcome.type === "renewed" ? { ...told, sentAtMs } : undefined;
      } else if (kind === "adopt") {
        const outcome = await this.do({ ...adopt(told.token, told.fence, next), ttlMs });
        this.told = outcome.type === "granted"
          ? { token: next, fence: outcome.fence, sentAtMs, ttlMs }
          : undefined;
      } else {
        this.told = undefined;
        await this.do({ ...release(told.token), spentMs: ttlMs });
      }
    } catch (error) {
      if (!(error instanceof StorageError)) throw error;
      // Not known: whoever does not know trusts only the older promise.
      if (kind === "adopt" || kind === "release") this.told = undefined;
    }
  }
}

// covers: G1 G5 G11
Deno.test("whatever becomes of requests, no two clients trust the lock at once, and fences rise", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.array(tick, { minLength: 1, maxLength: 3 }), { maxLength: 12, size: "max" }),
      async (rounds) => {
        const shared = new SharedValues();
        const clock = new ManualClock(START_MS);
        const players = ["a", "b", "c"].map((letter) => new Player(shared, clock, letter));
        let lastFence = 0;
        for (const ticks of rounds) {
          const nowMs = clock.read().wallMs;
          const playing = ticks.filter((t, i) => ticks.findIndex((u) => u.who === t.who) === i);
          const done = Promise.all(playing.map(({ who, kind, fault }) => {
            players[who]!.register.writeFaults.push(fault);
            return players[who]!.play(kind, nowMs);
          }));
          for (let i = 0; i < 20; i++) await clock.advance(0.5);
          await done;
          const after = clock.read().wallMs;
          const trusting = players.filter(({ told }) => told && after < told.sentAtMs + told.ttlMs);
          assert(trusting.length <= 1, trusting.map((p) => JSON.stringify(p.told)).join());
          const stored = shared.values.get("job");
          const record = stored ? decodeRecord(stored.value) : EMPTY_RECORD;
          assert(record.fence >= lastFence);
          lastFence = record.fence;
          for (const { told } of trusting) {
            const mine = record.holders.find((h) => h.token === told!.token)!;
            assert(mine.fence === told!.fence, "another fence");
            assert(mine.expiresAtMs >= told!.sentAtMs + told!.ttlMs, "later than the expiry");
          }
          await clock.advance(Math.max(...ticks.map((t) => t.passMs)));
        }
      },
    ),
    { numRuns: 150 },
  );
});
