import { assertEquals } from "@std/assert";
import {
  areFencesIncreasing,
  countOverlaps,
  type DemoEvent,
  holdingsOf,
  problemsOf,
  type Summary,
  takeoverMs,
} from "../../scripts/demo_history.ts";

function granted(worker: number, at: number, fence: number, deadlineAt?: number): DemoEvent {
  return { type: "granted", worker, at, fence, waitedMs: 0, deadlineAt };
}

function releasing(worker: number, at: number, fence: number): DemoEvent {
  return { type: "releasing", worker, at, fence };
}

Deno.test("a holding lasts until its release or its deadline, whichever is first", () => {
  const holdings = holdingsOf([
    granted(1, 0, 1, 100),
    releasing(1, 50, 1),
    granted(2, 60, 2, 160),
    { type: "renewed", worker: 2, at: 100, fence: 2, deadlineAt: 200 },
    releasing(2, 250, 2),
  ]);
  assertEquals(holdings, [
    { worker: 1, fence: 1, fromMs: 0, toMs: 50 },
    { worker: 2, fence: 2, fromMs: 60, toMs: 200 },
  ]);
});

Deno.test("a killed holder holds until its deadline, one without a lock until its death", () => {
  const killed: DemoEvent = { type: "killed", worker: 1, at: 30 };
  assertEquals(holdingsOf([granted(1, 0, 1, 100), killed])[0]?.toMs, 100);
  assertEquals(holdingsOf([granted(1, 0, 0), killed])[0]?.toMs, 30);
});

Deno.test("holdings that overlap are counted, those that touch are not", () => {
  const span = (fromMs: number, toMs: number) => ({ worker: 1, fence: fromMs, fromMs, toMs });
  assertEquals(countOverlaps([span(0, 10), span(10, 20), span(25, 30)]), 0);
  assertEquals(countOverlaps([span(0, 10), span(9, 20)]), 1);
  assertEquals(countOverlaps([span(0, 100), span(10, 20), span(30, 40)]), 2);
});

Deno.test("fences increase if their order is that of the grants", () => {
  const at = (fromMs: number, fence: number) => ({ worker: 1, fence, fromMs, toMs: fromMs });
  assertEquals(areFencesIncreasing([at(0, 5), at(1, 6), at(1, 7)]), true);
  assertEquals(areFencesIncreasing([at(0, 5), at(1, 5)]), false);
  assertEquals(areFencesIncreasing([at(0, 6), at(1, 5)]), false);
  assertEquals(areFencesIncreasing([]), false);
});

Deno.test("the takeover is measured from the kill to the next grant", () => {
  const killed: DemoEvent = { type: "killed", worker: 1, at: 30 };
  assertEquals(takeoverMs([granted(1, 0, 1), killed, granted(3, 99, 3), granted(2, 70, 2)]), 40);
  assertEquals(takeoverMs([granted(1, 0, 1), killed]), null);
  assertEquals(takeoverMs([granted(1, 0, 1)]), null);
});

Deno.test("each number that does not hold is a problem", () => {
  const good: Summary = {
    sections: 9,
    overlaps: 0,
    lostFencedUpdates: 0,
    lostUnfencedUpdates: 3,
    takeoverMs: 100,
    staleWritesRefused: 1,
    fencesIncreasing: true,
  };
  const problems = (more: Partial<Summary>) =>
    problemsOf({ ...good, ...more }, { takeoverMs: 100 });
  assertEquals(problems({}), []);
  const cases: [Partial<Summary>, string][] = [
    [{ sections: 0 }, "there was no critical section"],
    [{ overlaps: 2 }, "2 valid holdings overlapped"],
    [{ lostFencedUpdates: 1 }, "1 fenced updates were lost"],
    [{ lostFencedUpdates: -1 }, "-1 fenced updates were lost"],
    [{ takeoverMs: null }, "nobody took over from the killed holder"],
    [{ takeoverMs: 101 }, "the takeover took 101 ms, more than 100 ms"],
    [{ staleWritesRefused: 0 }, "no stale write was refused"],
    [{ fencesIncreasing: false }, "fences did not rise in the order of grants"],
  ];
  for (const [more, problem] of cases) assertEquals(problems(more), [problem]);
});
