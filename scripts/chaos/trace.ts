/**
 * What is known of a run when it is over, and the holdings and sections that follow from it.
 *
 * @module
 */
import { type LockOperation, parseHistory } from "../../src/testing/mod.ts";
import { parseJournal } from "./journal.ts";
import { CLOCK_MARGIN_MS, type Fault, type Note } from "./terms.ts";

/** A run. */
export interface Trace {
  /** The history of the lock. */
  readonly history: readonly LockOperation[];
  /** What the processes noted besides. */
  readonly notes: readonly Note[];
  /** What was done to them. */
  readonly faults: readonly Fault[];
  /** When the workers began. */
  readonly startedMs: number;
  /** When the faults stopped. */
  readonly healedMs: number;
  /** When everybody was home. */
  readonly endedMs: number;
}

/** One holding of the lock. */
export interface Holding {
  /** Whose. */
  readonly process: string;
  /** Its fencing token. */
  readonly fence: number;
  /** When it was asked for. */
  readonly askedMs: number;
  /** When its holder learned of it. */
  readonly fromMs: number;
  /** Until when its holder trusted it, or gave it back, whichever was first. */
  readonly toMs: number;
}

/** One pass through the work on the resource that nobody guards. */
export interface Section {
  /** Whose. */
  readonly process: string;
  /** Its fencing token. */
  readonly fence: number;
  /** When it read. */
  readonly fromMs: number;
  /** When it had written, or died. */
  readonly toMs: number;
}

/** Reads the journals of all processes. */
export function readJournals(texts: readonly string[]): Pick<Trace, "history" | "notes"> {
  const lines = texts.flatMap(parseJournal);
  const notes = lines.filter((line): line is Note =>
    line.type !== "invoke" && line.type !== "return"
  );
  return { history: parseHistory(texts.join("")), notes };
}

/** A history in which no instant is known better than the clocks are. */
export function widen(history: readonly LockOperation[]): LockOperation[] {
  return history.map((operation) => {
    const { returned } = operation;
    const invokedAtMs = operation.invokedAtMs - CLOCK_MARGIN_MS;
    if (!returned) return { ...operation, invokedAtMs };
    const { atMs, outcome } = returned;
    return {
      ...operation,
      invokedAtMs,
      returned: {
        atMs: atMs + CLOCK_MARGIN_MS,
        outcome: "validUntilMs" in outcome
          ? { ...outcome, validUntilMs: outcome.validUntilMs - CLOCK_MARGIN_MS }
          : outcome,
      },
    };
  });
}

/** The holdings, in order of their fences. */
export function holdingsOf(history: readonly LockOperation[]): Holding[] {
  const validUntilMs = new Map<number, number>();
  const endMs = new Map<number, number>();
  for (const { call, invokedAtMs, returned } of history) {
    const outcome = returned?.outcome;
    if (call.type === "release" || call.type === "adopt") {
      endMs.set(call.fence, Math.min(invokedAtMs, endMs.get(call.fence) ?? Infinity));
    }
    const fence = outcome?.type === "granted"
      ? outcome.fence
      : call.type === "renew"
      ? call.fence
      : undefined;
    if (fence === undefined || !outcome || !("validUntilMs" in outcome)) continue;
    validUntilMs.set(fence, Math.max(outcome.validUntilMs, validUntilMs.get(fence) ?? 0));
  }
  return history.flatMap(({ process, invokedAtMs: askedMs, returned }): Holding[] => {
    if (returned?.outcome.type !== "granted") return [];
    const { fence } = returned.outcome;
    const toMs = Math.min(validUntilMs.get(fence)!, endMs.get(fence) ?? Infinity);
    return [{ process, fence, askedMs, fromMs: returned.atMs, toMs }];
  }).sort((a, b) => a.fence - b.fence);
}

/** The sections, in order of their beginnings; without those of processes that died before they wrote. */
export function sectionsOf({ notes, faults, endedMs }: Trace): Section[] {
  const deathMs = new Map(
    faults.filter(({ kind }) => kind === "kill").map(({ target, toMs }) => [target, toMs]),
  );
  return notes.flatMap((note): Section[] => {
    if (note.type !== "enter") return [];
    const { process, fence, atMs: fromMs } = note;
    const next = (type: "write" | "wrote"): Note | undefined =>
      notes.find((n) =>
        n.type === type && n.process === process && n.resource === "plain" && n.atMs >= fromMs
      );
    if (!next("write")) return [];
    const toMs = next("wrote")?.atMs ?? deathMs.get(process) ?? endedMs;
    return [{ process, fence, fromMs, toMs }];
  }).sort((a, b) => a.fromMs - b.fromMs);
}
