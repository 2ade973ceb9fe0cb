/**
 * The life of one held lease, as its holder sees it: until when it trusts its lease, when it renews, and
 * when the lease is lost. Pure; `holding.ts` drives it.
 *
 * A holder counts from a stamp taken *before* the request was sent, and trusts its lease for a little
 * less than was granted. So its deadline is never later than the storage's expiry, whatever became of
 * the reply, while the two clock rates are within 1 % of each other.
 *
 * @module
 */
import { elapsedForHolderMs, type Stamp } from "./clock.ts";
import type { LossReason } from "./errors.ts";
import { MIN_TTL_MS } from "./validate.ts";

/** A span of time that begins at a stamp. */
export interface Span {
  /** When it begins. */
  readonly since: Stamp;
  /** How long it lasts, in milliseconds. */
  readonly ms: number;
}

/** The lease is held, as far as its holder knows. */
export interface Held {
  /** Discriminates the life. */
  readonly status: "held";
  /** Before the acquire was sent. */
  readonly grantedAt: Stamp;
  /** For how long the holder trusts its lease. */
  readonly trust: Span;
  /** How many renewals failed in a row, and since when and how long the next one waits. */
  readonly failed: { readonly times: number; readonly pause: Span } | undefined;
}

/** The lease is over. */
export interface Ended {
  /** Discriminates the life. */
  readonly status: "released" | "detached" | "lost";
  /** Why; for a lost lease what happened to it. */
  readonly reason: LossReason;
}

/** Where a lease is in its life. */
export type Life = Held | Ended;

/** What the life depends on. */
export interface Terms {
  /** Length of the lease in milliseconds. */
  readonly ttlMs: number;
  /** From one success to the next renewal, in milliseconds. */
  readonly renewEveryMs: number;
  /** The longest time that it may be held, in milliseconds. */
  readonly maxHoldMs: number | undefined;
}

/** The ratio of the clock rates, and the resolution of the clocks, that a holder allows for. */
const RATE_MARGIN = 0.01;
const RESOLUTION_MS = 2;

/**
 * How long a holder trusts a lease of `ttlMs`, from before it asked.
 *
 * @param ttlMs what was asked for, in milliseconds
 * @returns milliseconds: 1 % and 2 ms less
 */
export function trustedMs(ttlMs: number): number {
  return ttlMs * (1 - RATE_MARGIN) - RESOLUTION_MS;
}

/**
 * A lease begins.
 *
 * @param sentAt taken before the request was sent
 * @param ttlMs what was asked for, in milliseconds
 */
export function granted(sentAt: Stamp, ttlMs: number): Held {
  return {
    status: "held",
    grantedAt: sentAt,
    trust: { since: sentAt, ms: trustedMs(ttlMs) },
    failed: undefined,
  };
}

/** A renewal succeeded: whichever promise reaches further is the one to trust. */
export function renewed(life: Held, sentAt: Stamp, ttlMs: number, now: Stamp): Held {
  const trust = { since: sentAt, ms: trustedMs(ttlMs) };
  const reachesFurther = leftOfMs(trust, now) > leftOfMs(life.trust, now);
  return { ...life, trust: reachesFurther ? trust : life.trust, failed: undefined };
}

/** A renewal failed: the next one waits for `pauseMs`. */
export function renewalFailed(life: Held, now: Stamp, pauseMs: number): Held {
  const times = (life.failed?.times ?? 0) + 1;
  return { ...life, failed: { times, pause: { since: now, ms: pauseMs } } };
}

/** For how long the lease may still be used, in milliseconds; 0 or less when it is lost. */
export function leftMs(life: Held, terms: Terms, now: Stamp): number {
  return Math.min(leftOfMs(life.trust, now), holdLeftMs(life, terms, now));
}

/** Which of its limits a lease has reached, if any. */
export function lossAt(life: Held, terms: Terms, now: Stamp): "expired" | "max-hold" | undefined {
  if (holdLeftMs(life, terms, now) <= 0) return "max-hold";
  return leftOfMs(life.trust, now) <= 0 ? "expired" : undefined;
}

/**
 * When to renew, in milliseconds from now; `Infinity` when no renewal could reach further. A lease that
 * was extended beyond its own ttl is renewed again when no more than that is left.
 */
export function renewInMs(life: Held, terms: Terms, now: Stamp): number {
  const leftTrustMs = leftOfMs(life.trust, now);
  if (holdLeftMs(life, terms, now) <= leftTrustMs) return Infinity;
  const dueMs = leftTrustMs - (trustedMs(terms.ttlMs) - terms.renewEveryMs);
  return life.failed ? Math.max(dueMs, leftOfMs(life.failed.pause, now)) : dueMs;
}

/** The ttl to ask for: cut so that the storage forgets the holding soon after its longest time. */
export function ttlToAskMs(
  ttlMs: number,
  life: Held | undefined,
  terms: Terms,
  now: Stamp,
): number {
  const holdMs = life ? holdLeftMs(life, terms, now) : terms.maxHoldMs ?? Infinity;
  const enoughMs = Math.ceil((Math.max(holdMs, 0) + RESOLUTION_MS) / (1 - RATE_MARGIN)) + 1;
  return Math.max(MIN_TTL_MS, Math.min(ttlMs, enoughMs));
}

function holdLeftMs(life: Held, terms: Terms, now: Stamp): number {
  return terms.maxHoldMs === undefined
    ? Infinity
    : leftOfMs({ since: life.grantedAt, ms: terms.maxHoldMs }, now);
}

function leftOfMs(span: Span, now: Stamp): number {
  return span.ms - elapsedForHolderMs(span.since, now);
}
