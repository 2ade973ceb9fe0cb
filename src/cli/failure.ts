/**
 * How a command ends: exit statuses, after sysexits(3) and the shell, and failures in one sentence.
 *
 * @module
 */
import { HoldfastError, StorageError } from "../core/errors.ts";

/** Exit statuses of our own; `run` otherwise ends with the status of its command. */
export const EXIT = {
  /** All went well. */
  ok: 0,
  /** Wrong arguments. */
  usage: 64,
  /** The lease was lost, and the command ended because of it. */
  lost: 70,
  /** The storage failed, or could not be opened. */
  storage: 74,
  /** Somebody else holds the lock. */
  held: 75,
  /** The command was found and could not be run. */
  notExecutable: 126,
  /** The command was not found. */
  notFound: 127,
} as const;

/** A failure that has its sentence and its exit status. */
export class Failure extends Error {
  override readonly name = "Failure";
  /** What the process ends with. */
  readonly status: number;

  /**
   * @param status what the process ends with
   * @param message one sentence
   */
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** Wrong arguments. */
export function usage(message: string): Failure {
  return new Failure(EXIT.usage, message);
}

/** A signal asked us to end before there was a command to pass it on to. */
export class Interrupted extends Failure {
  /** @param signal its name; @param number its number */
  constructor(signal: string, number: number) {
    super(128 + number, `Ended by ${signal}`);
  }
}

/** The options that the core checks, as the command line spells them. */
const SPELLING: Readonly<Record<string, string>> = {
  ttlMs: "--ttl-ms",
  minHoldMs: "--min-hold-ms",
  timeoutMs: "--wait-ms",
  permits: "--permits",
  capacity: "--capacity",
  label: "--label",
  name: "NAME",
};

/**
 * Finds the sentence and the exit status of whatever was thrown.
 *
 * @param error what was thrown
 * @returns the failure
 */
export function failureOf(error: unknown): Failure {
  if (error instanceof Failure) return error;
  if (error instanceof StorageError) return new Failure(EXIT.storage, withCauses(error));
  const isArgument = error instanceof TypeError || error instanceof RangeError ||
    error instanceof HoldfastError;
  if (isArgument && error.message.startsWith("Cannot ")) {
    const spelled = error.message.replace(
      /^(Cannot use )(\w+)(?= as )/,
      (all, start, word) => SPELLING[word] ? start + SPELLING[word] : all,
    );
    return usage(spelled);
  }
  return new Failure(EXIT.storage, error instanceof Error ? withCauses(error) : String(error));
}

/** A message, and those of the errors behind it that say something new. */
function withCauses(error: Error): string {
  const parts: string[] = [];
  for (let e: unknown = error, depth = 0; e instanceof Error && depth < 4; e = e.cause, depth++) {
    const message = oneLine(e.message) || ((e as { code?: string }).code ?? e.name);
    if (!parts.some((part) => part.includes(message))) parts.push(message);
  }
  return parts.join(": ");
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, " ").trim();
}
