/**
 * One request to a storage, bounded in time whatever the storage does with it.
 *
 * @module
 */
import { backoffMs } from "./backoff.ts";
import { type Clock, sleep } from "./clock.ts";
import { dispose } from "./disposable.ts";
import { isTransient, StorageError } from "./errors.ts";
import type { Command, OutcomeOf } from "./record.ts";
import type { Settings } from "./settings.ts";

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

/**
 * Sends one command for a lock.
 *
 * @param settings of the lock
 * @param verb what is attempted: `acquire lock`
 * @param command the command
 * @param more what differs from the settings
 * @returns the request under way
 */
export function sendCommand<C extends Command>(
  settings: Settings,
  verb: string,
  command: C,
  more: Partial<Pick<RequestOptions, "limitMs" | "keepAlive" | "signal">> = {},
): Request<OutcomeOf<C>> {
  const { storage, name, clock, requestTimeoutMs } = settings;
  const what = `${verb} "${name}"`;
  return sendRequest(
    { clock, limitMs: requestTimeoutMs, what, keepAlive: true, ...more },
    (signal) => storage.execute(name, command, { signal }),
  );
}

/** How often what may be repeated is tried. */
const TRIES = 3;

/** The pause before a failed request is repeated, from the first time on, in milliseconds. */
export const RETRY_MS = { min: 25, max: 1000 };

/**
 * Repeats what may be repeated, up to three times, while the storage fails.
 *
 * @param settings of the lock
 * @param send sends it once
 * @param signal ends the pause between two tries
 * @returns the first answer
 * @throws the last error, or the first that trying again does not help
 */
export async function insist<T>(
  { clock, entropy }: Settings,
  send: () => Promise<T>,
  signal?: AbortSignal,
): Promise<T> {
  for (let tries = 1;; tries++) {
    try {
      return await send();
    } catch (error) {
      if (tries === TRIES || !isTransient(error)) throw error;
      const ms = backoffMs(tries, RETRY_MS, entropy.random());
      await sleep(clock, ms, { keepAlive: true, signal });
    }
  }
}

/** A storage that throws instead of rejecting has failed all the same. */
async function attempt<T>(
  send: (signal: AbortSignal) => Promise<T>,
  signal: AbortSignal,
): Promise<T> {
  return await send(signal);
}
