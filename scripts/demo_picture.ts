/**
 * The history of the demo as a picture.
 *
 * @module
 */
import {
  type DemoEvent,
  type Holding,
  holdingsOf,
  type Sabotage,
  type Summary,
} from "./demo_history.ts";
import { type Lane, type Mark, type Measure, renderTimeline, type Span } from "./timeline.ts";

/** Draws it. */
export function drawDemo(
  events: readonly DemoEvent[],
  summary: Summary,
  options: { readonly startMs: number; readonly sabotage: Sabotage | undefined },
): string {
  const { startMs, sabotage } = options;
  const holdings = holdingsOf(events);
  const ranks = new Map(
    holdings.map((h) => h.fence).sort((a, b) => a - b).map((fence, i) => [fence, i + 1]),
  );
  const endMs = Math.max(...events.map((e) => e.at)) - startMs;
  const lanes = [...new Set(events.map((e) => e.worker))].sort((a, b) => a - b).map((worker) =>
    laneOf(worker, events, { holdings, ranks, startMs, isLocked: sabotage !== "no-lock" })
  );
  const { sections, overlaps, lostFencedUpdates, lostUnfencedUpdates } = summary;
  return renderTimeline({
    title: sabotage
      ? `Holdfast demo, sabotaged: ${sabotage}`
      : "Holdfast: one lock, five processes, one Deno KV file",
    subtitle: `${sections} critical sections · ${overlaps} overlaps of valid holdings · ` +
      `lost updates: ${lostFencedUpdates} with the fence, ${lostUnfencedUpdates} without`,
    labelMeans: sabotage === "no-lock" ? undefined : "n: the n-th fencing token",
    names: sabotage === "no-lock"
      ? { held: "in its critical section", zombie: "goes on with what it read before" }
      : undefined,
    toMs: endMs,
    lanes,
  });
}

interface Context {
  readonly holdings: readonly Holding[];
  readonly ranks: ReadonlyMap<number, number>;
  readonly startMs: number;
  readonly isLocked: boolean;
}

function laneOf(worker: number, all: readonly DemoEvent[], context: Context): Lane {
  const { holdings, startMs, isLocked } = context;
  const events = all.filter((e) => e.worker === worker);
  const at = (type: DemoEvent["type"]): number | undefined => {
    const event = events.find((e) => e.type === type);
    return event && event.at - startMs;
  };
  const [killed, frozen, continued] = [at("killed"), at("frozen"), at("continued")];
  const mine = holdings.filter((h) => h.worker === worker);
  const spans: Span[] = [];
  const measures: Measure[] = [];
  for (const holding of mine) {
    const [from, to] = [holding.fromMs - startMs, holding.toMs - startMs];
    const isWithin = (ms: number | undefined): ms is number =>
      ms !== undefined && from <= ms && ms <= to;
    if (isWithin(killed)) {
      spans.push(held(holding, from, killed, context));
      const next = holdings.find((h) => h.fromMs - startMs >= killed && h.worker !== worker);
      if (!isLocked || !next) continue;
      const taken = next.fromMs - startMs;
      spans.push({ kind: "dead", fromMs: killed, toMs: taken });
      measures.push({
        fromMs: killed,
        toMs: taken,
        label: `taken over after ${Math.round(taken - killed)} ms`,
      });
    } else if (isWithin(frozen) && continued !== undefined) {
      const end = events.find((e) => e.type === "releasing" && e.at - startMs >= continued);
      spans.push(held(holding, from, frozen, context));
      spans.push({ kind: "frozen", fromMs: frozen, toMs: continued });
      spans.push({ kind: "zombie", fromMs: continued, toMs: (end?.at ?? startMs) - startMs });
      if (!isLocked) continue;
      measures.push({ fromMs: from, toMs: to, label: "valid" });
      measures.push({ fromMs: to, toMs: continued, label: "lease over" });
    } else spans.push(held(holding, from, to, context));
  }
  const pid = events.find((e) => e.type === "started");
  return {
    label: `worker ${worker}`,
    detail: pid?.type === "started" ? `process ${pid.pid}` : undefined,
    fromMs: at("started"),
    toMs: killed ?? at("ended"),
    spans,
    marks: marksOf(events, startMs),
    measures,
  };
}

function held(holding: Holding, fromMs: number, toMs: number, context: Context): Span {
  const { ranks, isLocked, holdings } = context;
  const before = holdings.slice(0, holdings.indexOf(holding));
  const ms = Math.round(holding.toMs - holding.fromMs);
  return {
    kind: "held",
    fromMs,
    toMs,
    label: isLocked ? `${ranks.get(holding.fence)}` : undefined,
    isWrong: before.some((other) => other.toMs > holding.fromMs),
    title: isLocked ? `fence ${holding.fence}, valid for ${ms} ms` : `${ms} ms, without the lock`,
  };
}

/** A write of a worker that had lost its lease, and that nothing stopped. */
function isStaleWrite(
  event: DemoEvent,
  events: readonly DemoEvent[],
): event is Extract<DemoEvent, { type: "wrote" }> {
  const continued = events.find((e) => e.type === "continued");
  const granted = events.find((e) => e.type === "granted" && continued && e.at >= continued.at);
  return event.type === "wrote" && continued !== undefined && event.at >= continued.at &&
    event.at < (granted?.at ?? Infinity);
}

function marksOf(events: readonly DemoEvent[], startMs: number): Mark[] {
  const marks: Mark[] = [];
  for (const event of events) {
    const atMs = event.at - startMs;
    if (event.type === "killed") marks.push({ kind: "kill", atMs, label: "killed" });
    if (event.type === "frozen") marks.push({ kind: "freeze", atMs, label: "frozen" });
    if (event.type === "continued") marks.push({ kind: "thaw", atMs, label: "goes on" });
    if (isStaleWrite(event, events)) {
      marks.push({ kind: "overwrote", atMs, label: "overwrites" });
    }
    if (event.type === "refused") {
      marks.push({
        kind: "refused",
        atMs,
        label: "refused",
      });
    }
  }
  return marks;
}
