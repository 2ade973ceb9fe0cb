/**
 * One request to a storage, bounded in time whatever the storage does with it.
 *
 * @module
 */
import type { Clock } from "./clock.ts";
import { dispose } from "./disposable.ts";
import { StorageError } from "./errors.ts";

/** A request under way. */
export interface Request<T> {
  /** Settles with the answer, or no later than the limit or the abort. */
  readonly result: Promise<T>;
  /** Settles when the storage has; never rejects. */
  readonly settled: Promise<void>;
  /** Gives up: the result rejects with `reason` at once, and the storage is told. */
  readonly abort: (reason: unknown) => void;
}

/** Options of {@linkcode sendRequest}. */
export interface RequestOptions {
  /** Whose time. */
  readonly clock: Clock;
  /** The longest that the result may take, in milliseconds. */
  readonly limitMs: number;
  /** What is attempted, for the message: `acquire lock "x"`. */
  readonly what: string;
  /** Whether the process stays alive for the answer. */
  readonly keepAlive: boolean;
  /** Gives up early, with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Sends one request.
 *
 * @param options limits
 * @param send makes the request
 * @returns the request under way; its `result` rejects with a `StorageError`, or the reason of an abort
 */
export function sendRequest<T>(
  options: RequestOptions,
  send: (signal: AbortSignal) => Promise<T>,
): Request<T> {
  const { clock, limitMs, what, keepAlive, signal } = options;
  const controller = new AbortController();
  let abort!: (reason: unknown) => void;
  const gaveUp = new Promise<never>((_, reject) => {
    abort = (reason) => {
      reject(reason);
      controller.abort(reason);
    };
  });
  const onAbort = (): void => abort(signal!.reason);
  const timer = clock.setTimer(limitMs, () => {
    abort(
      new StorageError(
        `Cannot ${what} as the storage did not answer: current value is ${Math.ceil(limitMs)} ms`,
        { transient: true },
      ),
    );
  }, { keepAlive });
  signal?.addEventListener("abort", onAbort, { once: true });

  const answer = attempt(send, controller.signal).catch((error) => {
    throw controller.signal.aborted || error instanceof StorageError
      ? error
      : new StorageError(`Cannot ${what} as the storage failed`, {
        transient: false,
        cause: error,
      });
  });
  const result = Promise.race([answer, gaveUp]).finally(() => {
    timer[dispose]();
    signal?.removeEventListener("abort", onAbort);
  });
  return { result, settled: answer.then(() => {}, () => {}), abort };
}

/** A storage that throws instead of rejecting has failed all the same. */
async function attempt<T>(
  send: (signal: AbortSignal) => Promise<T>,
  signal: AbortSignal,
): Promise<T> {
  return await send(signal);
}
