/**
 * When two were in their sections on the unguarded resource at the same time, and why.
 *
 * @module
 */
import { holdingsOf, type Section, sectionsOf, type Trace } from "./trace.ts";

/** What can have made a holder go on after its lease. */
export type Cause = "freeze" | "evicted" | "data lost" | "stall";

/** The overlaps of a run. */
export interface Overlaps {
  /** How many there are, by cause. */
  readonly causes: Readonly<Partial<Record<Cause, number>>>;
  /** Those without a cause, in words. */
  readonly unexplained: readonly string[];
}

/** Looks for overlaps. */
export function findOverlaps(trace: Trace): Overlaps {
  const sections = sectionsOf(trace);
  const causes: Partial<Record<Cause, number>> = {};
  const unexplained: string[] = [];
  for (const [i, a] of sections.entries()) {
    for (const b of sections.slice(i + 1)) {
      if (b.fromMs >= a.toMs) break;
      const [late, rightful] = a.fence < b.fence ? [a, b] : [b, a];
      const cause = causeOf(trace, late, rightful);
      if (cause) causes[cause] = (causes[cause] ?? 0) + 1;
      else {
        unexplained.push(
          `${late.process} went on under fence ${late.fence} while ${rightful.process} worked under ` +
            `fence ${rightful.fence}, for no reason that we know`,
        );
      }
    }
  }
  return { causes, unexplained };
}

function causeOf(trace: Trace, late: Section, rightful: Section): Cause | undefined {
  const { faults, notes, history } = trace;
  const meets = (span: { fromMs: number; toMs: number }, other: { fromMs: number; toMs: number }) =>
    span.fromMs <= other.toMs && other.fromMs <= span.toMs;
  const isOf = (kind: string) => (fault: { kind: string; target: string }) =>
    fault.kind === kind && fault.target === late.process;
  if (faults.filter(isOf("freeze")).some((fault) => meets(fault, late))) return "freeze";
  if (faults.some((fault) => fault.fence === late.fence)) return "evicted";

  const grantedMs = holdingsOf(history).find((h) => h.fence === late.fence)?.fromMs ?? late.fromMs;
  const held = { fromMs: grantedMs, toMs: rightful.fromMs };
  if (faults.some((fault) => fault.losesData && meets(fault, held))) return "data lost";
  const isStall = notes.some((note) =>
    note.type === "stall" && note.process === late.process &&
    meets({ fromMs: note.fromMs, toMs: note.atMs }, late)
  );
  return isStall ? "stall" : undefined;
}
