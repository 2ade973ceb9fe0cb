import { assert, assertEquals, assertRejects, assertStrictEquals } from "@std/assert";
import { FenceGate, type FenceStore, StaleFenceError } from "../../mod.ts";
import { rejection, World } from "../support/world.ts";

const fence = (fencingToken: number): { fencingToken: number } => ({ fencingToken });

const sequences: readonly [what: string, fences: number[], passes: boolean[]][] = [
  ["the first fence", [5], [true]],
  ["an equal fence", [5, 5, 5], [true, true, true]],
  ["a larger fence", [5, 6], [true, true]],
  ["a smaller fence", [5, 4], [true, false]],
  ["a fence between a refused one and the highest", [9, 4, 5], [true, false, false]],
  ["a smaller fence, and the larger one again", [5, 4, 5, 4], [true, false, true, false]],
];
for (const [what, fences, passes] of sequences) {
  // covers: G3 S3.4 S5.10
  Deno.test(`${what} ${passes.at(-1) ? "passes" : "does not pass"}`, async () => {
    const gate = new FenceGate();
    const passed: boolean[] = [];
    for (const f of fences) {
      passed.push(await gate.check("row", fence(f)).then(() => true, () => false));
    }
    assertEquals(passed, passes);
  });
}

// covers: G3 S3.4
Deno.test("a stale fence is refused with both fences", async () => {
  const gate = new FenceGate();
  await gate.check("row", fence(9));
  const error = await rejection<StaleFenceError>(gate.check("row", fence(8)));
  assertEquals([error instanceof StaleFenceError, error.fence, error.message], [
    true,
    8,
    'Cannot use resource "row" with fence 8 as a later holder was here: current value is 9',
  ]);
});

Deno.test("each resource has a mark of its own", async () => {
  const gate = new FenceGate();
  await gate.check("a", fence(9));
  await gate.check("b", fence(1));
  await gate.check("__proto__", fence(1));
  await assertRejects(() => gate.check("a", fence(1)), StaleFenceError);
});

const wrong: readonly [fence: unknown, error: typeof Error, message: string][] = [
  [
    0,
    RangeError,
    "Cannot use fencingToken as it must be an integer from 1 to 9007199254740991: current value is 0",
  ],
  [
    NaN,
    RangeError,
    "Cannot use fencingToken as it must be an integer from 1 to 9007199254740991: current value is NaN",
  ],
  [
    1.5,
    RangeError,
    "Cannot use fencingToken as it must be an integer from 1 to 9007199254740991: current value is 1.5",
  ],
  [
    undefined,
    TypeError,
    "Cannot use fencingToken as it must be a number: current value is of type undefined",
  ],
];
for (const [value, error, message] of wrong) {
  Deno.test(`a fence of ${value} never passes`, async () => {
    const gate = new FenceGate();
    await assertRejects(() => gate.check("row", fence(value as number)), error, message);
    await gate.check("row", fence(1));
  });
}

// covers: G3
Deno.test("marks in a store that is shared guard several processes", async () => {
  const marks = new Map<string, number>();
  const store: FenceStore = {
    async raise(resource, f) {
      await Promise.resolve();
      const highest = Math.max(f, marks.get(resource) ?? 0);
      marks.set(resource, highest);
      return highest;
    },
  };
  const [one, two] = [new FenceGate({ store }), new FenceGate({ store })];
  await one.check("row", fence(9));
  await assertRejects(() => two.check("row", fence(8)), StaleFenceError);
});

Deno.test("a store that fails lets nobody through", async () => {
  const lost = new Error("lost");
  const gate = new FenceGate({ store: { raise: () => Promise.reject(lost) } });
  assertStrictEquals(await rejection(gate.check("row", fence(1))), lost);
});

/** Two holders of one lock and a balance that both change; the first was frozen between read and write. */
async function frozenHolder(showsFirst: boolean): Promise<{ balance: number; isRefused: boolean }> {
  const world = new World();
  const gate = new FenceGate();
  let balance = 100;
  const old = await world.lock({ ttlMs: 1000 }).acquire();
  await gate.check("balance", old);
  const oldRead = balance;
  world.clock.freeze(2000);

  const next = await world.other({ ttlMs: 1000 }).acquire();
  if (showsFirst) await gate.check("balance", next);
  const nextRead = balance;
  let isRefused = false;
  try {
    await gate.check("balance", old);
    balance = oldRead + 1;
  } catch (error) {
    isRefused = error instanceof StaleFenceError;
  }
  await gate.check("balance", next);
  balance = nextRead + 10;
  return { balance, isRefused };
}

// covers: G3 S3.4 S5.11
Deno.test("a holder that was frozen cannot write after the next holder has shown its fence", async () => {
  assertEquals(await frozenHolder(true), { balance: 110, isRefused: true });
});

Deno.test("a holder that shows its fence only when it writes can lose an update, as documented", async () => {
  const { balance, isRefused } = await frozenHolder(false);
  assertEquals([balance, isRefused], [110, false]);
  assert(balance !== 111);
});
