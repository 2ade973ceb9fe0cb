/**
 * Seeded randomness, the same on every JavaScript engine.
 *
 * @module
 */

/** A stream of random numbers (sfc32, Chris Doty-Humphrey's PractRand, 2010), named by its seed. */
export class Random {
  readonly #seed: string;
  #a: number;
  #b: number;
  #c: number;
  #d = 1;

  /** @param seed any text; the same text gives the same numbers */
  constructor(seed: string) {
    this.#seed = seed;
    this.#a = hash32(seed, 0x9e3779b9);
    this.#b = hash32(seed, 0x243f6a88);
    this.#c = hash32(seed, 0xb7e15162);
    for (let i = 0; i < 12; i++) this.next();
  }

  /** A stream of its own, which draws from this one do not disturb. */
  fork(label: string | number): Random {
    return new Random(`${this.#seed}/${label}`);
  }

  /** A number from 0 up to, not including, 1. */
  next(): number {
    const t = (this.#a + this.#b + this.#d) | 0;
    this.#d = (this.#d + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = ((this.#c << 21) | (this.#c >>> 11)) + t | 0;
    return (t >>> 0) / 4294967296;
  }

  /** True with a probability; 0 draws nothing. */
  chance(probability: number): boolean {
    return probability > 0 && this.next() < probability;
  }

  /** A number from `min` up to `max`. */
  between(min: number, max: number): number {
    return min + this.next() * (max - min);
  }

  /** A whole number from `min` to `max`, both included. */
  int(min: number, max: number): number {
    return min + Math.floor(this.next() * (max - min + 1));
  }

  /** One of a list. */
  pick<T>(list: readonly T[]): T {
    return list[Math.floor(this.next() * list.length)]!;
  }

  /** Eight hexadecimal digits. */
  hex(): string {
    return Math.floor(this.next() * 4294967296).toString(16).padStart(8, "0");
  }
}

/** FNV-1a (Fowler, Noll, Vo), from any start. */
export function hash32(text: string, start = 0x811c9dc5): number {
  let hash = start | 0;
  for (let i = 0; i < text.length; i++) {
    hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  }
  return hash;
}
