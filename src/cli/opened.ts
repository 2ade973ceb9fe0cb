/**
 * What the storages of the command line have in common.
 *
 * @module
 */
import process from "node:process";
import type { LeaseStorage } from "../core/storage.ts";
import { usage } from "./failure.ts";

/** A storage with its client. */
export interface Opened {
  /** Where the locks are. */
  readonly storage: LeaseStorage;
  /** The locks that it has a record of; absent where finding them reads a whole table that may be large. */
  readonly list?: (() => Promise<string[]>) | undefined;
  /** Closes the client. */
  readonly close: () => unknown;
}

/** Opens what a URL names. */
export type Open = (url: string) => Promise<Opened>;

/** How long a client may take to connect, in milliseconds. */
export const CONNECT_MS = 5000;

/** Where storages keep their locks unless told otherwise. */
export const PREFIX = "holdfast";

/**
 * Reads a credential.
 *
 * @param name the environment variable that holds it
 * @returns the credential
 * @throws {Failure} with status 64 if it is not set
 */
export function variable(name: string): string {
  const value = process.env[name];
  if (value) return value;
  throw usage(`Cannot open this storage as ${name} is not set: its token comes from there`);
}

/**
 * Takes the names out of rows.
 *
 * @param rows what a query for `name` returned
 * @returns the names
 */
export function namesOf(rows: readonly unknown[]): string[] {
  return rows.map((row) => (row as { name: string }).name);
}
