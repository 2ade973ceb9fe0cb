/**
 * A holder's renewal and a takeover, sent at the instant of expiry.
 *
 * @module
 */
import { assert, assertEquals } from "@std/assert";
import type { Granted } from "../../src/core/record.ts";
import type { LeaseStorage } from "../../src/core/storage.ts";
import { acquire, renew, token, uniqueName } from "./commands.ts";

/** Options of {@linkcode raceAtExpiry}. */
export interface RaceOptions {
  /** How often. */
  readonly tries: number;
  /** How many at a time. */
  readonly together: number;
  /** How long the lease is that ends in the race, in milliseconds. */
  readonly ttlMs: number;
  /** Cleans up after each batch. */
  readonly after?: (() => Promise<unknown>) | undefined;
}

/**
 * Lets two storages race for many locks, and fails if both ever hold. The renewal is sent ahead of the
 * takeover by a time that is swept, and that moves to where both win about as often, however slow the
 * machine is: a race in which one side always wins shows nothing, and fails, too.
 */
export async function raceAtExpiry(
  holder: LeaseStorage,
  taker: LeaseStorage,
  { tries, together, ttlMs, after }: RaceOptions,
): Promise<void> {
  const ended = { renewed: 0, granted: 0 };
  let leadMs = 5;
  for (let i = 0; i < tries; i += together) {
    await Promise.all(Array.from({ length: together }, async (_, j) => {
      const name = uniqueName("race");
      const mine = token();
      const outcome = await holder.execute(name, acquire(mine, { ttlMs }));
      assertEquals(outcome.type, "granted");
      const { fence } = outcome as Granted;
      // All clocks are this machine's, and a first grant's fence is its instant.
      const expiresAtMs = fence / 1000 + ttlMs;
      const sweptMs = (i + j) % 7 - 3;
      const [renewal, takeover] = await Promise.all([
        at(expiresAtMs - leadMs + sweptMs, () => holder.execute(name, renew(mine, fence))),
        at(expiresAtMs - (i + j) % 3, () => taker.execute(name, acquire(token()))),
      ]);
      const isRenewed = renewal.type === "renewed";
      if (isRenewed) ended.renewed++;
      if (takeover.type === "granted") ended.granted++;
      assert(!(isRenewed && takeover.type === "granted"), `try ${i + j}: both hold`);
      leadMs = Math.min(Math.max(leadMs + (isRenewed ? -1 : 1), 0), ttlMs - 5);
    }));
    await after?.();
  }
  const least = tries / 20;
  assert(ended.renewed > least && ended.granted > least, `no race: ${JSON.stringify(ended)}`);
}

/** Runs a function at an instant of the wall clock. */
async function at<T>(wallMs: number, run: () => Promise<T>): Promise<T> {
  await new Promise((resolve) => setTimeout(resolve, Math.max(0, wallMs - Date.now())));
  return await run();
}
