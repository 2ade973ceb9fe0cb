import { assert, assertEquals } from "@std/assert";
import { MAX_ENTRIES } from "../../src/core/record.ts";
import type { Lease } from "../../mod.ts";
import { isPending, World } from "../support/world.ts";

/** A world in which as many hold as a record takes, and permits are left. */
async function fullWorld(): Promise<{ world: World; leases: Lease[] }> {
  const world = new World();
  const leases: Lease[] = [];
  const other = world.other({ capacity: 2 * MAX_ENTRIES });
  for (let i = 0; i < MAX_ENTRIES; i++) leases.push(await other.acquire());
  return { world, leases };
}

Deno.test("tryAcquire() is null while a record is full, and leaves nothing", async () => {
  const { world } = await fullWorld();
  assertEquals(await world.lock({ capacity: 2 * MAX_ENTRIES }).tryAcquire(), null);
  await world.clock.advance(0);
  assertEquals(world.sent(), "acquire");
  const [event] = world.events;
  assert(event?.type === "contended" && event.retryAfterMs > 0 && event.ahead === 0);
});

Deno.test("acquire() waits while a record is full, and is granted when it is not any more", async () => {
  const { world, leases } = await fullWorld();
  const waiting = world.lock({ capacity: 2 * MAX_ENTRIES }).acquire();
  assertEquals(await isPending(waiting, world.clock), true);
  await leases[0]!.release();
  // It could leave no ticket, so nobody wakes it.
  await world.clock.advance(10_000);
  assertEquals((await waiting).status, "held");
});
