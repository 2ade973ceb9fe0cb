/**
 * The contract suite's view of a Deno KV, in every runtime that has one: all values are bytes, which is what
 * Deno, Node and Bun have in common.
 *
 * @module
 */
import type { LeaseStorage } from "../../mod.ts";
import { fencedCommit, type KvClient } from "../../src/storage/deno_kv.ts";
import type { ContractSubject } from "../../src/testing/mod.ts";

/** A `Deno.Kv`, or a `Kv` of `@deno/kv`. */
export interface Kv extends KvClient {
  /** Writes. */
  set(key: string[], value: unknown): Promise<unknown>;
  /** Deletes. */
  delete(key: string[]): Promise<void>;
  /** Closes it. */
  close(): void;
}

/** A subject over clients whose data `kv` sees. */
export function denoKvSubject(
  kv: Kv,
  clients: readonly [LeaseStorage, LeaseStorage],
  close: () => Promise<void>,
): ContractSubject {
  const record = (name: string) => ["holdfast", "lock", name];
  const bytes = (text: string) => new TextEncoder().encode(text);
  const read = async (key: string[]): Promise<string | undefined> => {
    const { value } = await kv.get(key);
    return value ? new TextDecoder().decode(value as Uint8Array) : undefined;
  };
  return {
    clients,
    async fencedWrite(lease, resource, value) {
      const key = ["resource", resource];
      const { ok } = await fencedCommit(kv, lease, (op) => op.set(key, bytes(value)));
      if (!ok) throw new Error("A commit without checks of its own failed");
    },
    readResource: (resource) => read(["resource", resource]),
    writeRaw: async (name, text) => void await kv.set(record(name), bytes(text)),
    readRaw: (name) => read(record(name)),
    forget: (name) => kv.delete(record(name)),
    close,
  };
}
