/**
 * Commands with the fields that a test does not care about filled in, for tests at the level of
 * `LeaseStorage.execute`.
 *
 * @module
 */
import { assertEquals } from "@std/assert";
import type { Fenced } from "../../src/core/lease.ts";
import type {
  AcquireCommand,
  AdoptCommand,
  EvictCommand,
  Granted,
  ReleaseCommand,
  RenewCommand,
} from "../../src/core/record.ts";
import type { LeaseStorage } from "../../src/core/storage.ts";
import { acquireCommand } from "../../src/testing/check.ts";

export { uniqueName } from "../../src/testing/check.ts";

/** Long enough that no pause of a slow machine ends a lease in the middle of a test. */
export const TTL_MS = 60_000;

export function acquire(token: string, more: Partial<AcquireCommand> = {}): AcquireCommand {
  return acquireCommand(token, { ttlMs: TTL_MS, ...more });
}

export function renew(token: string, fence: number, ttlMs = TTL_MS): RenewCommand {
  return { type: "renew", token, fence, ttlMs };
}

export function release(token: string, keepMs = 0): ReleaseCommand {
  return { type: "release", token, keepMs, spentMs: TTL_MS };
}

export function adopt(token: string, fence: number, newToken: string): AdoptCommand {
  return { type: "adopt", token, fence, newToken, ttlMs: TTL_MS };
}

export function evict(maxFence = Number.MAX_SAFE_INTEGER): EvictCommand {
  return { type: "evict", maxFence };
}

export const inspect = { type: "inspect" } as const;

/** A token that no other test uses. */
export function token(): string {
  return crypto.randomUUID();
}

/** Acquires under a new token, and fails unless that is granted. */
export async function grant(
  storage: LeaseStorage,
  name: string,
  more: Partial<AcquireCommand> = {},
): Promise<Fenced> {
  const mine = token();
  const outcome = await storage.execute(name, acquire(mine, more));
  assertEquals(outcome.type, "granted");
  return { name, token: mine, fencingToken: (outcome as Granted).fence };
}
