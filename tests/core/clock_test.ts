import { assert, assertEquals, assertRejects } from "@std/assert";
import fc from "fast-check";
import {
  elapsedForHolderMs,
  elapsedForObserverMs,
  sleep,
  type Stamp,
  systemClock,
} from "../../src/core/clock.ts";
import { ManualClock } from "../../src/testing/mod.ts";

const since: Stamp = { monotonicMs: 1000, wallMs: 5000 };

const elapsed: readonly [
  what: string,
  monotonicMs: number,
  wallMs: number,
  holderMs: number,
  observerMs: number,
][] = [
  ["time passed", 10, 10, 10, 10],
  ["the machine was suspended", 0, 10, 10, 0],
  ["the wall clock stepped forward", 10, 1000, 1000, 10],
  ["the wall clock stepped back", 10, -1000, 10, 0],
  ["the wall clock ran slow", 10, 9, 10, 9],
  ["both went back", -10, -20, 0, 0],
];
for (const [what, monotonicMs, wallMs, holderMs, observerMs] of elapsed) {
  const now = { monotonicMs: since.monotonicMs + monotonicMs, wallMs: since.wallMs + wallMs };
  // covers: G5 G6
  Deno.test(`when ${what}, ${holderMs} ms went by for a holder`, () => {
    assertEquals(elapsedForHolderMs(since, now), holderMs);
  });
  // covers: G1
  Deno.test(`when ${what}, ${observerMs} ms went by for an observer`, () => {
    assertEquals(elapsedForObserverMs(since, now), observerMs);
  });
}

// covers: G1 G5
Deno.test("an observer never sees more time go by than a holder", () => {
  const stamp = fc.record({ monotonicMs: fc.integer(), wallMs: fc.integer() });
  fc.assert(fc.property(stamp, stamp, (a, b) => {
    assert(elapsedForObserverMs(a, b) <= elapsedForHolderMs(a, b));
    assert(elapsedForObserverMs(a, b) >= 0);
  }));
});

/** Runs with timers that are only noted, and gives back what was set and how to fire it. */
function withFakeTimers(
  run: (timers: { ms: number; fire: () => void; isCleared: boolean; isUnref: boolean }[]) => void,
): void {
  const { setTimeout: setReal, clearTimeout: clearReal } = globalThis;
  const timers: Parameters<typeof run>[0] = [];
  globalThis.setTimeout = ((callback: () => void, ms: number) => {
    const timer = { ms, fire: callback, isCleared: false, isUnref: false };
    timers.push(timer);
    return Object.assign(timer, { unref: () => timer.isUnref = true });
  }) as unknown as typeof setTimeout;
  globalThis.clearTimeout = ((timer: { isCleared: boolean }) => {
    timer.isCleared = true;
  }) as unknown as typeof clearTimeout;
  try {
    run(timers);
  } finally {
    globalThis.setTimeout = setReal;
    globalThis.clearTimeout = clearReal;
  }
}

const MAX_MS = 2 ** 31 - 1;

const splits: readonly [ms: number, parts: number[]][] = [
  [0, [0]],
  [-5, [0]],
  [0.2, [1]],
  [1000, [1000]],
  [MAX_MS, [MAX_MS]],
  [MAX_MS + 1, [MAX_MS, 1]],
  [30 * 24 * 3_600_000, [MAX_MS, 2_592_000_000 - MAX_MS]],
  [3 * MAX_MS + 0.5, [MAX_MS, MAX_MS, MAX_MS, 1]],
];
for (const [ms, parts] of splits) {
  Deno.test(`a timer of ${ms} ms is set as ${parts.join(" + ")} ms and fires once`, () => {
    withFakeTimers((timers) => {
      let fired = 0;
      systemClock.setTimer(ms, () => fired++, { keepAlive: true });
      for (let i = 0; i < timers.length; i++) {
        assertEquals(fired, 0);
        timers[i]!.fire();
      }
      assertEquals([timers.map((t) => t.ms), fired], [parts, 1]);
    });
  });
}

// covers: G7
Deno.test("disposing a timer cancels the part that is running", () => {
  withFakeTimers((timers) => {
    const timer = systemClock.setTimer(3 * MAX_MS, () => {}, { keepAlive: true });
    timers[0]!.fire();
    timer[Symbol.dispose]();
    assertEquals(timers.map((t) => t.isCleared), [false, true]);
  });
});

Deno.test("disposing a timer where timers may not be touched does nothing", () => {
  withFakeTimers(() => {
    const timer = systemClock.setTimer(1000, () => {}, { keepAlive: false });
    let calls = 0;
    globalThis.clearTimeout = () => {
      calls++;
      throw new Error("Disallowed operation called within global scope");
    };
    timer[Symbol.dispose]();
    assertEquals(calls, 1);
  });
});

Deno.test("every part of a timer that keeps nothing alive is unreferenced", () => {
  withFakeTimers((timers) => {
    systemClock.setTimer(MAX_MS + 1, () => {}, { keepAlive: false });
    timers[0]!.fire();
    assertEquals(timers.map((t) => t.isUnref), [true, true]);
  });
});

Deno.test("a timer that keeps the process alive stays referenced", () => {
  withFakeTimers((timers) => {
    systemClock.setTimer(5, () => {}, { keepAlive: true });
    assertEquals(timers.map((t) => t.isUnref), [false]);
  });
});

Deno.test("the system clock reads both clocks", () => {
  const before = { monotonicMs: performance.now(), wallMs: Date.now() };
  const { monotonicMs, wallMs } = systemClock.read();
  assert(monotonicMs >= before.monotonicMs && monotonicMs < before.monotonicMs + 1000);
  assert(wallMs >= before.wallMs && wallMs < before.wallMs + 1000);
});

Deno.test("sleep ends when its time is over, and leaves no timer", async () => {
  const clock = new ManualClock();
  let isOver = false;
  const sleeping = sleep(clock, 100, { keepAlive: true }).then(() => isOver = true);
  await clock.advance(99);
  assertEquals(isOver, false);
  await clock.advance(1);
  await sleeping;
  assertEquals(clock.pendingTimers, 0);
});

// covers: G7
Deno.test("sleep that is aborted rejects with the reason at once, and leaves no timer", async () => {
  const clock = new ManualClock();
  const stop = new AbortController();
  const sleeping = sleep(clock, 100, { keepAlive: true, signal: stop.signal });
  stop.abort("enough");
  assertEquals(await sleeping.catch((reason) => reason), "enough");
  assertEquals(clock.pendingTimers, 0);
});

Deno.test("sleep with an aborted signal rejects and sets no timer", async () => {
  const clock = new ManualClock();
  const signal = AbortSignal.abort(new Error("before"));
  await assertRejects(() => sleep(clock, 100, { keepAlive: true, signal }), Error, "before");
  assertEquals(clock.pendingTimers, 0);
});

// covers: G7
Deno.test("sleep leaves no listener on its signal", async () => {
  const clock = new ManualClock();
  const { signal } = new AbortController();
  let listeners = 0;
  const { addEventListener, removeEventListener } = signal;
  signal.addEventListener = (...args: Parameters<typeof addEventListener>) => {
    listeners++;
    addEventListener.apply(signal, args);
  };
  signal.removeEventListener = (...args: Parameters<typeof removeEventListener>) => {
    listeners--;
    removeEventListener.apply(signal, args);
  };
  const sleeping = sleep(clock, 100, { keepAlive: true, signal });
  assertEquals(listeners, 1);
  await clock.advance(100);
  await sleeping;
  assertEquals(listeners, 0);
});
