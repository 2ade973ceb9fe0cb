/**
 * Where holder tokens and jitter come from, so that a simulation can be replayed from its seed.
 *
 * @module
 */

/** A source of randomness. */
export interface Entropy {
  /** A secret, never repeated identity of 2 to 36 letters, digits and hyphens. */
  uuid(): string;
  /** A number from 0 up to, not including, 1. */
  random(): number;
}

/** The runtime's own: `crypto.randomUUID()` for tokens, `Math.random()` for jitter. */
export const systemEntropy: Entropy = {
  uuid: () => crypto.randomUUID(),
  random: () => Math.random(),
};
