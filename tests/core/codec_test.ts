import { assert, assertEquals, assertThrows } from "@std/assert";
import fc from "fast-check";
import { decodeRecord, encodeRecord, lastExpiryMs } from "../../src/core/codec.ts";
import {
  EMPTY_RECORD,
  type Holder,
  type LeaseRecord,
  MAX_ENTRIES,
  MAX_SPENT,
} from "../../src/core/record.ts";
import { MAX_CAPACITY, MAX_TTL_MS } from "../../src/core/validate.ts";

const holder: Holder = {
  token: "aa",
  fence: 7,
  permits: 1,
  capacity: 2,
  ttlMs: 30_000,
  beats: 3,
  expiresAtMs: 1_700_000_000_000,
  label: "worker 7",
};

const sample: LeaseRecord = {
  fence: 7,
  holders: [holder, { ...holder, token: null, label: "" }],
  tickets: [
    { token: "bb", permits: 2, fair: true, expiresAtMs: 5 },
    { token: "cc", permits: 1, fair: false, expiresAtMs: 6 },
  ],
  spent: [
    { token: "dd", end: "released", expiresAtMs: 8 },
    { token: "ee", end: "unheld", expiresAtMs: 9 },
    { token: "ff", end: "evicted", expiresAtMs: 10 },
    { token: "gg", end: "adopted", expiresAtMs: 11 },
  ],
  extra: ["x of tomorrow", "z "],
};

const SAMPLE_TEXT = `holdfast 1 7
h aa 7 1 2 30000 3 1700000000000 worker 7
h - 7 1 2 30000 3 1700000000000 
t bb 2 1 5
t cc 1 0 6
s dd released 8
s ee unheld 9
s ff evicted 10
s gg adopted 11
x of tomorrow
z 
.
`;

Deno.test("a record is written in the documented form", () => {
  assertEquals(encodeRecord(sample), SAMPLE_TEXT);
});

Deno.test("the documented form is read back", () => {
  assertEquals(decodeRecord(SAMPLE_TEXT), sample);
});

Deno.test("an empty record is its fence", () => {
  assertEquals(encodeRecord(EMPTY_RECORD), "holdfast 1 0\n.\n");
  assertEquals(decodeRecord("holdfast 1 0\n.\n"), EMPTY_RECORD);
});

const integer = fc.oneof(fc.nat(), fc.maxSafeNat());
const token = fc.oneof(fc.uuid(), fc.stringMatching(/^[A-Za-z0-9-]{2,36}$/));
const text = fc.string({ unit: "grapheme", maxLength: 40 })
  .filter((t) => !/\p{Cc}|\p{Surrogate}/u.test(t));
const record: fc.Arbitrary<LeaseRecord> = fc.record({
  fence: integer,
  holders: fc.array(fc.record({
    token: fc.option(token),
    fence: integer,
    permits: integer,
    capacity: integer,
    ttlMs: integer,
    beats: integer,
    expiresAtMs: integer,
    label: text,
  })),
  tickets: fc.array(
    fc.record({ token, permits: integer, fair: fc.boolean(), expiresAtMs: integer }),
  ),
  spent: fc.array(fc.record({
    token,
    end: fc.constantFrom("released", "unheld", "evicted", "adopted"),
    expiresAtMs: integer,
  })),
  extra: fc.array(
    fc.tuple(fc.constantFrom(..."abcdefgijklmnopqruvwxyz"), text).map(([c, t]) => `${c} ${t}`),
  ),
});

// covers: G12
Deno.test("every record is read back as it was", () => {
  fc.assert(fc.property(record, (r) => assertEquals(decodeRecord(encodeRecord(r)), r)));
});

// covers: G12
Deno.test("a text is either an error or comes back as it is, whatever was done to it", () => {
  const edit = fc.record({ at: fc.nat(), remove: fc.nat(3), insert: fc.string({ maxLength: 3 }) });
  fc.assert(fc.property(record, fc.array(edit, { minLength: 1, maxLength: 2 }), (r, edits) => {
    let changed = encodeRecord(r);
    for (const { at, remove, insert } of edits) {
      const from = at % changed.length;
      changed = changed.slice(0, from) + insert + changed.slice(from + remove);
    }
    let read: LeaseRecord;
    try {
      read = decodeRecord(changed);
    } catch (error) {
      assert(error instanceof RangeError, `${error}`);
      return;
    }
    const lines = (t: string): string[] => t.split("\n").sort();
    assertEquals(lines(encodeRecord(read)), lines(changed));
  }));
});

const NOT_OURS = `Cannot read record as it does not start with "holdfast 1"`;
const unknown = (start: string): string =>
  `Cannot read record as its version or shape is unknown: current value is "${start}"`;
const NO_END = "Cannot read record as its end is missing";
const malformed = (line: number): string => `Cannot read record as its line ${line} is malformed`;

/** What is stored, and why it cannot be read. */
const unreadable: readonly [what: string, text: string, message: string][] = [
  ["nothing", "", NOT_OURS],
  ["a line feed", "\n", NOT_OURS],
  ["something else", "not ours", NOT_OURS],
  ["JSON", '{"holdfast":1}', NOT_OURS],
  ["our word without a version", "holdfast\n", NOT_OURS],
  ["a leading space", " holdfast 1 5\n.\n", NOT_OURS],
  ["another case", "Holdfast 1 5\n", NOT_OURS],
  ["a later major version", "holdfast 2 5\nsomething new\n", unknown("holdfast 2")],
  ["a later major version of two digits", "holdfast 11 5\n", unknown("holdfast 11")],
  ["a later major version with a secret", "holdfast 2 token=abc", unknown("holdfast 2")],
  ["a header without a fence", "holdfast 1\n", unknown("holdfast 1")],
  ["a header with two fences", "holdfast 1 5 6\n.\n", unknown("holdfast 1")],
  ["a header with a negative fence", "holdfast 1 -5\n.\n", unknown("holdfast 1")],
  ["a header with a fraction", "holdfast 1 5.5\n.\n", unknown("holdfast 1")],
  ["a header with a leading zero", "holdfast 1 05\n.\n", unknown("holdfast 1")],
  ["a header with an exponent", "holdfast 1 1e3\n.\n", unknown("holdfast 1")],
  ["carriage returns", "holdfast 1 5\r\n.\n", unknown("holdfast 1")],
  ["a header that is cut off", "holdfast 1 5", NO_END],
  ["a line that is cut off", "holdfast 1 5\nh aa 7 1 2", NO_END],
  ["a record without its last line", "holdfast 1 5\nh aa 7 1 2 3 4 5 \n", NO_END],
  ["an end that is cut off", "holdfast 1 5\n.", NO_END],
  ["two ends", "holdfast 1 5\n.\n.\n", malformed(2)],
  ["lines behind the end", "holdfast 1 5\n.\nx later\n.\n", malformed(2)],
  ["an empty line", "holdfast 1 5\n\n.\n", malformed(2)],
  ["a line that is no kind", "holdfast 1 5\nhello\n.\n", malformed(2)],
  ["a line with an upper-case kind", "holdfast 1 5\nX y\n.\n", malformed(2)],
  ["a control character", "holdfast 1 5\nx a\tb\n.\n", malformed(2)],
  ["a holder with too few fields", "holdfast 1 5\nh aa 7 1 2 3 4\n.\n", malformed(2)],
  ["a holder without a label field", "holdfast 1 5\nh aa 7 1 2 3 4 5\n.\n", malformed(2)],
  ["a holder with a token too short", "holdfast 1 5\nh a 7 1 2 3 4 5 \n.\n", malformed(2)],
  [
    "a holder with a token too long",
    `holdfast 1 5\nh ${"a".repeat(37)} 7 1 2 3 4 5 \n.\n`,
    malformed(2),
  ],
  ["a holder with a strange token", "holdfast 1 5\nh a_b 7 1 2 3 4 5 \n.\n", malformed(2)],
  ["a holder with a negative number", "holdfast 1 5\nh aa -7 1 2 3 4 5 \n.\n", malformed(2)],
  ["a ticket without a token", "holdfast 1 5\nt - 1 0 5\n.\n", malformed(2)],
  ["a ticket that is neither fair nor not", "holdfast 1 5\nt aa 1 2 5\n.\n", malformed(2)],
  ["a ticket with a field too many", "holdfast 1 5\nt aa 1 0 5 6\n.\n", malformed(2)],
  ["a spent token with another end", "holdfast 1 5\ns aa lost 5\n.\n", malformed(2)],
  ["a bad line after good ones", "holdfast 1 5\ns aa released 5\nt bb\n.\n", malformed(3)],
  [
    "a fence that is no safe integer",
    "holdfast 1 9999999999999999\n.\n",
    "Cannot read record as a number is out of range: current value is 9999999999999999",
  ],
  [
    "an expiry that is no safe integer",
    "holdfast 1 5\ns aa released 9007199254740992\n.\n",
    "Cannot read record as a number is out of range: current value is 9007199254740992",
  ],
  ["a number of 17 digits", "holdfast 1 5\ns aa released 10000000000000000\n.\n", malformed(2)],
];
for (const [what, stored, message] of unreadable) {
  // covers: G12
  Deno.test(`reading ${what} is an error`, () => {
    const error = assertThrows(() => decodeRecord(stored), RangeError);
    assertEquals(error.message, message);
  });
}

// covers: G12
Deno.test("every proper prefix of a text is an error", () => {
  for (let length = 0; length < SAMPLE_TEXT.length; length++) {
    assertThrows(() => decodeRecord(SAMPLE_TEXT.slice(0, length)), RangeError);
  }
});

// covers: G12
Deno.test("lines of kinds that this version does not know are kept", () => {
  const stored = "holdfast 1 5\na b\nx of tomorrow é\nz \n.\n";
  assertEquals(encodeRecord(decodeRecord(stored)), stored);
});

const extras: readonly [what: string, line: string, count: number, isRead: boolean][] = [
  ["2048 bytes", `x ${"y".repeat(61)}`, 32, true],
  ["2112 bytes", `x ${"y".repeat(61)}`, 33, false],
  ["2048 bytes of characters of two", `x ${"é".repeat(30)}y`, 32, true],
  ["2112 bytes of characters of two", `x ${"é".repeat(30)}y`, 33, false],
];
for (const [what, line, count, isRead] of extras) {
  Deno.test(`${what} of unknown lines are ${isRead ? "kept" : "an error"}`, () => {
    const stored = `holdfast 1 5\n${`${line}\n`.repeat(count)}.\n`;
    if (isRead) return assertEquals(encodeRecord(decodeRecord(stored)), stored);
    const error = assertThrows(() => decodeRecord(stored), RangeError);
    assertEquals(
      error.message,
      "Cannot read record as its unknown lines exceed 2048 bytes: current value is 2112",
    );
  });
}

Deno.test(
  `${MAX_ENTRIES} holders, ${MAX_ENTRIES} tickets and ${MAX_SPENT} spent tokens of the greatest length are below 64 KiB`,
  () => {
    const longest = "f".repeat(36);
    const lastMs = Date.UTC(2255, 0, 1);
    const fence = lastMs * 1000;
    const full: LeaseRecord = {
      fence,
      holders: Array.from({ length: MAX_ENTRIES }, (_, i) => ({
        token: longest,
        fence,
        // All permits of all holders fit the capacity, so that only few of them have seven digits.
        permits: i === 0 ? MAX_CAPACITY - MAX_ENTRIES * 1000 : 1000,
        capacity: MAX_CAPACITY,
        ttlMs: MAX_TTL_MS,
        // A renewal every 3 ms for 30 years.
        beats: 315_576_000_000,
        expiresAtMs: lastMs,
        label: "é".repeat(32),
      })),
      tickets: Array.from({ length: MAX_ENTRIES }, () => ({
        token: longest,
        permits: MAX_CAPACITY,
        fair: true,
        expiresAtMs: lastMs,
      })),
      spent: Array.from({ length: MAX_SPENT }, () => ({
        token: longest,
        end: "released",
        expiresAtMs: lastMs,
      })),
      extra: Array.from({ length: 8 }, () => `x ${"é".repeat(126)}y`),
    };
    const bytes = new TextEncoder().encode(encodeRecord(full)).length;
    assert(bytes < 65_536, `${bytes} bytes`);
    assert(bytes > 60_000, `${bytes} bytes: the test has become too easy`);
  },
);

/** Records whose text would be read as something else. */
const unwritable: readonly [what: string, record: LeaseRecord][] = [
  ["a token with a space", { ...EMPTY_RECORD, holders: [{ ...holder, token: "a b" }] }],
  ["an empty token", { ...EMPTY_RECORD, holders: [{ ...holder, token: "" }] }],
  ["a label with a control character", { ...EMPTY_RECORD, holders: [{ ...holder, label: "\t" }] }],
  [
    "a label with a line of its own",
    { ...EMPTY_RECORD, holders: [{ ...holder, label: "a\nx injected" }] },
  ],
  [
    "a label with a holder of its own",
    { ...EMPTY_RECORD, holders: [{ ...holder, label: `a\nh - 7 1 2 3 4 5 ` }] },
  ],
  ["a fraction", { ...EMPTY_RECORD, fence: 1.5 }],
  ["a negative number", { ...EMPTY_RECORD, fence: -1 }],
  ["an infinite number", { ...EMPTY_RECORD, holders: [{ ...holder, expiresAtMs: Infinity }] }],
  ["no number", { ...EMPTY_RECORD, holders: [{ ...holder, ttlMs: NaN }] }],
  ["an extra line of a kind that we know", { ...EMPTY_RECORD, extra: ["h secret"] }],
];
for (const [what, r] of unwritable) {
  // covers: G12
  Deno.test(`a record with ${what} is never written`, () => {
    assertThrows(() => encodeRecord(r), RangeError);
  });
}

const lasts: readonly [what: string, record: LeaseRecord, expected: number][] = [
  ["of nothing is that of its fence, rounded up", { ...EMPTY_RECORD, fence: 5001 }, 6],
  ["of a holder", { ...EMPTY_RECORD, fence: 5000, holders: [{ ...holder, expiresAtMs: 9 }] }, 9],
  ["of a ticket", { ...EMPTY_RECORD, tickets: [{ ...sample.tickets[0]!, expiresAtMs: 9 }] }, 9],
  ["of a spent token", { ...EMPTY_RECORD, spent: [{ ...sample.spent[0]!, expiresAtMs: 9 }] }, 9],
  [
    "is the latest of all",
    {
      ...EMPTY_RECORD,
      holders: [3, 9, 5].map((expiresAtMs) => ({ ...holder, expiresAtMs })),
      spent: [{ ...sample.spent[0]!, expiresAtMs: 8 }],
    },
    9,
  ],
];
for (const [what, r, expected] of lasts) {
  Deno.test(`lastExpiryMs ${what}`, () => assertEquals(lastExpiryMs(r), expected));
}
