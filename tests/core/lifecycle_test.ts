import { assert, assertAlmostEquals, assertEquals } from "@std/assert";
import fc from "fast-check";
import type { Stamp } from "../../src/core/clock.ts";
import {
  granted,
  type Held,
  leftMs,
  lossAt,
  renewalFailed,
  renewed,
  renewInMs,
  type Terms,
  trustedMs,
  ttlToAskMs,
} from "../../src/core/lifecycle.ts";

const terms: Terms = { ttlMs: 30_000, renewEveryMs: 10_000, maxHoldMs: undefined };

/** Both clocks, so many milliseconds after the start; the wall clock stepped by so many more. */
function at(ms: number, wallStepMs = 0): Stamp {
  return { monotonicMs: 500 + ms, wallMs: 1_700_000_000_000 + ms + wallStepMs };
}

const START = at(0);

/** A lease that was asked for at the start. */
function held(ttlMs = terms.ttlMs): Held {
  return granted(START, ttlMs);
}

const trusted: readonly [ttlMs: number, expectedMs: number][] = [
  [10, 7.9],
  [1000, 988],
  [30_000, 29_698],
  [30 * 24 * 3_600_000, 2_566_079_998],
];
for (const [ttlMs, expectedMs] of trusted) {
  // covers: G5
  Deno.test(`a lease of ${ttlMs} ms is trusted for 1 % and 2 ms less`, () => {
    assertAlmostEquals(trustedMs(ttlMs), expectedMs, 1e-6);
  });
}

// covers: G5
Deno.test("the deadline counts from before the request was sent", () => {
  assertEquals(leftMs(held(), terms, at(5000)), 24_698);
});

// covers: G5
Deno.test("the deadline is never later than the storage's expiry while clock rates are within 1 %", () => {
  fc.assert(fc.property(
    fc.integer({ min: 10, max: 1_000_000 }),
    fc.double({ min: 0.99, max: 1.01, noNaN: true }),
    fc.nat(1000),
    fc.nat(1_100_000),
    (ttlMs, rate, travelMs, trueMs) => {
      const storageExpiresMs = travelMs + ttlMs;
      const life = granted(START, ttlMs);
      const isTrusted = leftMs(life, { ...terms, ttlMs }, at(trueMs * rate)) > 0;
      assert(!isTrusted || trueMs < storageExpiresMs);
    },
  ));
});

/** What clocks do, and how much of a lease of 30 s is left 5 s after the start by the monotonic clock. */
const clocks: readonly [what: string, now: Stamp, expectedMs: number][] = [
  ["the wall clock stepped forward by 10 s", at(5000, 10_000), 14_698],
  ["the wall clock stepped back by 10 s", at(5000, -10_000), 24_698],
  ["the machine was suspended for 10 s", at(5000, 10_000), 14_698],
  ["only the wall clock stands still", at(5000, -5000), 24_698],
  ["both clocks go back", at(-5000), 29_698],
];
for (const [what, now, expectedMs] of clocks) {
  // covers: G5 G6
  Deno.test(`a lease when ${what} ends early or in time, never late`, () => {
    assertEquals(leftMs(held(), terms, now), expectedMs);
  });
}

const losses: readonly [
  what: string,
  maxHoldMs: number | undefined,
  ms: number,
  loss: string | undefined,
][] = [
  ["just before the deadline", undefined, 29_697, undefined],
  ["at the deadline", undefined, 29_698, "expired"],
  ["after the deadline", undefined, 40_000, "expired"],
  ["just before its longest time", 20_000, 19_999, undefined],
  ["at its longest time", 20_000, 20_000, "max-hold"],
  ["after both", 20_000, 40_000, "max-hold"],
  ["after the deadline, before its longest time", 60_000, 29_698, "expired"],
];
for (const [what, maxHoldMs, ms, loss] of losses) {
  // covers: G6
  Deno.test(`a lease ${what} is ${loss ? `lost: ${loss}` : "held"}`, () => {
    assertEquals(lossAt(held(), { ...terms, maxHoldMs }, at(ms)), loss as undefined);
  });
}

Deno.test("what is left is bounded by the longest time", () => {
  assertEquals(leftMs(held(), { ...terms, maxHoldMs: 20_000 }, at(5000)), 15_000);
});

// covers: S1.2 S3.11 S5.11
Deno.test("the first renewal is due renewEveryMs after the acquire was sent", () => {
  assertEquals(renewInMs(held(), terms, START), 10_000);
  assertEquals(renewInMs(held(), terms, at(9999)), 1);
  assertEquals(renewInMs(held(), terms, at(10_000)), 0);
});

// covers: S1.4
Deno.test("a renewal that was answered is trusted from before it was sent", () => {
  const life = renewed(held(), at(10_000), 30_000, at(12_000));
  assertEquals(leftMs(life, terms, at(12_000)), 27_698);
  assertEquals(renewInMs(life, terms, at(12_000)), 8000);
});

// covers: G5
Deno.test("of two renewals that are answered in the wrong order the later promise counts", () => {
  const life = renewed(
    renewed(held(), at(11_000), 30_000, at(12_000)),
    at(10_000),
    30_000,
    at(13_000),
  );
  assertEquals(leftMs(life, terms, at(13_000)), 27_698);
});

// covers: G5
Deno.test("a shorter renewal takes nothing away", () => {
  const life = renewed(held(), at(1000), 10, at(1001));
  assertEquals(leftMs(life, terms, at(1001)), 28_697);
});

Deno.test("a lease that was extended is renewed again when less than its own ttl is left", () => {
  const life = renewed(held(), at(0), 3_600_000, at(1));
  assertAlmostEquals(renewInMs(life, terms, at(0)), trustedMs(3_600_000) - 19_698, 1e-6);
});

// covers: S1.3
Deno.test("after a stall one renewal is due, and the next a full period after it", () => {
  const late = at(25_000);
  assert(renewInMs(held(), terms, late) <= 0);
  assertEquals(renewInMs(renewed(held(), late, 30_000, at(25_010)), terms, late), 10_000);
});

Deno.test("a renewal that failed waits for its pause", () => {
  const life = renewalFailed(held(), at(10_000), 25);
  assertEquals(renewInMs(life, terms, at(10_000)), 25);
  assertEquals(renewInMs(life, terms, at(10_020)), 5);
  assertEquals(leftMs(life, terms, at(10_020)), 19_678);
});

Deno.test("a renewal that failed before one was due brings the next no nearer", () => {
  assertEquals(renewInMs(renewalFailed(held(), at(1000), 25), terms, at(1000)), 9000);
});

Deno.test("failures in a row are counted until a success", () => {
  const twice = renewalFailed(renewalFailed(held(), START, 25), START, 50);
  assertEquals(twice.failed?.times, 2);
  assertEquals(renewed(twice, at(1), 30_000, at(2)).failed, undefined);
});

Deno.test("nothing is renewed that could not reach further than the longest time", () => {
  const limited = { ...terms, maxHoldMs: 20_000 };
  assertEquals(renewInMs(held(), limited, at(15_000)), Infinity);
  assertEquals(renewInMs(held(), { ...terms, maxHoldMs: 60_000 }, at(10_000)), 0);
});

const asks: readonly [
  what: string,
  ttlMs: number,
  maxHoldMs: number | undefined,
  expected: number,
][] = [
  ["without a longest time is the ttl", 30_000, undefined, 30_000],
  ["before a long longest time is the ttl", 30_000, 60_000, 30_000],
  ["before a short longest time is cut", 30_000, 9900, 10_004],
  ["before the shortest longest time is cut", 30_000, 10, 14],
];
for (const [what, ttlMs, maxHoldMs, expected] of asks) {
  Deno.test(`the ttl asked for ${what}`, () => {
    assertEquals(ttlToAskMs(ttlMs, undefined, { ...terms, maxHoldMs }, START), expected);
  });
}

Deno.test("the ttl that a renewal asks for is cut to what is left of the longest time", () => {
  const limited = { ...terms, maxHoldMs: 60_000 };
  assertEquals(ttlToAskMs(30_000, held(), limited, at(10_000)), 30_000);
  assertEquals(ttlToAskMs(30_000, held(), limited, at(50_100)), 10_004);
  assertEquals(ttlToAskMs(30_000, held(), limited, at(70_000)), 10);
});

// covers: G5
Deno.test("a ttl that was cut reaches the longest time, and not much further", () => {
  fc.assert(fc.property(fc.integer({ min: 10, max: 10_000_000 }), (maxHoldMs) => {
    const ttlMs = ttlToAskMs(30 * 24 * 3_600_000, undefined, { ...terms, maxHoldMs }, START);
    assert(trustedMs(ttlMs) >= maxHoldMs);
    assert(ttlMs <= maxHoldMs * 1.0102 + 5);
  }));
});
