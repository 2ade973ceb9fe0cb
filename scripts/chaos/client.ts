/**
 * What a worker needs of a product: a storage for locks, and a resource that writes only under a lease.
 *
 * @module
 */
import type { Fenced, LeaseStorage } from "../../mod.ts";

/** A connection to a product. */
export interface ChaosClient {
  /** Where the lock lives. */
  readonly storage: LeaseStorage;
  /** Shows the lease to a resource that itself compares fences; before the first read. */
  enter?(lease: Fenced): Promise<void>;
  /** Reads the guarded resource: the id of whoever wrote it last, `null` before the first. */
  read(): Promise<string | null>;
  /**
   * Replaces the guarded resource.
   *
   * @param id what to write
   * @param lease under which lease; without one nothing is compared, which is sabotage
   * @throws {StaleFenceError} if the lease is over; nothing was written
   * @throws anything else if nobody knows
   */
  write(id: string, lease: Fenced | undefined): Promise<void>;
  /** Ends the connections. */
  close(): Promise<void>;
}

/** Opens a connection to a product: the place, and the number of the worker, to tell them apart. */
export type Connect = (at: string, worker: number) => Promise<ChaosClient>;

/** The key of the guarded resource, in every product. */
export const GUARDED = "guarded";

/** The longest that a worker waits for a product, in milliseconds. */
const PATIENCE_MS = 4000;

/** Waits for an answer, but not for ever. */
export async function patiently<T>(what: string, work: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`No answer to ${what}`)), PATIENCE_MS);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
