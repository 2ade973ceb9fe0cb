import { assertEquals } from "@std/assert";
import { ManualClock } from "../../src/testing/mod.ts";

// covers: S4.7
Deno.test("time stands still until it is told to move", async () => {
  const clock = new ManualClock(500);
  await new Promise((resolve) => setTimeout(resolve, 5));
  assertEquals(clock.read(), { monotonicMs: 0, wallMs: 500 });
});

const moves: readonly [
  what: string,
  move: (clock: ManualClock) => unknown,
  monotonicMs: number,
  wallMs: number,
  fired: number,
][] = [
  ["advance() moves both clocks and runs what falls due", (c) => c.advance(100), 100, 600, 1],
  ["freeze() moves both clocks and runs nothing", (c) => c.freeze(100), 100, 600, 0],
  ["suspend() moves only the wall clock", (c) => c.suspend(100), 0, 600, 0],
  ["stepWall() sets only the wall clock, forward", (c) => c.stepWall(100), 0, 600, 0],
  ["stepWall() sets only the wall clock, back", (c) => c.stepWall(-100), 0, 400, 0],
];
for (const [what, move, monotonicMs, wallMs, expected] of moves) {
  Deno.test(what, async () => {
    const clock = new ManualClock(500);
    let fired = 0;
    clock.setTimer(50, () => fired++);
    await move(clock);
    assertEquals([clock.read(), fired], [{ monotonicMs, wallMs }, expected]);
  });
}

Deno.test("what is overdue after a freeze runs on the next advance, even by 0, in its order", async () => {
  const clock = new ManualClock();
  const log: string[] = [];
  clock.setTimer(50, () => log.push("second"));
  clock.setTimer(20, () => log.push("first"));
  clock.freeze(100);
  await clock.advance(0);
  assertEquals([log, clock.read().monotonicMs], [["first", "second"], 100]);
});

Deno.test("each timer runs at its own instant, and what it sets runs too", async () => {
  const clock = new ManualClock();
  const atMs: number[] = [];
  const again = (): void => {
    atMs.push(clock.read().monotonicMs);
    if (atMs.length < 4) clock.setTimer(30, again);
  };
  clock.setTimer(30, again);
  await clock.advance(100);
  assertEquals([atMs, clock.pendingTimers], [[30, 60, 90], 1]);
});

Deno.test("timers of the same instant run in the order in which they were set", async () => {
  const clock = new ManualClock();
  const log: number[] = [];
  for (const i of [1, 2, 3]) clock.setTimer(10, () => log.push(i));
  await clock.advance(10);
  assertEquals(log, [1, 2, 3]);
});

Deno.test("advance() waits for all that a timer sets off", async () => {
  const clock = new ManualClock();
  let steps = 0;
  clock.setTimer(10, async () => {
    for (let i = 0; i < 50; i++) {
      await Promise.resolve();
      steps++;
    }
  });
  await clock.advance(10);
  assertEquals(steps, 50);
});

Deno.test("a timer that was disposed does not run", async () => {
  const clock = new ManualClock();
  let fired = 0;
  const timer = clock.setTimer(10, () => fired++);
  timer[Symbol.dispose]();
  await clock.advance(100);
  assertEquals([fired, clock.pendingTimers], [0, 0]);
});
