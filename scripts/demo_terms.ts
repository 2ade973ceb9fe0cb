/**
 * What the demo and its workers agree on.
 *
 * @module
 */

/** Length of a lease, in milliseconds. */
export const TTL_MS = 1500;

/** The longest that a waiter sleeps between two looks, in milliseconds. */
export const POLL_MS = 50;

/** The part of the ttl after which a lease is renewed: half, so that there is time to strike in between. */
export const RENEW_EVERY = 0.5;

/** For how long a worker lingers in its critical section, in milliseconds. */
export const LINGER_MS = 1400;

/** What a worker can be told: to stay in its next critical section for a while, not to, to end. */
export type Instruction = "linger" | "work" | "stop";
