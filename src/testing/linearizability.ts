/**
 * Checks what several processes saw of a lock: whether there is one order of everything that happened, in
 * which each operation took effect at one instant between its invocation and its return, that a lock with a
 * capacity of 1 can explain. This is linearizability (Herlihy and Wing, 1990), searched for as Wing and Gong
 * (1993) do, with Lowe's memory of what was tried (2017), for one lock name at a time, because locks do not
 * depend on each other.
 *
 * **The model.** A lock has an owner, known by its fence, and the highest fence that it granted.
 *
 * - `acquire` and `adopt` are granted with a larger fence than all before; `acquire` only of a lock without
 *   an owner, `adopt` only by the owner that hands over. An `acquire` is refused only while there is an owner.
 * - `renew` succeeds, and `release` frees, only for the owner; they are refused only for another.
 * - `evict` removes the owner that it means. `lose` is a storage that lost its data: there is no owner, and
 *   fences still have to rise.
 * - **Expiry** is an event of its own, which may happen at any instant from the owner's local deadline on
 *   (`validUntilMs` of its grant, or of the latest renewal that returned), or never. So the checker knows
 *   nothing of the storage's clock and of ttls. It is sound: it never blames a lock that keeps G5 (the local
 *   deadline is never later than the storage's expiry). And it is strict where it matters: no grant
 *   passes while another holding is valid, from the return of its grant to the invocation of its release or
 *   its local deadline.
 * - An operation **without a return** may take effect at any instant after its invocation, or never. What
 *   it granted is valid for nobody, because nobody learned of it. A client that asks again after a lost reply
 *   may have taken effect twice: such a request is an operation without a return of its own.
 *
 * Only for a capacity of 1, without `minHoldMs` and without `fair`, where an acquire can be refused although
 * nobody holds.
 *
 * @module
 */
import type { LockOperation } from "./lock_history.ts";
import { apply, INITIAL, type Returned, type State, Unknowns } from "./lock_model.ts";

/** What came of the check of one lock. */
export interface LockVerdict {
  /** The name of the lock. */
  readonly lock: string;
  /** `undecided`: the search was given up after `maxStates`. */
  readonly verdict: "linearizable" | "violation" | "undecided";
  /** Operations whose outcome is known. */
  readonly operations: number;
  /** Operations whose outcome nobody knows. */
  readonly unknown: number;
  /** States that the search went through. */
  readonly states: number;
  /** What the longest order that was found cannot explain; empty if there is nothing. */
  readonly explanation: string;
}

/** Options of {@linkcode checkHistory}. */
export interface CheckHistoryOptions {
  /**
   * After how many states the search of one lock is given up.
   *
   * @default {1000000}
   */
  readonly maxStates?: number | undefined;
}

/**
 * Checks a history, lock by lock.
 *
 * @example
 * ```ts
 * import { checkHistory, parseHistory } from "@holdfast/lock/testing";
 * import { assertEquals } from "@std/assert";
 *
 * const history = parseHistory(`
 *   {"type":"invoke","process":"a","op":1,"atMs":0,"lock":"job","call":{"type":"acquire"}}
 *   {"type":"return","process":"a","op":1,"atMs":1,"outcome":{"type":"granted","fence":7,"validUntilMs":900}}
 *   {"type":"invoke","process":"b","op":1,"atMs":2,"lock":"job","call":{"type":"acquire"}}
 *   {"type":"return","process":"b","op":1,"atMs":3,"outcome":{"type":"granted","fence":8,"validUntilMs":902}}
 * `);
 * assertEquals(checkHistory(history).map((lock) => lock.verdict), ["violation"]);
 * ```
 *
 * @param history in any order
 * @param options `maxStates`
 * @returns a verdict for each lock, in order of appearance
 * @throws {TypeError} if an operation returned what it cannot return
 */
export function checkHistory(
  history: Iterable<LockOperation>,
  options: CheckHistoryOptions = {},
): LockVerdict[] {
  const byLock = Map.groupBy(history, (operation) => operation.lock);
  const { maxStates = 1_000_000 } = options;
  return [...byLock].map(([lock, operations]) => new Search(lock, operations).run(maxStates));
}

/** How far the search has come on one path. */
interface Node {
  readonly state: State;
  /** All operations before this one are in the order. */
  readonly base: number;
  /** And these behind it. */
  readonly ahead: readonly number[];
  /** How many grants are in the order. */
  readonly grants: number;
}

/** The search for an order of the operations on one lock. */
class Search {
  readonly #lock: string;
  /** In order of invocation. */
  readonly #known: readonly Returned[];
  readonly #unknown: number;
  readonly #unknowns: Unknowns;
  /** Fences rise, so there is only one order that grants can have. */
  readonly #fences: readonly number[];
  /** The earliest instant at which what was tried before came to the same. */
  readonly #tried = new Map<string, number>();
  #longest: Node | undefined;

  constructor(lock: string, operations: readonly LockOperation[]) {
    this.#lock = lock;
    this.#known = operations.filter((o): o is Returned => o.returned !== undefined)
      .sort((a, b) => a.invokedAtMs - b.invokedAtMs);
    const unknown = operations.filter((o) => o.returned === undefined);
    this.#unknown = unknown.length;
    this.#unknowns = new Unknowns(unknown);
    this.#fences = this.#known.flatMap(fenceOf).sort((a, b) => a - b);
  }

  run(maxStates: number): LockVerdict {
    const start: Node = { state: INITIAL, base: 0, ahead: [], grants: 0 };
    // A stack of its own: histories are longer than the engine's is deep.
    const paths: Iterator<Node, unknown>[] = [[start].values()];
    while (paths.length > 0) {
      const step = paths.at(-1)!.next();
      if (step.done) {
        paths.pop();
        continue;
      }
      const node = step.value;
      if (this.#wasTried(node)) continue;
      if (countOf(node) > countOf(this.#longest)) this.#longest = node;
      if (node.base === this.#known.length) return this.#verdict("linearizable");
      if (this.#tried.size >= maxStates) return this.#verdict("undecided");
      paths.push(this.#next(node));
    }
    return this.#verdict("violation");
  }

  /** The remaining operations that may be the next one, the one that returns first to begin with. */
  #candidates({ base, ahead }: Node): { candidates: number[]; limitMs: number } {
    const candidates: number[] = [];
    let limitMs = Infinity;
    for (let i = base; i < this.#known.length; i++) {
      if (ahead.includes(i)) continue;
      const { invokedAtMs, returned } = this.#known[i]!;
      // Whatever comes from here on begins after another one has returned.
      if (invokedAtMs > limitMs) break;
      limitMs = Math.min(limitMs, returned.atMs);
      candidates.push(i);
    }
    const returnOf = (i: number): number => this.#known[i]!.returned.atMs;
    return { candidates: candidates.sort((a, b) => returnOf(a) - returnOf(b)), limitMs };
  }

  *#next(node: Node): Generator<Node> {
    const { candidates, limitMs } = this.#candidates(node);
    for (const i of candidates) {
      const operation = this.#known[i]!;
      const [fence] = fenceOf(operation);
      if (fence !== undefined && fence !== this.#fences[node.grants]) continue;
      for (const state of apply(node.state, operation, this.#unknowns)) {
        if (state.nowMs > limitMs) continue;
        const ahead = [...node.ahead, i];
        let { base } = node;
        while (ahead.includes(base)) base++;
        yield {
          state,
          base,
          ahead: ahead.filter((j) => j > base).sort((a, b) => a - b),
          grants: node.grants + (fence === undefined ? 0 : 1),
        };
      }
    }
  }

  /** The rest of the state follows from these; of two instants the earlier one leaves more open. */
  #wasTried({ state, base, ahead }: Node): boolean {
    const owner = state.owner ? state.owner.fence : "free";
    const key = `${base} ${ahead} ${owner} ${state.takers} ${state.evictions}`;
    const triedMs = this.#tried.get(key);
    if (triedMs !== undefined && triedMs <= state.nowMs) return true;
    this.#tried.set(key, state.nowMs);
    return false;
  }

  #verdict(verdict: LockVerdict["verdict"]): LockVerdict {
    return {
      lock: this.#lock,
      verdict,
      operations: this.#known.length,
      unknown: this.#unknown,
      states: this.#tried.size,
      explanation: verdict === "linearizable" || !this.#longest ? "" : this.#explain(this.#longest),
    };
  }

  #explain(node: Node): string {
    const { owner, fence, nowMs } = node.state;
    const held = owner
      ? `fence ${owner.fence ?? "unknown"} holds, valid until ${ms(owner.validUntilMs)}`
      : "nobody holds";
    const stuck = this.#candidates(node).candidates.slice(0, 5).map((i) => {
      const operation = this.#known[i]!;
      const { process, op, call, invokedAtMs, returned } = operation;
      const [next] = fenceOf(operation);
      const isEarly = next !== undefined && next > this.#fences[node.grants]!;
      return `  ${process} ${op}: ${JSON.stringify(call)} from ${ms(invokedAtMs)} to ` +
        `${ms(returned.atMs)}: ${JSON.stringify(returned.outcome)}` +
        (isEarly ? `, as fence ${this.#fences[node.grants]} is still to come` : "");
    });
    return `Lock "${this.#lock}": after ${countOf(node)} of ${this.#known.length} operations, at ` +
      `${ms(nowMs)}, ${held}, the last fence is ${fence}, and none of these can be next:\n` +
      stuck.join("\n");
  }
}

function countOf(node: Node | undefined): number {
  return node ? node.base + node.ahead.length : -1;
}

/** The fence that an operation was granted, if any. */
function fenceOf({ returned: { outcome } }: Returned): number[] {
  return outcome.type === "granted" ? [outcome.fence] : [];
}

function ms(instantMs: number): string {
  return `${instantMs.toFixed(1)} ms`;
}
