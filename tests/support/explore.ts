/**
 * Visits every state that a model can reach, nearest first, so that the first wrong one comes with the
 * shortest way to it.
 */

/** Something with states. */
export interface Model<S> {
  /** Where it begins. */
  readonly initial: S;
  /** All that can happen in a state, and what comes of it. */
  next(state: S): Iterable<readonly [label: string, state: S]>;
  /** Equal for equal states. */
  key(state: S): string;
  /** What is wrong with a state, if anything. */
  wrong(state: S): string | undefined;
}

/** What a search came to. */
export interface Explored {
  /** How many different states there are. */
  readonly states: number;
  /** How many steps led to states, new or known. */
  readonly steps: number;
  /** The longest of the shortest ways. */
  readonly depth: number;
  /** What was wrong, and how it came to that. */
  readonly broken: { readonly what: string; readonly way: readonly string[] } | undefined;
}

/** More than this does not fit in memory. */
const MAX_STEPS = 5_000_000;

interface Node<S> {
  readonly state: S;
  readonly label: string;
  readonly from: Node<S> | undefined;
}

/**
 * Visits all states.
 *
 * @param model what to search
 * @returns how much there was, and the first state that is wrong
 */
export function explore<S>(model: Model<S>): Explored {
  const seen = new Set([model.key(model.initial)]);
  let level: Node<S>[] = [{ state: model.initial, label: "", from: undefined }];
  let steps = 0;
  let depth = 0;
  for (; level.length > 0; depth++) {
    const nextLevel: Node<S>[] = [];
    for (const node of level) {
      for (const [label, state] of model.next(node.state)) {
        if (++steps > MAX_STEPS) throw new RangeError("Cannot search a model as it is too large");
        const key = model.key(state);
        if (seen.has(key)) continue;
        seen.add(key);
        const next: Node<S> = { state, label, from: node };
        const what = model.wrong(state);
        if (what) return { states: seen.size, steps, depth, broken: { what, way: wayTo(next) } };
        nextLevel.push(next);
      }
    }
    level = nextLevel;
  }
  return { states: seen.size, steps, depth, broken: undefined };
}

function wayTo<S>(node: Node<S>): string[] {
  const way: string[] = [];
  for (let n: Node<S> | undefined = node; n?.from; n = n.from) way.unshift(n.label);
  return way;
}
