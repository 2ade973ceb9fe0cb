/**
 * Makes a failing run smaller, so that somebody can read what happened.
 *
 * @module
 */
import type { SimulatedFault } from "./faults.ts";
import type { Scenario } from "./scenario.ts";
import type { Violation } from "./world.ts";

/** What a run came to, as far as shrinking needs to know. */
export interface Outcome {
  /** The guarantee that did not hold. */
  readonly violation: Violation | undefined;
  /** How many events there were. */
  readonly events: number;
}

/** A failing run. */
export interface Failure {
  /** What was run. */
  readonly scenario: Scenario;
  /** The guarantee that did not hold. */
  readonly violation: Violation;
  /** How many events there were. */
  readonly events: number;
}

/** Other seeds that are tried with a smaller scenario: one of them may fail sooner. */
const SEEDS = 20;

/**
 * Looks for the shortest run that breaks the same guarantee: without kinds of faults, processes, deeds and
 * options, for a shorter time, and with other seeds.
 *
 * @param failure what to make smaller
 * @param run runs a scenario
 * @param maxRuns how many runs to spend
 * @returns the shortest that was found
 */
export async function shrink(
  failure: Failure,
  run: (scenario: Scenario) => Promise<Outcome>,
  maxRuns: number,
): Promise<Failure> {
  let best = failure;
  let runs = 0;
  const attempt = async (scenario: Scenario): Promise<boolean> => {
    if (runs++ >= maxRuns) return false;
    const { violation, events } = await run(scenario);
    if (violation?.guarantee !== failure.violation.guarantee || events > best.events) return false;
    best = { scenario, violation, events };
    return true;
  };
  for (let isSmaller = true; isSmaller && runs < maxRuns;) {
    isSmaller = false;
    for (const change of changes(best.scenario, best.violation)) {
      if (await attempt({ ...best.scenario, ...change })) isSmaller = true;
    }
    for (let seed = 0; seed < SEEDS; seed++) {
      const { events } = best;
      if (await attempt({ ...best.scenario, seed }) && best.events < events) isSmaller = true;
    }
  }
  return best;
}

/** What could be left out of a scenario. */
function changes(scenario: Scenario, violation: Violation): Partial<Scenario>[] {
  const { processes, actors, names, deeds, forMs, faults } = scenario;
  const list: Partial<Scenario>[] = [];
  const sooner = Math.ceil(violation.atMs) + 1;
  if (sooner < forMs) list.push({ forMs: sooner });
  if (forMs > 4000) list.push({ forMs: Math.ceil(forMs / 2) });
  list.push({ faults: {} });
  for (const fault of Object.keys(faults) as SimulatedFault[]) {
    const { [fault]: _, ...others } = faults;
    list.push({ faults: others });
  }
  if (processes > 1) list.push({ processes: processes - 1 });
  if (actors > 1) list.push({ actors: 1 }, { actors: actors - 1 });
  if (names > 1) list.push({ names: 1 });
  for (const deed of new Set(deeds)) {
    if (deeds.some((d) => d !== deed)) list.push({ deeds: deeds.filter((d) => d !== deed) });
  }
  for (const [key, simple] of Object.entries(SIMPLEST)) {
    if (scenario[key as keyof Scenario] !== simple) list.push({ [key]: simple });
  }
  return list;
}

/** What a reader has to think about least. */
const SIMPLEST: Partial<Scenario> = {
  fair: false,
  minHoldMs: 0,
  maxHoldMs: 0,
  autoRenew: true,
  gate: false,
  watch: "none",
  batches: false,
  lock: "mutex",
  deafLibrary: false,
};
