/**
 * What a lock with a capacity of 1 can do: the sequential specification that histories are checked against
 * (see `linearizability.ts` for what it says and why).
 *
 * @module
 */
import type { LockCall, LockOperation, LockOutcome } from "./lock_history.ts";

/** An operation whose outcome is known. */
export type Returned = LockOperation & {
  readonly returned: NonNullable<LockOperation["returned"]>;
};

/** Who has the lock; a fence of `null` is a grant that nobody learned of. */
interface Owner {
  readonly fence: number | null;
  readonly validUntilMs: number;
}

/** The model's state after some operations. */
export interface State {
  readonly owner: Owner | null;
  /** The highest fence granted. */
  readonly fence: number;
  /** The earliest instant at which all of it can have happened. */
  readonly nowMs: number;
  /** How many of the grants that nobody learned of were needed so far. */
  readonly takers: number;
  /** Which of the evictions that nobody learned of were needed so far. */
  readonly evictions: readonly number[];
}

/** The state before the first operation. */
export const INITIAL: State = { owner: null, fence: 0, nowMs: -Infinity, takers: 0, evictions: [] };

/** What each call can return. */
const OUTCOMES: Readonly<Record<LockCall["type"], readonly LockOutcome["type"][]>> = {
  acquire: ["granted", "refused"],
  adopt: ["granted", "refused"],
  renew: ["renewed", "refused"],
  release: ["released", "refused"],
  evict: ["evicted"],
  lose: ["lost"],
};

/** Operations whose outcome nobody knows, as far as they can explain what others saw. */
export class Unknowns {
  /** When an acquire began that may have taken the lock, earliest first. */
  readonly #takersMs: number[] = [];
  readonly #evictions: { readonly atMs: number; readonly fence: number | undefined }[] = [];
  /** When a release or adopt began that may have ended a holding, by fence. */
  readonly #endsMs = new Map<number, number>();
  /** The same of adopts alone, which leave an owner. */
  readonly #adoptsMs = new Map<number, number>();

  constructor(operations: readonly LockOperation[]) {
    for (const { call, invokedAtMs: atMs } of operations) {
      if (call.type === "acquire") this.#takersMs.push(atMs);
      if (call.type === "adopt") noteEarliest(this.#adoptsMs, call.fence, atMs);
      if (call.type === "adopt" || call.type === "release") {
        noteEarliest(this.#endsMs, call.fence, atMs);
      }
      if (call.type === "evict") this.#evictions.push({ atMs, fence: call.fence });
      if (call.type === "lose") this.#evictions.push({ atMs, fence: undefined });
      // A renewal that may have succeeded is no promise to anybody.
    }
    this.#takersMs.sort((a, b) => a - b);
  }

  /** Which acquire it is does not matter to what follows, so it is the earliest. */
  *take(state: State): Generator<State> {
    const atMs = this.#takersMs[state.takers];
    if (state.owner || atMs === undefined) return;
    yield {
      ...state,
      owner: NOBODY_KNOWS,
      nowMs: Math.max(state.nowMs, atMs),
      takers: state.takers + 1,
    };
  }

  /** The ways in which a lock can have become free without anybody seeing it. */
  *free(state: State): Generator<State> {
    const { owner, nowMs } = state;
    if (!owner) return yield state;
    const endMs = this.#endsMs.get(owner.fence ?? 0) ?? Infinity;
    yield { ...state, owner: null, nowMs: Math.max(nowMs, Math.min(owner.validUntilMs, endMs)) };
    for (const [i, { atMs, fence }] of this.#evictions.entries()) {
      if (state.evictions.includes(i) || !means(fence, owner)) continue;
      const evictions = [...state.evictions, i].sort((a, b) => a - b);
      yield { ...state, owner: null, nowMs: Math.max(nowMs, atMs), evictions };
    }
  }

  /** The ways in which its owner can have lost a lock without anybody seeing it. */
  *end(state: State): Generator<State> {
    yield* this.free(state);
    const atMs = this.#adoptsMs.get(state.owner?.fence ?? 0);
    if (atMs === undefined) return;
    yield { ...state, owner: NOBODY_KNOWS, nowMs: Math.max(state.nowMs, atMs) };
  }
}

/** Who was granted a lock and did not learn of it can lose it at any instant. */
const NOBODY_KNOWS: Owner = { fence: null, validUntilMs: -Infinity };

function noteEarliest(instantsMs: Map<number, number>, fence: number, atMs: number): void {
  instantsMs.set(fence, Math.min(atMs, instantsMs.get(fence) ?? Infinity));
}

/** Whether a fence can mean an owner; an unknown one may be meant by any. */
function means(fence: number | undefined, owner: Owner): boolean {
  return fence === undefined || owner.fence === null || owner.fence === fence;
}

/**
 * Applies an operation whose outcome is known.
 *
 * @param before the state
 * @param operation what returned
 * @param unknowns what may have happened besides
 * @returns the states that it can lead to, each at the earliest instant
 * @throws {TypeError} if it returned what it cannot return
 */
export function* apply(
  before: State,
  { call, invokedAtMs, returned: { outcome } }: Returned,
  unknowns: Unknowns,
): Generator<State> {
  if (!OUTCOMES[call.type].includes(outcome.type)) {
    throw new TypeError(
      `Cannot check history as ${call.type} must return one of ${
        OUTCOMES[call.type].join(", ")
      }: ` +
        `current value is ${outcome.type}`,
    );
  }
  const state: State = { ...before, nowMs: Math.max(before.nowMs, invokedAtMs) };
  const { owner } = state;
  const isOwner = owner !== null && "fence" in call && owner.fence === call.fence;
  switch (outcome.type) {
    case "granted": {
      const { fence, validUntilMs } = outcome;
      if (fence <= state.fence || (call.type === "adopt" && !isOwner)) return;
      for (const free of call.type === "adopt" ? [state] : unknowns.free(state)) {
        yield { ...free, owner: { fence, validUntilMs }, fence };
      }
      return;
    }
    case "renewed": {
      const validUntilMs = Math.max(owner?.validUntilMs ?? 0, outcome.validUntilMs);
      if (isOwner) yield { ...state, owner: { ...owner, validUntilMs } };
      return;
    }
    case "released":
      if (isOwner) yield { ...state, owner: null };
      return;
    case "refused":
      if (call.type === "acquire") {
        if (owner) yield state;
        else yield* unknowns.take(state);
      } else if (isOwner) yield* unknowns.end(state);
      else yield state;
      return;
    case "evicted":
      yield* evict(state, call, outcome.count, unknowns);
      return;
    case "lost":
      yield { ...state, owner: null };
      return;
  }
}

function* evict(
  state: State,
  call: LockCall,
  count: number,
  unknowns: Unknowns,
): Generator<State> {
  const { owner } = state;
  const fence = "fence" in call ? call.fence : undefined;
  if (count === 0) {
    if (fence === undefined) yield* unknowns.free(state);
    else if (owner?.fence === fence) yield* unknowns.end(state);
    else yield state;
    return;
  }
  for (const before of [state, ...unknowns.end(state)]) {
    for (const taken of before.owner ? [before] : unknowns.take(before)) {
      if (taken.owner && means(fence, taken.owner)) yield { ...taken, owner: null };
    }
  }
}
