/**
 * How long to wait before asking again.
 *
 * @module
 */
import type { PollMs } from "./storage.ts";

/**
 * Exponential backoff with equal jitter (Brooker, "Exponential Backoff And Jitter", 2015): half of the
 * step is fixed, half random, so that contenders fall out of step and none asks in a burst.
 *
 * @param attempt how often was asked already, from 0
 * @param pollMs the first and the longest sleep
 * @param random a number from 0 up to 1
 * @returns milliseconds, from half of `min` to `max`
 */
export function backoffMs(attempt: number, pollMs: PollMs, random: number): number {
  const stepMs = Math.min(pollMs.min * 2 ** Math.min(attempt, 30), pollMs.max);
  return stepMs / 2 + random * stepMs / 2;
}
