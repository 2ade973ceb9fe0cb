/**
 * A product with compare-and-swap, as the benchmarks see it.
 *
 * @module
 */
import type { LeaseStorage, PollMs } from "../../mod.ts";

/** A number with what it takes to replace exactly this one. */
export interface Seen {
  readonly value: number;
  readonly version: unknown;
}

/** The product's own way to change one number. */
export interface Bare {
  /** Reads; 0 where there is nothing. */
  read(key: string): Promise<Seen>;
  /** Writes if the version is unchanged; the new version, or `undefined`. */
  swap(key: string, value: number, version: unknown): Promise<Seen | undefined>;
  /** Writes whatever there is. */
  put(key: string, value: number): Promise<unknown>;
}

/** A product, connected. */
export interface Opened {
  readonly storage: LeaseStorage;
  readonly bare: Bare;
  /** What the storage has sent so far. */
  requests(): number;
  /** Other ways of the product to do a cycle. */
  readonly others?: Readonly<Record<string, () => Promise<unknown>>>;
  close(): unknown;
}

/** A product that is running. */
export interface Running extends AsyncDisposable {
  /** What `open` in this and in other processes takes. */
  readonly place: string;
}

/** A product. */
export interface Product {
  readonly name: string;
  /** What is counted. */
  readonly unit: string;
  start(): Promise<Running>;
  open(place: string, pollMs?: PollMs): Promise<Opened>;
}

/** Where absence has no version of its own. */
export const ABSENT = { value: 0, version: undefined };
