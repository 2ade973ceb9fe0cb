/**
 * Arguments are checked here, once, before any storage sees them. Messages say what, the limit and the
 * value.
 *
 * @module
 */
import type { PollMs } from "./storage.ts";

/** The shortest lease, in milliseconds. */
export const MIN_TTL_MS = 10;

/** The longest lease: 30 days, in milliseconds. */
export const MAX_TTL_MS = 30 * 24 * 3_600_000;

/** The most permits that a lock has. */
export const MAX_CAPACITY = 1_000_000;

const CONTROL = /\p{Cc}/u;
const LONE_SURROGATE = /\p{Surrogate}/u;

/**
 * Checks a whole number.
 *
 * @param what the argument's name
 * @param value its value
 * @param min the least allowed
 * @param max the most allowed
 * @param unit the unit for the message, with a space before it
 * @returns the value
 * @throws {TypeError} if it is not a number
 * @throws {RangeError} if it is out of range or not whole
 */
export function checkInteger(
  what: string,
  value: number,
  min: number,
  max: number,
  unit = "",
): number {
  if (typeof value !== "number") {
    throw new TypeError(
      `Cannot use ${what} as it must be a number: current value is of type ${typeof value}`,
    );
  }
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new RangeError(
      `Cannot use ${what} as it must be an integer from ${min} to ${max}${unit}: ` +
        `current value is ${value}`,
    );
  }
  return value;
}

/**
 * Checks a span of time.
 *
 * @param what the argument's name
 * @param value milliseconds
 * @param min the least allowed
 * @returns the value
 * @throws {RangeError} if it is not an integer from `min` ms to 30 days
 */
export function checkMs(what: string, value: number, min = 0): number {
  return checkInteger(what, value, min, MAX_TTL_MS, " ms");
}

/**
 * Checks a polling interval.
 *
 * @param pollMs the interval
 * @returns the interval
 * @throws {RangeError} if a bound is below 1 ms or the bounds are in the wrong order
 */
export function checkPollMs(pollMs: PollMs): PollMs {
  checkMs("pollMs.min", pollMs.min, 1);
  checkMs("pollMs.max", pollMs.max, pollMs.min);
  return pollMs;
}

/**
 * Checks a text and brings it into Unicode normalization form C.
 *
 * @param what the argument's name
 * @param value the text
 * @param minBytes the least UTF-8 bytes
 * @param maxBytes the most UTF-8 bytes
 * @returns the normalized text
 * @throws {TypeError} if it is not a string
 * @throws {RangeError} if it is too short or too long, not well-formed, or has control characters
 */
export function checkText(
  what: string,
  value: string,
  minBytes: number,
  maxBytes: number,
): string {
  if (typeof value !== "string") {
    throw new TypeError(
      `Cannot use ${what} as it must be a string: current value is of type ${typeof value}`,
    );
  }
  const text = value.normalize("NFC");
  const bytes = new TextEncoder().encode(text).length;
  if (bytes < minBytes || bytes > maxBytes) {
    throw new RangeError(
      `Cannot use ${what} as it must have ${minBytes} to ${maxBytes} UTF-8 bytes: ` +
        `current value has ${bytes}`,
    );
  }
  if (CONTROL.test(text) || LONE_SURROGATE.test(text)) {
    throw new RangeError(
      `Cannot use ${what} as it must be well-formed without control characters: ` +
        `current value is ${JSON.stringify(text)}`,
    );
  }
  return text;
}
