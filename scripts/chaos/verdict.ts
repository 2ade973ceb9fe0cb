/**
 * What a run showed: its numbers, and every promise that was broken.
 *
 * @module
 */
import { checkHistory, type LockVerdict } from "../../src/testing/mod.ts";
import type { End } from "./crew.ts";
import { type Liveness, measureLiveness } from "./liveness.ts";
import { findOverlaps, type Overlaps } from "./overlaps.ts";
import { type FaultKind, TTL_MS, UNSERVED, WORKERS } from "./terms.ts";
import { holdingsOf, type Trace, widen } from "./trace.ts";
import { countUpdates, findFromBeforeLoss, type Updates } from "./updates.ts";

/** What there is to judge. */
export interface Evidence {
  /** Which storage. */
  readonly storage: string;
  /** All that happened. */
  readonly trace: Trace;
  /** How each process ended. */
  readonly ends: readonly End[];
  /** The values of the two resources in the end. */
  readonly last: { readonly guarded: string | null; readonly plain: string | null };
  /** The longest that a waiter sleeps between two looks, and how far clocks may be apart. */
  readonly pollMaxMs: number;
  readonly maxClockSkewMs: number;
  /** What is still there that should not be, in words. */
  readonly left: readonly string[];
}

/** What came of a run on one storage. */
export interface Verdict {
  readonly storage: string;
  readonly seconds: number;
  readonly grants: number;
  readonly renewals: number;
  readonly handOvers: number;
  /** Leases that were lost, of processes that lived to see it. */
  readonly losses: number;
  readonly processes: number;
  readonly faults: Readonly<Partial<Record<FaultKind, number>>>;
  readonly linearizability: LockVerdict;
  readonly checkMs: number;
  readonly guarded: Updates;
  readonly plain: Updates;
  readonly overlaps: Overlaps;
  /** Leases that were valid when the server lost its data: what G1 does not promise then. */
  readonly cutShort: number;
  readonly liveness: Liveness & { readonly limitMs: number };
  /** The furthest that a wall clock moved against a monotonic one. */
  readonly driftMs: number;
  /** Every promise that was broken, in words; empty if all is well. */
  readonly violations: readonly string[];
}

/** What a busy machine may add to the longest gap, in milliseconds. */
const SLACK_MS = 700;

/** From here on a run showed something. */
const ENOUGH_GRANTS = 10;

/** Judges a run. */
export function judge(evidence: Evidence): Verdict {
  const { storage, trace, ends, last, left } = evidence;
  const { history, notes, faults, startedMs, endedMs } = trace;
  const beganMs = performance.now();
  const [linearizability] = checkHistory(widen(history));
  const checkMs = performance.now() - beganMs;
  if (!linearizability) throw new Error("Nobody did anything");
  const losses = faults.filter((fault) => fault.losesData).length;
  const count = (call: string, outcome: string): number =>
    history.filter((o) => o.call.type === call && o.returned?.outcome.type === outcome).length;
  const verdict = {
    storage,
    seconds: (endedMs - startedMs) / 1000,
    grants: count("acquire", "granted"),
    renewals: count("renew", "renewed"),
    handOvers: count("adopt", "granted"),
    losses: count("renew", "refused"),
    processes: ends.length,
    faults: countBy(faults.map(({ kind }) => kind)),
    linearizability,
    checkMs,
    guarded: countUpdates(notes, "guarded", last.guarded, losses),
    plain: countUpdates(notes, "plain", last.plain, 0),
    overlaps: findOverlaps(trace),
    cutShort: countCutShort(trace),
    liveness: { ...measureLiveness(trace), limitMs: limitOf(evidence) },
    driftMs: Math.max(...notes.map((n) => n.type === "ended" ? Math.abs(n.driftMs) : 0)),
  };
  const violations = [
    ...violationsOf(verdict),
    ...lossViolations(trace),
    ...endViolations(ends),
    ...left,
  ];
  return { ...verdict, violations };
}

function violationsOf(verdict: Omit<Verdict, "violations">): string[] {
  const { linearizability, guarded, overlaps, liveness, grants, faults } = verdict;
  const found: string[] = [];
  if (linearizability.verdict !== "linearizable") {
    found.push(`The history is not linearizable. ${linearizability.explanation}`);
  }
  if (guarded.lost > 0) found.push(`${guarded.lost} updates of the guarded resource were lost`);
  if (guarded.undead.length > 0) {
    found.push(`Writes took effect that were called stale: ${guarded.undead.join(", ")}`);
  }
  const [first] = overlaps.unexplained;
  if (first) found.push(`${overlaps.unexplained.length} overlaps are unexplained: first ${first}`);
  if (liveness.served < WORKERS) {
    found.push(`Only ${liveness.served} of ${WORKERS} were served after the faults`);
  }
  if (liveness.longestGapMs > liveness.limitMs) {
    found.push(
      `A waiter waited ${ms(liveness.longestGapMs)} for a free lock after the faults, ` +
        `more than ${ms(liveness.limitMs)}`,
    );
  }
  if (grants < ENOUGH_GRANTS || Object.keys(faults).length < 2) {
    found.push(`Nothing was put to the test: ${grants} grants, faults ${JSON.stringify(faults)}`);
  }
  return found;
}

/** A server that forgot a holding must not write for it any more. */
function lossViolations({ history, notes, faults }: Trace): string[] {
  const grantedMs = new Map(holdingsOf(history).map(({ fence, fromMs }) => [fence, fromMs]));
  const losses = faults.filter((fault) => fault.losesData);
  return findFromBeforeLoss(notes, grantedMs, losses)
    .map((id) => `The write ${id} was applied for a holding that the server had forgotten`);
}

function endViolations(ends: readonly End[]): string[] {
  return ends.flatMap(({ process, code, isKilled, lastWords = "" }) => {
    if (isKilled || code === 0) return [];
    if (code === UNSERVED) return [`${process} was not served after the faults`];
    return [
      code === null
        ? `${process} did not come home in time`
        : `${process} ended by itself with status ${code}: ${lastWords}`,
    ];
  });
}

/** G8: ttl, twice the skew, and one poll. */
function limitOf({ trace: { notes, healedMs }, pollMaxMs, maxClockSkewMs }: Evidence): number {
  const stalls = notes.map((n) =>
    n.type === "stall" && n.atMs > healedMs ? n.atMs - Math.max(n.fromMs, healedMs) : 0
  );
  return TTL_MS + 2 * maxClockSkewMs + pollMaxMs + SLACK_MS + Math.max(0, ...stalls);
}

function countCutShort({ history, faults }: Trace): number {
  const losses = faults.filter((fault) => fault.losesData);
  return holdingsOf(history).filter((h) =>
    losses.some(({ fromMs, toMs }) => h.fromMs < toMs && h.toMs > fromMs)
  ).length;
}

function countBy<K extends string>(keys: readonly K[]): Partial<Record<K, number>> {
  const counts: Partial<Record<K, number>> = {};
  for (const key of keys) counts[key] = (counts[key] ?? 0) + 1;
  return counts;
}

function ms(value: number): string {
  return `${value.toFixed(0)} ms`;
}
