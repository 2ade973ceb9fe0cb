/**
 * Tests of the contract suite that do not apply to a storage, and why. `deno task contract --table` prints
 * the reason where this leaves a guarantee without a test; without one it fails.
 */
export const gaps = {
  memory: [
    { test: "although the record was lost", reason: "nothing evicts from memory" },
    { test: "what is not a record", reason: "memory holds values, not text" },
    { test: "lines of a later minor", reason: "memory holds values, not text" },
  ],
} as const satisfies Record<string, readonly { test: string; reason: string }[]>;
