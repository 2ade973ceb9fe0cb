import { assert, assertEquals } from "@std/assert";
import { ToldTime } from "../../src/core/told_time.ts";
import { ManualClock } from "../../src/testing/mod.ts";

const NOW_US = 1_800_000_000_000_000;

function told(name = "job"): { clock: ManualClock; time: ToldTime } {
  const clock = new ManualClock();
  const time = new ToldTime(clock);
  time.tell(name, NOW_US, clock.read());
  return { clock, time };
}

/** What happens to our clocks, and how much of it the server's clock has surely gone, in microseconds. */
const passages: readonly [what: string, pass: (clock: ManualClock) => void, us: number][] = [
  ["nothing", () => {}, 0],
  ["a second, on a clock that may run 1 % fast", (clock) => clock.freeze(1000), 990_099],
  ["a step of the wall clock", (clock) => clock.stepWall(1000), 0],
  ["a step back of the wall clock", (clock) => clock.stepWall(-1000), 0],
  ["a suspension", (clock) => clock.suspend(1000), 0],
  ["a second and a step back of the wall clock", (clock) => {
    clock.freeze(1000);
    clock.stepWall(-3_600_000);
  }, 990_099],
];
for (const [what, pass, us] of passages) {
  // covers: G1 G5
  Deno.test(`after ${what} the server's clock is at least ${us} us on`, () => {
    const { clock, time } = told();
    pass(clock);
    assertEquals(time.atLeastUs("job"), NOW_US + us);
  });
}

const tooLong: readonly [what: string, pass: (clock: ManualClock) => void][] = [
  ["5 s", (clock) => clock.freeze(5001)],
  ["a suspension of 5 s", (clock) => clock.suspend(5001)],
];
for (const [what, pass] of tooLong) {
  Deno.test(`after ${what} the server has to be asked`, () => {
    const { clock, time } = told();
    clock.freeze(0);
    pass(clock);
    assertEquals(time.atLeastUs("job"), undefined);
  });
}

Deno.test("what the server said is as old as the question", () => {
  const clock = new ManualClock();
  const time = new ToldTime(clock);
  const askedAt = clock.read();
  clock.freeze(4000);
  time.tell("job", NOW_US, askedAt);
  clock.freeze(1000);
  assertEquals(time.atLeastUs("job"), NOW_US + 990_099);
  clock.freeze(1);
  assertEquals(time.atLeastUs("job"), undefined);
});

Deno.test("the time is asked for each lock by itself, and again after it was forgotten", () => {
  const { time } = told();
  assertEquals(time.atLeastUs("other"), undefined);
  time.forget("job");
  assertEquals(time.atLeastUs("job"), undefined);
});

Deno.test("the times of the last 1,000 locks are remembered", () => {
  const { clock, time } = told("first");
  const since = clock.read();
  for (let i = 0; i < 999; i++) time.tell(`lock ${i}`, NOW_US, since);
  assert(time.atLeastUs("first") !== undefined);
  time.tell("one more", NOW_US, since);
  assertEquals(time.atLeastUs("first"), undefined);
});
