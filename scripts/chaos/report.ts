/**
 * A run as a row of a table, and as a picture.
 *
 * @module
 */
import { type Lane, type Mark, type Measure, renderTimeline, type Span } from "../timeline.ts";
import { PRODUCTS } from "./products.ts";
import { type Fault, WORKERS } from "./terms.ts";
import { holdingsOf, sectionsOf, type Trace } from "./trace.ts";
import type { Verdict } from "./verdict.ts";

const COLUMNS: readonly (readonly [head: string, cell: (verdict: Verdict) => string | number])[] = [
  ["storage", (v) => v.storage],
  ["grants", (v) => v.grants],
  ["renewed", (v) => v.renewals],
  ["handed", (v) => v.handOvers],
  ["lost", (v) => v.losses],
  ["killed", (v) => v.faults["kill"] ?? 0],
  ["frozen", (v) => v.faults["freeze"] ?? 0],
  ["network", (v) => networkFaults(v)],
  ["server", (v) => (v.faults["server kill"] ?? 0) + (v.faults["server freeze"] ?? 0)],
  ["evicted", (v) => v.faults["evict"] ?? 0],
  ["ops", (v) => `${v.linearizability.operations}+${v.linearizability.unknown}?`],
  ["linearizable", (v) => v.linearizability.verdict === "linearizable" ? "yes" : "NO"],
  ["guarded", (v) => v.guarded.applied],
  ["stale", (v) => v.guarded.stale],
  ["lost", (v) => v.guarded.lost],
  ["plain", (v) => v.plain.applied],
  ["lost", (v) => v.plain.lost],
  ["overlaps", (v) => overlapsOf(v)],
  ["gap ms", (v) => v.liveness.longestGapMs.toFixed(0)],
  ["result", (v) => v.violations.length === 0 ? "ok" : "FAILED"],
];

/** What the columns mean. */
const LEGEND = `
grants to handed: leases that were granted, renewed, handed over; lost: of holders that lived to see it
ops: operations of known outcome + of unknown outcome in the history that is checked for linearizability
guarded: acknowledged writes under a fence, those refused as stale, and updates that were lost (must be 0)
plain: the same work on a resource that compares no fences, and updates that were lost on it (why fences exist)
overlaps: sections on the plain resource that overlapped: all explained by a freeze, an eviction or lost data,
  or (stall) by a machine too busy to run the process; one without an explanation is a violation
gap: the longest wait for a free lock after the faults (limit: ttl + 2 x skew + longest poll, and some slack)`;

/** Draws the table. */
export function renderTable(verdicts: readonly Verdict[]): string {
  const rows = [
    COLUMNS.map(([head]) => head),
    ...verdicts.map((v) => COLUMNS.map(([, cell]) => `${cell(v)}`)),
  ];
  const widths = COLUMNS.map((_, i) => Math.max(...rows.map((row) => row[i]!.length)));
  const lines = rows.map((row) =>
    row.map((cell, i) => i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!)).join("  ")
  );
  return [...lines, LEGEND, ...verdicts.flatMap(notesOn)].join("\n");
}

function networkFaults({ faults }: Verdict): number {
  const kinds = ["cut", "refuse", "hang", "delay", "lose request", "lose reply"] as const;
  return kinds.reduce((sum, kind) => sum + (faults[kind] ?? 0), 0);
}

function overlapsOf({ overlaps: { causes, unexplained } }: Verdict): string {
  const parts = Object.entries(causes).map(([cause, count]) => `${count} ${cause}`);
  if (unexplained.length > 0) parts.push(`${unexplained.length} UNEXPLAINED`);
  return parts.join(", ") || "0";
}

/** What a row cannot say. */
function notesOn(verdict: Verdict): string[] {
  const { storage, cutShort, guarded, driftMs, violations, faults } = verdict;
  const notes: string[] = [];
  if (!PRODUCTS[storage]!.persist) {
    notes.push(
      `${storage}: a server without persistence was killed ${faults["server kill"] ?? 0} times. ` +
        `Then it forgets who holds: ${cutShort} leases were valid at that moment and could overlap with the ` +
        `next, and ${guarded.lostWithData} acknowledged writes were lost with its data. Not promised: ` +
        `exclusion across that. Promised, and checked: fences rise across it, as the server's clock did not ` +
        `step back, and no write of a holder from before is applied after it.`,
    );
  }
  if (driftMs > 5) {
    notes.push(`${storage}: the wall clock moved by ${driftMs.toFixed(1)} ms during the run`);
  }
  return [...notes, ...violations.map((violation) => `${storage}: VIOLATION: ${violation}`)];
}

/** Draws the picture. */
export function drawRun(verdict: Verdict, trace: Trace): string {
  const { startedMs, endedMs, healedMs } = trace;
  const lanes = Array.from({ length: WORKERS }, (_, i) => laneOf(`w${i + 1}`, trace));
  const server = trace.faults.filter(({ target }) => target === "server");
  if (PRODUCTS[verdict.storage]!.service) {
    const measures = server.map((fault) => measureOf(fault, startedMs));
    lanes.push({ label: "server", spans: [], marks: [], measures });
  }
  const { grants, guarded, plain } = verdict;
  return renderTimeline({
    title: `Chaos on ${verdict.storage}`,
    subtitle: `${grants} grants to ${verdict.processes} processes in ${WORKERS} places. ` +
      `Guarded by ${
        PRODUCTS[verdict.storage]!.fence
      }: ${guarded.applied} writes, ${guarded.stale} refused as ` +
      `stale, ${guarded.lost} lost. Without a fence: ${plain.applied} writes, ${plain.lost} lost.`,
    toMs: endedMs - startedMs,
    lanes,
    notes: [
      `The faults stop after ${((healedMs - startedMs) / 1000).toFixed(1)} s. Overlaps: ${
        overlapsOf(verdict)
      }.`,
      ...verdict.violations.map((violation) => `VIOLATION: ${violation.split("\n")[0]}`),
    ],
  });
}

/** One place, with all the processes that were in it. */
function laneOf(place: string, trace: Trace): Lane {
  const { history, notes, faults, startedMs } = trace;
  const isHere = ({ process }: { process: string }): boolean => process.split("#")[0] === place;
  const mine = faults.filter(({ target }) => isHere({ process: target }));
  const deathMs = new Map(mine.filter((f) => f.kind === "kill").map((f) => [f.target, f.fromMs]));
  const at = (ms: number): number => ms - startedMs;
  const spans: Span[] = [];
  for (const { process, fence, fromMs, toMs } of holdingsOf(history).filter(isHere)) {
    if (toMs < startedMs) continue;
    const diedMs = deathMs.get(process) ?? Infinity;
    const title = `${process}, fence ${fence}`;
    spans.push({ kind: "held", fromMs: at(fromMs), toMs: at(Math.min(toMs, diedMs)), title });
    if (diedMs < toMs) spans.push({ kind: "dead", fromMs: at(diedMs), toMs: at(toMs), title });
  }
  const holdings = new Map(holdingsOf(history).map((h) => [h.fence, h]));
  for (const { process, fence, toMs } of sectionsOf(trace).filter(isHere)) {
    const overMs = holdings.get(fence)?.toMs ?? Infinity;
    const title = `${process}, fence ${fence}`;
    if (overMs < toMs) spans.push({ kind: "zombie", fromMs: at(overMs), toMs: at(toMs), title });
  }
  const marks: Mark[] = [];
  const measures: Measure[] = [];
  for (const fault of mine) {
    const { kind, fromMs, toMs } = fault;
    if (kind === "kill") marks.push({ kind, atMs: at(fromMs) });
    else if (kind === "freeze") {
      spans.push({ kind: "frozen", fromMs: at(fromMs), toMs: at(toMs) });
      marks.push({ kind: "freeze", atMs: at(fromMs) }, { kind: "thaw", atMs: at(toMs) });
    } else measures.push(measureOf(fault, startedMs));
  }
  for (const note of notes.filter(isHere)) {
    if (note.type === "wrote" && note.how === "stale") {
      marks.push({ kind: "refused", atMs: at(note.atMs) });
    }
  }
  const processes = notes.filter((note) => note.type === "started" && isHere(note)).length;
  const detail = processes === 1 ? "1 process" : `${processes} processes`;
  marks.sort((a, b) => a.atMs - b.atMs);
  return { label: place, detail, spans, marks, measures };
}

function measureOf({ kind, fromMs, toMs }: Fault, startedMs: number): Measure {
  return { fromMs: fromMs - startedMs, toMs: toMs - startedMs, label: kind };
}
