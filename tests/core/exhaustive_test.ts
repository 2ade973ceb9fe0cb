import { assert, assertEquals } from "@std/assert";
import { explore } from "../support/explore.ts";
import { type ClientTerms, protocolModel, type ProtocolTerms } from "../support/protocol_model.ts";
import { type ScheduledClient, searchSchedules } from "../support/register_schedules.ts";

const TERMS: Omit<ProtocolTerms, "clients"> = {
  capacity: 1,
  fair: false,
  queueTicks: 0,
  keepTicks: 0,
  maxHoldTicks: undefined,
  ticks: 2,
  duplicates: 1,
  evictions: 0,
  handOver: false,
  renewTicks: [2],
  losses: 0,
};

const CLIENT: ClientTerms = { permits: 1, rate: 1, turns: 1, sends: 1, way: "all" };
const TWICE: ClientTerms = { ...CLIENT, sends: 2 };
const KEEPS: ClientTerms = { ...CLIENT, way: "keeps" };
const WRITER: ClientTerms = { ...CLIENT, permits: 2 };
const RESUMES: ClientTerms = { ...CLIENT, way: "resumes" };

interface Search {
  readonly what: string;
  readonly terms: ProtocolTerms;
  /** A search that visits fewer than it did once has lost something. */
  readonly states: number;
}

/** Everything that a few clients and their messages can do. */
const SEARCHES: readonly Search[] = [
  {
    what: "a mutex, and clocks at either end of the bound",
    terms: { ...TERMS, clients: [{ ...TWICE, rate: 0.99 }, { ...CLIENT, rate: 1.01 }] },
    states: 84_431,
  },
  {
    what: "a mutex, for longer than a lease",
    terms: { ...TERMS, ticks: 3, clients: [CLIENT, KEEPS] },
    states: 17_560,
  },
  {
    what: "a mutex and three clients",
    terms: { ...TERMS, duplicates: 0, clients: [CLIENT, KEEPS, KEEPS] },
    states: 12_761,
  },
  {
    what: "renewals for shorter and for longer",
    terms: {
      ...TERMS,
      duplicates: 0,
      renewTicks: [1, 3],
      clients: [{ ...CLIENT, sends: 3 }, KEEPS],
    },
    states: 28_439,
  },
  {
    what: "a semaphore of 2 and three clients",
    terms: { ...TERMS, capacity: 2, duplicates: 0, clients: [CLIENT, KEEPS, KEEPS] },
    states: 25_362,
  },
  {
    what: "readers and a writer",
    terms: { ...TERMS, capacity: 2, duplicates: 0, clients: [WRITER, CLIENT, KEEPS] },
    states: 48_751,
  },
  {
    what: "a fair mutex",
    terms: { ...TERMS, fair: true, queueTicks: 2, clients: [TWICE, KEEPS] },
    states: 35_016,
  },
  {
    what: "a fair mutex and three clients",
    terms: { ...TERMS, fair: true, queueTicks: 2, duplicates: 0, clients: [CLIENT, KEEPS, KEEPS] },
    states: 19_318,
  },
  {
    what: "a fair semaphore of 2",
    terms: {
      ...TERMS,
      fair: true,
      capacity: 2,
      queueTicks: 2,
      duplicates: 0,
      clients: [CLIENT, KEEPS, KEEPS],
    },
    states: 26_778,
  },
  {
    what: "fair readers and a writer",
    terms: {
      ...TERMS,
      fair: true,
      capacity: 2,
      queueTicks: 2,
      duplicates: 0,
      clients: [WRITER, KEEPS, KEEPS],
    },
    states: 22_734,
  },
  {
    what: "a baton for two",
    terms: { ...TERMS, handOver: true, clients: [CLIENT, RESUMES, RESUMES] },
    states: 24_173,
  },
  {
    what: "an operator who takes the lock away",
    terms: { ...TERMS, evictions: 1, duplicates: 1, clients: [CLIENT, KEEPS] },
    states: 32_084,
  },
  {
    what: "permits that are kept after the release",
    terms: { ...TERMS, keepTicks: 2, clients: [CLIENT, CLIENT] },
    states: 16_787,
  },
  {
    what: "a longest hold",
    terms: { ...TERMS, maxHoldTicks: 1, clients: [TWICE, KEEPS] },
    states: 24_484,
  },
  {
    what: "a record that is lost",
    terms: { ...TERMS, losses: 1, duplicates: 0, clients: [TWICE, CLIENT] },
    states: 29_165,
  },
];

// covers: G1 G2 G3 G4 G5 G10 G11
for (const { what, terms, states } of SEARCHES) {
  Deno.test(`no schedule of lost, late and doubled messages breaks ${what}`, () => {
    const found = explore(protocolModel(terms));
    console.log(`${found.states} states, ${found.steps} steps, depth ${found.depth}: ${what}`);
    assertEquals(found.broken, undefined);
    assert(found.states >= states, `only ${found.states} of ${states} states were visited`);
  });
}

const early: ScheduledClient = { offsetMs: -500, commands: ["acquire"], retries: 0 };
const late: ScheduledClient = { offsetMs: 500, commands: ["acquire"], retries: 0 };
const PLAIN = { ticks: 2, faults: 0, duplicates: 0, absent: true };

// covers: G1 G2 G5 G11
const SCHEDULES = [
  {
    what: "an acquire, a renewal and a takeover",
    terms: { ...PLAIN, clients: [{ ...early, commands: ["acquire", "renew"] as const }, late] },
    states: 1774,
  },
  {
    what: "an acquire, a release and the next acquire",
    terms: { ...PLAIN, clients: [{ ...early, commands: ["acquire", "release"] as const }, late] },
    states: 2396,
  },
  {
    what: "an acquire that fails and is repeated",
    terms: { ...PLAIN, ticks: 1, faults: 2, clients: [{ ...early, retries: 1 }] },
    states: 6655,
  },
  {
    what: "a renewal that fails",
    terms: {
      ...PLAIN,
      faults: 1,
      clients: [{ ...early, commands: ["acquire", "renew"] as const }, { ...late, commands: [] }],
    },
    states: 100,
  },
  {
    what: "two who acquire, and one fault",
    terms: { ...PLAIN, ticks: 1, faults: 1, absent: false, clients: [early, late] },
    states: 10_151,
  },
] as const;

for (const { what, terms, states } of SCHEDULES) {
  Deno.test(`no schedule of requests to a register breaks ${what}`, async () => {
    const found = await searchSchedules(terms);
    console.log(`${found.states} states: ${what}`);
    assertEquals(found.broken, undefined);
    assert(found.states >= states, `only ${found.states} of ${states} states were visited`);
  });
}
