import { assertEquals } from "@std/assert";
import { rejection, World } from "../support/world.ts";

Deno.test("resume() takes over without a gate", async () => {
  const world = new World();
  const baton = (await world.other().acquire()).detach();
  const lock = world.lock({ gate: false });
  assertEquals((await lock.resume(baton))?.status, "held");
  assertEquals(world.sent(), "adopt");
});

// covers: G9
Deno.test("a resume that failed gives what it does behind itself to waitUntil", async () => {
  const world = new World();
  const works: Promise<unknown>[] = [];
  const baton = (await world.other().acquire()).detach();
  world.storage.inject({ type: "lose-reply" }, { times: 3 });
  const lock = world.lock({ waitUntil: (work) => void works.push(work) });
  const failed = rejection(lock.resume(baton));
  await world.clock.advance(200);
  assertEquals([(await failed).name, works.length], ["StorageError", 1]);
  await works[0];
  assertEquals(await world.holders(), []);
});

Deno.test("with() lets out what work throws under a lost lease, were it nothing", async () => {
  for (const nothing of [null, undefined]) {
    const world = new World();
    const failed = world.lock().with(() => {
      world.clock.freeze(30_000);
      throw nothing;
    });
    assertEquals(await rejection<unknown>(failed), nothing);
  }
});
