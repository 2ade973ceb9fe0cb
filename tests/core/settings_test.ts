import { assertEquals, assertThrows } from "@std/assert";
import { Lock, type LockOptions, MemoryStorage } from "../../mod.ts";

const storage = new MemoryStorage();

/** Options that are wrong, and what is said of them. */
const wrong: readonly (readonly [Partial<LockOptions>, typeof TypeError, string])[] = [
  [
    { storage: {} as MemoryStorage },
    TypeError,
    "Cannot use storage as it must have an execute() method: current value is object",
  ],
  [
    { name: "" },
    RangeError,
    "Cannot use name as it must have 1 to 512 UTF-8 bytes: current value has 0",
  ],
  [
    { name: "x".repeat(513) },
    RangeError,
    "Cannot use name as it must have 1 to 512 UTF-8 bytes: current value has 513",
  ],
  [
    { name: "a\nb" },
    RangeError,
    'Cannot use name as it must be well-formed without control characters: current value is "a\\nb"',
  ],
  [
    { name: 5 as unknown as string },
    TypeError,
    "Cannot use name as it must be a string: current value is of type number",
  ],
  [
    { ttlMs: 9 },
    RangeError,
    "Cannot use ttlMs as it must be an integer from 10 to 2592000000 ms: current value is 9",
  ],
  [
    { ttlMs: 2_592_000_001 },
    RangeError,
    "Cannot use ttlMs as it must be an integer from 10 to 2592000000 ms: current value is 2592000001",
  ],
  [
    { ttlMs: NaN },
    RangeError,
    "Cannot use ttlMs as it must be an integer from 10 to 2592000000 ms: current value is NaN",
  ],
  [
    { ttlMs: "30s" as unknown as number },
    TypeError,
    "Cannot use ttlMs as it must be a number: current value is of type string",
  ],
  [
    { ttlMs: 1000, renewEveryMs: 1000 },
    RangeError,
    "Cannot use renewEveryMs as it must be an integer from 1 to 988 ms: current value is 1000",
  ],
  [
    { ttlMs: 1000, renewEveryMs: 0 },
    RangeError,
    "Cannot use renewEveryMs as it must be an integer from 1 to 988 ms: current value is 0",
  ],
  [
    { capacity: 2, permits: 3 },
    RangeError,
    "Cannot use permits as it must be an integer from 1 to 2: current value is 3",
  ],
  [
    { capacity: 0 },
    RangeError,
    "Cannot use capacity as it must be an integer from 1 to 1000000: current value is 0",
  ],
  [
    { autoRenew: "yes" as "own-timer" },
    TypeError,
    'Cannot use autoRenew as it must be one of true, false, "own-timer": current value is "yes"',
  ],
  [
    { onUnavailable: "ignore" as "skip" },
    TypeError,
    'Cannot use onUnavailable as it must be one of "throw", "skip": current value is "ignore"',
  ],
  [
    { label: "é".repeat(33) },
    RangeError,
    "Cannot use label as it must have 0 to 64 UTF-8 bytes: current value has 66",
  ],
  [
    { onEvent: 1 as unknown as () => void },
    TypeError,
    "Cannot use onEvent as it must be a function: current value is of type number",
  ],
];

for (const [options, errorClass, message] of wrong) {
  // covers: S1.21 S4.8 S5.1
  Deno.test(`new Lock() says: ${message.replaceAll("\n", " ")}`, () => {
    const error = assertThrows(() => new Lock({ storage, name: "job", ...options }), errorClass);
    assertEquals(error.message, message);
  });
}

// covers: S5.1
Deno.test("new Lock() brings the name into NFC", () => {
  assertEquals(new Lock({ storage, name: "e\u0301" }).name, "\u00e9");
});
