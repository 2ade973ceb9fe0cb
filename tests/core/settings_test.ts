import { assertEquals, assertStrictEquals, assertThrows } from "@std/assert";
import { Lock, type LockOptions, MemoryStorage, systemClock } from "../../mod.ts";
import { systemEntropy } from "../../src/core/entropy.ts";
import { settingsOf } from "../../src/core/settings.ts";
import { checkPollMs } from "../../src/core/validate.ts";

const storage = new MemoryStorage();

/** The greatest span of time, in milliseconds. */
const DAYS_30_MS = 2_592_000_000;

/** A storage of the wrong kind, and what it is. */
const NO_STORAGE = "Cannot use storage as it must have an execute() method: current value is ";

/** What a whole number that is out of range is told. */
const whole = (what: string, min: number, max: number, unit: string, value: unknown): string =>
  `Cannot use ${what} as it must be an integer from ${min} to ${max}${unit}: current value is ${value}`;

const NAME_BYTES = "Cannot use name as it must have 1 to 512 UTF-8 bytes: current value has ";
const NAME_FORM =
  "Cannot use name as it must be well-formed without control characters: current value is ";
const LABEL_FORM =
  "Cannot use label as it must be well-formed without control characters: current value is ";

/** Options that are wrong, and what is said of them. */
const wrong: readonly (readonly [Record<string, unknown>, typeof TypeError, string])[] = [
  [{ storage: undefined }, TypeError, `${NO_STORAGE}undefined`],
  [{ storage: null }, TypeError, `${NO_STORAGE}object`],
  [{ storage: {} }, TypeError, `${NO_STORAGE}object`],
  [{ storage: "redis://localhost" }, TypeError, `${NO_STORAGE}string`],

  [
    { name: undefined },
    TypeError,
    "Cannot use name as it must be a string: current value is of type undefined",
  ],
  [
    { name: 5 },
    TypeError,
    "Cannot use name as it must be a string: current value is of type number",
  ],
  [{ name: "" }, RangeError, `${NAME_BYTES}0`],
  [{ name: "x".repeat(513) }, RangeError, `${NAME_BYTES}513`],
  [{ name: "é".repeat(257) }, RangeError, `${NAME_BYTES}514`],
  [{ name: "a\nb" }, RangeError, `${NAME_FORM}"a\\nb"`],
  [{ name: "a\0" }, RangeError, `${NAME_FORM}"a\\u0000"`],
  [{ name: "\x7f" }, RangeError, `${NAME_FORM}"\x7f"`],
  [{ name: "\u0085" }, RangeError, `${NAME_FORM}"\u0085"`],
  [{ name: "a\ud800b" }, RangeError, `${NAME_FORM}"a\\ud800b"`],

  [{ ttlMs: 9 }, RangeError, whole("ttlMs", 10, DAYS_30_MS, " ms", 9)],
  [{ ttlMs: -1 }, RangeError, whole("ttlMs", 10, DAYS_30_MS, " ms", -1)],
  [{ ttlMs: DAYS_30_MS + 1 }, RangeError, whole("ttlMs", 10, DAYS_30_MS, " ms", DAYS_30_MS + 1)],
  [{ ttlMs: NaN }, RangeError, whole("ttlMs", 10, DAYS_30_MS, " ms", NaN)],
  [{ ttlMs: Infinity }, RangeError, whole("ttlMs", 10, DAYS_30_MS, " ms", Infinity)],
  [{ ttlMs: 10.5 }, RangeError, whole("ttlMs", 10, DAYS_30_MS, " ms", 10.5)],
  [
    { ttlMs: "30s" },
    TypeError,
    "Cannot use ttlMs as it must be a number: current value is of type string",
  ],
  [
    { ttlMs: 30n },
    TypeError,
    "Cannot use ttlMs as it must be a number: current value is of type bigint",
  ],

  [{ ttlMs: 1000, renewEveryMs: 0 }, RangeError, whole("renewEveryMs", 1, 988, " ms", 0)],
  [{ ttlMs: 1000, renewEveryMs: 989 }, RangeError, whole("renewEveryMs", 1, 988, " ms", 989)],
  [{ ttlMs: 1000, renewEveryMs: 1.5 }, RangeError, whole("renewEveryMs", 1, 988, " ms", 1.5)],

  [
    { requestTimeoutMs: 0 },
    RangeError,
    whole("requestTimeoutMs", 1, DAYS_30_MS, " ms", 0),
  ],
  [{ minHoldMs: -1 }, RangeError, whole("minHoldMs", 0, DAYS_30_MS, " ms", -1)],
  [{ maxHoldMs: 9 }, RangeError, whole("maxHoldMs", 10, DAYS_30_MS, " ms", 9)],
  [{ maxHoldMs: Infinity }, RangeError, whole("maxHoldMs", 10, DAYS_30_MS, " ms", Infinity)],
  [{ queueMs: 9 }, RangeError, whole("queueMs", 10, DAYS_30_MS, " ms", 9)],

  [{ capacity: 0 }, RangeError, whole("capacity", 1, 1_000_000, "", 0)],
  [{ capacity: 1_000_001 }, RangeError, whole("capacity", 1, 1_000_000, "", 1_000_001)],
  [{ capacity: 1.5 }, RangeError, whole("capacity", 1, 1_000_000, "", 1.5)],
  [{ capacity: 2, permits: 0 }, RangeError, whole("permits", 1, 2, "", 0)],
  [{ capacity: 2, permits: 3 }, RangeError, whole("permits", 1, 2, "", 3)],
  [{ permits: 2 }, RangeError, whole("permits", 1, 1, "", 2)],

  [
    { autoRenew: "yes" },
    TypeError,
    'Cannot use autoRenew as it must be one of true, false, "own-timer": current value is "yes"',
  ],
  [
    { fair: 1 },
    TypeError,
    "Cannot use fair as it must be one of true, false: current value is 1",
  ],
  [
    { gate: "off" },
    TypeError,
    'Cannot use gate as it must be one of true, false: current value is "off"',
  ],
  [
    { onUnavailable: "ignore" },
    TypeError,
    'Cannot use onUnavailable as it must be one of "throw", "skip": current value is "ignore"',
  ],

  [
    { label: 5 },
    TypeError,
    "Cannot use label as it must be a string: current value is of type number",
  ],
  [
    { label: "é".repeat(33) },
    RangeError,
    "Cannot use label as it must have 0 to 64 UTF-8 bytes: current value has 66",
  ],
  [{ label: "a\nx injected" }, RangeError, `${LABEL_FORM}"a\\nx injected"`],
  [{ label: "\udc00" }, RangeError, `${LABEL_FORM}"\\udc00"`],

  [
    { onEvent: 1 },
    TypeError,
    "Cannot use onEvent as it must be a function: current value is of type number",
  ],
  [
    { waitUntil: {} },
    TypeError,
    "Cannot use waitUntil as it must be a function: current value is of type object",
  ],
];

for (const [options, errorClass, message] of wrong) {
  // covers: S1.21 S4.8 S5.1
  Deno.test(`new Lock() says: ${message.replaceAll(/\p{Cc}/gu, " ")}`, () => {
    const all = { storage, name: "job", ...options } as LockOptions;
    const error = assertThrows(() => new Lock(all), errorClass);
    assertEquals(error.message, message);
  });
}

/** Options that are just right. */
const right: readonly Partial<LockOptions>[] = [
  { name: "x" },
  { name: "x".repeat(512) },
  { name: "é".repeat(256) },
  { name: " /#?{}:%\u200d👩‍🚀" },
  { ttlMs: 10 },
  { ttlMs: DAYS_30_MS },
  { ttlMs: 10, renewEveryMs: 7 },
  { ttlMs: 1000, renewEveryMs: 988 },
  { requestTimeoutMs: 1 },
  { minHoldMs: 0 },
  { maxHoldMs: 10 },
  { maxHoldMs: DAYS_30_MS },
  { queueMs: 10 },
  { capacity: 1_000_000, permits: 1_000_000 },
  { label: "" },
  { label: "é".repeat(32) },
  { autoRenew: false },
  { autoRenew: "own-timer" },
];
for (const options of right) {
  const [[key, value]] = Object.entries(options).slice(-1) as [[string, unknown]];
  Deno.test(`new Lock() takes ${key} of ${`${value}`.slice(0, 20)}`, () => {
    const settings = settingsOf({ storage, name: "job", ...options });
    assertEquals(settings[key as keyof typeof settings], value);
  });
}

/** Every optional option, as its default. */
const defaults = {
  ttlMs: 30_000,
  renewEveryMs: 10_000,
  autoRenew: true,
  requestTimeoutMs: 5000,
  minHoldMs: 0,
  maxHoldMs: undefined,
  permits: 1,
  capacity: 1,
  fair: false,
  queueMs: 10_000,
  gate: true,
  label: "",
  clock: systemClock,
  entropy: systemEntropy,
  onUnavailable: "throw",
  onEvent: undefined,
  waitUntil: undefined,
} as const;

// covers: S1.2 S3.11
Deno.test("an option that is absent, or undefined, has its default", () => {
  const undefineds = Object.fromEntries(Object.keys(defaults).map((key) => [key, undefined]));
  for (const options of [{}, undefineds]) {
    const settings = settingsOf({ storage, name: "job", ...options });
    assertEquals(settings, { ...defaults, storage, name: "job" });
    assertStrictEquals(settings.clock, systemClock);
  }
});

const derived: readonly [ttlMs: number, renewEveryMs: number, requestTimeoutMs: number][] = [
  [10, 3, 3],
  [1000, 333, 333],
  [15_000, 5000, 5000],
  [60_000, 20_000, 5000],
];
for (const [ttlMs, renewEveryMs, requestTimeoutMs] of derived) {
  // covers: S3.11 S5.11
  Deno.test(`a ttl of ${ttlMs} ms is renewed every ${renewEveryMs} ms, with requests of ${requestTimeoutMs} ms`, () => {
    const settings = settingsOf({ storage, name: "job", ttlMs });
    assertEquals([settings.renewEveryMs, settings.requestTimeoutMs], [
      renewEveryMs,
      requestTimeoutMs,
    ]);
  });
}

// covers: S5.1
Deno.test("new Lock() brings the name and the label into NFC", () => {
  const settings = settingsOf({ storage, name: "e\u0301", label: "e\u0301" });
  assertEquals([settings.name, settings.label], ["\u00e9", "\u00e9"]);
});

Deno.test("the length of a name counts after NFC", () => {
  assertEquals(settingsOf({ storage, name: "e\u0301".repeat(256) }).name.length, 256);
});

// covers: S3.7
Deno.test("options that are changed afterwards change no lock", () => {
  const options = { storage, name: "job", ttlMs: 1000 };
  const lock = new Lock(options);
  options.name = "other";
  assertEquals(lock.name, "job");
});

const wrongPolls: readonly [min: number, max: number, message: string][] = [
  [0, 5, whole("pollMs.min", 1, DAYS_30_MS, " ms", 0)],
  [6, 5, whole("pollMs.max", 6, DAYS_30_MS, " ms", 5)],
  [1, 0.5, whole("pollMs.max", 1, DAYS_30_MS, " ms", 0.5)],
];
for (const [min, max, message] of wrongPolls) {
  Deno.test(`a poll from ${min} to ${max} ms is refused`, () => {
    assertThrows(() => checkPollMs({ min, max }), RangeError, message);
  });
}
