import { assertEquals } from "@std/assert";
import type { AcquireCommand, Beat, Command, LeaseRecord } from "../../src/core/record.ts";
import { EMPTY_RECORD } from "../../src/core/record.ts";
import { putBounded, Sightings } from "../../src/core/sightings.ts";
import { ManualClock } from "../../src/testing/mod.ts";
import { acquire, release, renew } from "../support/commands.ts";

const TTL_MS = 1000;
const SKEW_MS = 200;

/** After so long unchanged a holding of the tests is dead: ttl and skew, and 1 % for clocks that differ. */
const DEAD_MS = 1212;

function recordOf(...beats: Beat[]): LeaseRecord {
  const holders = beats.map(({ fence, beats }) => ({
    token: `token ${fence}`,
    fence,
    permits: 1,
    capacity: 2,
    ttlMs: TTL_MS,
    beats,
    expiresAtMs: 1_700_000_000_000 + TTL_MS,
    label: "",
  }));
  return { ...EMPTY_RECORD, holders };
}

function begin(): { clock: ManualClock; sightings: Sightings; dead: (name?: string) => number[] } {
  const clock = new ManualClock();
  const sightings = new Sightings(clock, SKEW_MS);
  const dead = (name = "job"): number[] =>
    sightings.complete(name, acquire("token")).presumedDead.map(({ fence }) => fence);
  return { clock, sightings, dead };
}

// covers: G8
Deno.test("a holding is presumed dead once it was seen unchanged for its ttl, the skew and 1 %", () => {
  const { clock, sightings, dead } = begin();
  sightings.see("job", recordOf({ fence: 1, beats: 0 }));
  clock.freeze(DEAD_MS - 1);
  sightings.see("job", recordOf({ fence: 1, beats: 0 }));
  assertEquals(dead(), []);
  clock.freeze(1);
  assertEquals(dead(), [1]);
});

// covers: G1 G5
Deno.test("time that only one of our clocks has seen does not count", () => {
  for (const pass of ["suspend", "stepWall"] as const) {
    const { clock, sightings, dead } = begin();
    sightings.see("job", recordOf({ fence: 1, beats: 0 }));
    clock[pass](10 * DEAD_MS);
    assertEquals(dead(), [], pass);
  }
});

const changes: readonly [what: string, later: Beat][] = [
  ["renewed", { fence: 1, beats: 1 }],
  ["was replaced", { fence: 2, beats: 0 }],
];
for (const [what, later] of changes) {
  // covers: G1
  Deno.test(`a holding that ${what} is watched from then on`, () => {
    const { clock, sightings, dead } = begin();
    sightings.see("job", recordOf({ fence: 1, beats: 0 }));
    clock.freeze(DEAD_MS - 1);
    sightings.see("job", recordOf(later));
    clock.freeze(DEAD_MS - 1);
    assertEquals(dead(), []);
    clock.freeze(1);
    assertEquals(dead(), [later.fence]);
  });
}

// covers: G1
Deno.test("each holding of a record is watched by itself", () => {
  const { clock, sightings, dead } = begin();
  sightings.see("job", recordOf({ fence: 1, beats: 0 }));
  clock.freeze(DEAD_MS - 1);
  sightings.see("job", recordOf({ fence: 1, beats: 0 }, { fence: 2, beats: 0 }));
  clock.freeze(1);
  assertEquals(dead(), [1]);
});

Deno.test("each lock is watched by itself", () => {
  const { clock, sightings, dead } = begin();
  sightings.see("job", recordOf({ fence: 1, beats: 0 }));
  clock.freeze(DEAD_MS);
  assertEquals([dead("other"), dead("job")], [[], [1]]);
});

// covers: G1
Deno.test("a holding that went, and came back with the same beats, is watched anew", () => {
  const { clock, sightings, dead } = begin();
  sightings.see("job", recordOf({ fence: 1, beats: 0 }));
  clock.freeze(DEAD_MS);
  sightings.see("job", EMPTY_RECORD);
  assertEquals(dead(), []);
  sightings.see("job", recordOf({ fence: 1, beats: 0 }));
  assertEquals(dead(), []);
});

Deno.test("what the caller has itself seen die is kept beside what was watched", () => {
  const { clock, sightings } = begin();
  sightings.see("job", recordOf({ fence: 1, beats: 3 }));
  clock.freeze(DEAD_MS);
  const command: AcquireCommand = acquire("token", { presumedDead: [{ fence: 7, beats: 0 }] });
  const { presumedDead } = sightings.complete("job", command);
  const seen = presumedDead.map(({ fence, beats }) => ({ fence, beats }));
  assertEquals(seen, [{ fence: 7, beats: 0 }, { fence: 1, beats: 3 }]);
  assertEquals(command.presumedDead.length, 1, "the caller's command stays as it is");
});

Deno.test("a command that takes nothing over, or has nothing to take over, comes back as it is", () => {
  const { clock, sightings } = begin();
  const first = acquire("token");
  assertEquals(sightings.complete("job", first) === first, true);
  sightings.see("job", recordOf({ fence: 1, beats: 0 }));
  assertEquals(sightings.complete("job", first) === first, true);
  clock.freeze(DEAD_MS);
  const others: Command[] = [renew("token", 1), release("token"), { type: "inspect" }];
  for (const command of others) assertEquals(sightings.complete("job", command) === command, true);
});

Deno.test("sightings of the 1,000 locks that were seen last are kept", () => {
  const { clock, sightings, dead } = begin();
  for (let i = 0; i < 1000; i++) sightings.see(`lock ${i}`, recordOf({ fence: 1, beats: 0 }));
  sightings.see("lock 0", recordOf({ fence: 1, beats: 0 }));
  sightings.see("one more", recordOf({ fence: 1, beats: 0 }));
  clock.freeze(DEAD_MS);
  assertEquals([dead("lock 0"), dead("lock 1"), dead("lock 2")], [[1], [], [1]]);
});

Deno.test("putBounded() forgets the entry that was set longest ago", () => {
  const map = new Map<string, number>();
  for (let i = 0; i < 1000; i++) putBounded(map, `key ${i}`, i);
  putBounded(map, "key 0", -1);
  assertEquals(map.size, 1000);
  putBounded(map, "one more", 1);
  assertEquals([map.size, map.get("key 0"), map.has("key 1")], [1000, -1, false]);
});
