/**
 * What several processes asked of locks and learned, and its text, which other checkers can read too.
 *
 * The text is lines of JSON in any order: an `invoke` and at most one `return` for each operation, which
 * `process` and `op` name together. A process that is started again is another process. Instants are in
 * milliseconds by one clock that all processes share. What is not JSON, as the last line of a process that was
 * killed, is skipped, and so are lines of other types.
 *
 * ```json
 * {"type":"invoke","process":"a","op":1,"atMs":10.2,"lock":"job","call":{"type":"acquire"}}
 * {"type":"return","process":"a","op":1,"atMs":11.9,"outcome":{"type":"granted","fence":7,"validUntilMs":900}}
 * {"type":"invoke","process":"a","op":2,"atMs":50,"lock":"job","call":{"type":"release","fence":7}}
 * ```
 *
 * @module
 */

/** What is asked of a lock; `fence` names the holding that is meant. */
export type LockCall =
  | { readonly type: "acquire" }
  | { readonly type: "renew" | "release" | "adopt"; readonly fence: number }
  | { readonly type: "evict"; readonly fence?: number | undefined }
  | { readonly type: "lose" };

/** What the caller learned. */
export type LockOutcome =
  /** By `acquire` and `adopt`; `validUntilMs` is the holder's local deadline. */
  | { readonly type: "granted"; readonly fence: number; readonly validUntilMs: number }
  /** By `renew`. */
  | { readonly type: "renewed"; readonly validUntilMs: number }
  /** By `release`: the holding ended with it. */
  | { readonly type: "released" }
  /** By `evict`. */
  | { readonly type: "evicted"; readonly count: number }
  /** By `lose`. */
  | { readonly type: "lost" }
  /** By `acquire`: somebody else holds. By `renew`, `release` and `adopt`: the holding is over. */
  | { readonly type: "refused" };

/** One operation on one lock. */
export interface LockOperation {
  /** Who. */
  readonly process: string;
  /** Which of its operations. */
  readonly op: number;
  /** The name of the lock. */
  readonly lock: string;
  /** What was asked. */
  readonly call: LockCall;
  /** When, in milliseconds. */
  readonly invokedAtMs: number;
  /** How it returned; absent where nobody knows. */
  readonly returned?: { readonly atMs: number; readonly outcome: LockOutcome } | undefined;
}

/** One line of the text of a history. */
export type HistoryLine =
  & { readonly process: string; readonly op: number; readonly atMs: number }
  & (
    | { readonly type: "invoke"; readonly lock: string; readonly call: LockCall }
    | { readonly type: "return"; readonly outcome: LockOutcome }
  );

/**
 * Reads the text of a history.
 *
 * @param text lines of JSON, as the module says
 * @returns the operations, in order of their first line
 * @throws {TypeError} if a return has no invocation
 */
export function parseHistory(text: string): LockOperation[] {
  const operations = new Map<string, LockOperation>();
  const returns: HistoryLine[] = [];
  for (const json of text.split("\n")) {
    const line = parseLine(json);
    if (line?.type === "return") returns.push(line);
    if (line?.type !== "invoke") continue;
    const { process, op, lock, call, atMs } = line;
    operations.set(`${process} ${op}`, { process, op, lock, call, invokedAtMs: atMs });
  }
  for (const line of returns) {
    const key = `${line.process} ${line.op}`;
    const operation = operations.get(key);
    if (!operation || line.type !== "return") {
      throw new TypeError(
        `Cannot read history as a return must have an invocation: operation ${key}`,
      );
    }
    const { atMs, outcome } = line;
    operations.set(key, { ...operation, returned: { atMs, outcome } });
  }
  return [...operations.values()];
}

/**
 * Writes the text of a history.
 *
 * @param history the operations
 * @returns lines of JSON, as the module says
 */
export function formatHistory(history: Iterable<LockOperation>): string {
  let text = "";
  const write = (line: HistoryLine): void => void (text += JSON.stringify(line) + "\n");
  for (const { process, op, lock, call, invokedAtMs, returned } of history) {
    write({ type: "invoke", process, op, atMs: invokedAtMs, lock, call });
    if (returned) write({ type: "return", process, op, ...returned });
  }
  return text;
}

/** A line that is cut off, or of another kind, is none. */
function parseLine(json: string): HistoryLine | undefined {
  try {
    return JSON.parse(json) as HistoryLine;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
