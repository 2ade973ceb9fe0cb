/**
 * What a run is made of: plain data drawn from its seed, so that it can be printed, made smaller, and run
 * again.
 *
 * @module
 */
import {
  type FaultRates,
  HINT_FAULTS,
  MESSAGE_FAULTS,
  POINT_FAULTS,
  type SimulatedFault,
  TIMED_FAULTS,
} from "./faults.ts";
import { Random } from "./random.ts";

/** What a caller can do. */
export type Deed =
  | "acquire"
  | "acquire-timeout"
  | "acquire-abort"
  | "try-acquire"
  | "with"
  | "try-with"
  | "hand-over"
  | "force-release"
  | "inspect"
  | "other-capacity";

/** Everything that a caller can do. */
const DEEDS: readonly Deed[] = [
  "acquire",
  "acquire-timeout",
  "acquire-abort",
  "try-acquire",
  "with",
  "try-with",
  "hand-over",
  "force-release",
  "inspect",
  "other-capacity",
];

/** One run. Options of locks and storages mean what they mean there. */
export interface Scenario {
  /** Where all randomness comes from. */
  readonly seed: number;
  /**
   * `script`: the server runs the machine by its clock; `clocked`: a register whose reads carry the server's
   * time; `register`: a register with the clients' time; `machine`: the same on one machine, skew 0.
   */
  readonly storage: "script" | "clocked" | "register" | "machine";
  /** How the lock is shared: by 1, by 2, or by 1 or 1000. */
  readonly lock: "mutex" | "semaphore" | "readers-writer";
  /** Whether grants follow the queue. */
  readonly fair: boolean;
  /** How long a waiter keeps its place. */
  readonly queueMs: number;
  /** How long a lease lasts. */
  readonly ttlMs: number;
  /** How long one request may take. */
  readonly requestTimeoutMs: number;
  /** How long the lock stays taken even if released earlier. */
  readonly minHoldMs: number;
  /** How long a lease can be held; 0 for no limit. */
  readonly maxHoldMs: number;
  /** Whether leases renew themselves. */
  readonly autoRenew: boolean | "own-timer";
  /** Whether the callers of one process queue in it. */
  readonly gate: boolean;
  /** Whether the storage gives hints: none, when something is gone, or to the first ticket. */
  readonly watch: "none" | "changes" | "tickets";
  /** Whether the storage takes many commands at once. */
  readonly batches: boolean;
  /** Whether an absent value always has the same version. */
  readonly absent: boolean;
  /** How often waiters may ask. */
  readonly pollMs: { readonly min: number; readonly max: number };
  /** The bound between the wall clocks of any two clients. */
  readonly maxClockSkewMs: number;
  /** For how long a record outlives its last expiry. */
  readonly retentionMs: number;
  /** One way through the network. */
  readonly latencyMs: { readonly min: number; readonly max: number };
  /** The latest that a late message arrives. */
  readonly lateMs: number;
  /** Whether the client library resends after its caller gave up. */
  readonly deafLibrary: boolean;
  /** How many processes there are at a time. */
  readonly processes: number;
  /** Callers in each process. */
  readonly actors: number;
  /** How many locks. */
  readonly names: number;
  /** The longest hold. */
  readonly holdMs: number;
  /** The longest pause of a caller. */
  readonly thinkMs: number;
  /** How long faults go on. */
  readonly forMs: number;
  /** What callers do; one that is listed twice is done twice as often. */
  readonly deeds: readonly Deed[];
  /** What goes wrong. */
  readonly faults: FaultRates;
}

/** Faults that take a run out of the bounds of G2 or G5; drawn in few runs. */
const WILD: readonly SimulatedFault[] = [
  "wild-wall-step",
  "server-clock-step",
  "record-evicted",
  "storage-loses-data",
];

/** What a seed stands for. */
export function scenarioOf(seed: number): Scenario {
  const r = new Random(`scenario ${seed}`);
  const storage = r.pick(
    ["script", "script", "clocked", "register", "register", "machine"] as const,
  );
  const ttlMs = r.pick([600, 1500, 3000, 5000, 10_000, 20_000]);
  const pollMax = r.pick([50, 300, 1000, 2000]);
  const maxClockSkewMs = storage === "register" ? r.pick([100, 400, 1000]) : 0;
  const minLatency = r.pick([0.2, 1, 5]);
  // A request that reads and writes, and loses a race, is answered before it is given up.
  const maxLatency = Math.min(minLatency * r.pick([1.5, 4, 20]), ttlMs / 60);
  return {
    seed,
    storage,
    lock: r.pick(["mutex", "mutex", "mutex", "semaphore", "readers-writer"] as const),
    fair: r.chance(0.4),
    // A place in the queue is kept only by who can refresh it in time, also after some lost races.
    queueMs: Math.max(r.pick([300, 1500, 4000, 10_000]), Math.ceil(150 * maxLatency)),
    ttlMs,
    requestTimeoutMs: Math.floor(r.pick([ttlMs / 3, ttlMs / 3, ttlMs / 6, ttlMs])),
    minHoldMs: r.chance(0.15) ? r.pick([500, 3000, 15_000]) : 0,
    maxHoldMs: r.chance(0.15) ? r.pick([1000, 8000, 25_000]) : 0,
    autoRenew: r.pick([true, true, true, true, "own-timer", false] as const),
    gate: r.chance(0.8),
    watch: r.pick(["none", "changes", "tickets", "tickets"] as const),
    batches: r.chance(0.3),
    absent: r.chance(0.5),
    pollMs: { min: Math.min(pollMax, r.pick([5, 50, 250])), max: pollMax },
    maxClockSkewMs,
    retentionMs: ttlMs * r.pick([4, 10]) + 2 * maxClockSkewMs,
    latencyMs: { min: minLatency, max: maxLatency },
    lateMs: ttlMs * r.pick([0.5, 1.5, 2.5]),
    deafLibrary: r.chance(0.5),
    processes: r.int(2, 5),
    actors: r.pick([1, 1, 2, 3]),
    names: r.pick([1, 1, 2]),
    holdMs: r.pick([0.5, 1, 2]) * Math.max(ttlMs, 6000),
    thinkMs: r.pick([500, 2000, 10_000]),
    forMs: r.pick([10_000, 20_000, 40_000, 120_000]),
    deeds: deedsOf(r),
    faults: faultsOf(r.fork("faults"), storage),
  };
}

function deedsOf(r: Random): Deed[] {
  if (r.chance(0.3)) return ["acquire"];
  const rare: readonly Deed[] = ["force-release", "other-capacity"];
  return DEEDS.filter((deed) => r.chance(rare.includes(deed) ? 0.2 : 0.7)).concat("acquire");
}

/** No faults in some runs, a few kinds in most, all of them in some. */
function faultsOf(r: Random, storage: Scenario["storage"]): FaultRates {
  const share = r.pick([0, 0.15, 0.15, 0.3, 0.6]);
  const rates: Partial<Record<SimulatedFault, number>> = {};
  const draw = (faults: readonly SimulatedFault[], rateOf: () => number): void => {
    for (const fault of faults) {
      if (r.chance(WILD.includes(fault) ? share / 4 : share)) rates[fault] = rateOf();
    }
  };
  draw(MESSAGE_FAULTS, () => r.pick([0.01, 0.05, 0.2]));
  draw(HINT_FAULTS, () => r.pick([0.1, 0.5]));
  draw(POINT_FAULTS, () => r.pick([0.003, 0.02]));
  draw(TIMED_FAULTS, () => r.pick([0.002, 0.01]));
  if (storage !== "register") delete rates["wild-wall-step"];
  if (storage === "register" || storage === "machine") delete rates["server-clock-step"];
  return rates;
}

/** Whether nothing goes wrong in a run. */
export function isClean(scenario: Scenario): boolean {
  return Object.keys(scenario.faults).length === 0;
}
