import { assert, assertEquals } from "@std/assert";
import * as ours from "../../src/core/errors.ts";

/** Another copy of the same module, as when two packages bundle the library. */
const theirs: typeof ours = await import(
  `${import.meta.resolve("../../src/core/errors.ts")}?copy=1`
);

const cause = new Error("behind it");

/** One error of each class, made by one copy. */
function errorsOf(copy: typeof ours): readonly [name: string, error: Error, code: string][] {
  return [
    [
      "HoldfastError",
      new copy.HoldfastError("capacity-mismatch", "m", { cause }),
      "capacity-mismatch",
    ],
    ["LockTimeoutError", new copy.LockTimeoutError("m"), "lock-timeout"],
    ["LeaseLostError", new copy.LeaseLostError("m", { reason: "expired", cause }), "lease-lost"],
    ["StorageError", new copy.StorageError("m", { transient: true, cause }), "storage"],
    ["StaleFenceError", new copy.StaleFenceError("m", { fence: 7, cause }), "stale-fence"],
  ];
}

Deno.test("the copies are two", () => assert(ours.HoldfastError !== theirs.HoldfastError));

for (const [copy, errors] of [["ours", errorsOf(ours)], ["theirs", errorsOf(theirs)]] as const) {
  for (const [name, error, code] of errors) {
    Deno.test(`a ${name} of ${copy} is one for either copy, and nothing else`, () => {
      const classes = Object.keys(ours).filter((key) =>
        key.endsWith("Error")
      ) as (keyof typeof ours)[];
      for (const classesOf of [ours, theirs]) {
        const matching = classes.filter((key) => error instanceof classesOf[key]);
        const expected = name === "HoldfastError" ? [name] : ["HoldfastError", name];
        assertEquals(matching.sort(), expected.sort());
      }
      assert(error instanceof Error);
    });

    Deno.test(`a ${name} of ${copy} has a name, a literal code, a message and a stack`, () => {
      assertEquals([error.name, (error as ours.HoldfastError).code, error.message], [
        name,
        code,
        "m",
      ]);
      assert(error.stack!.includes("errors_test.ts"));
      assertEquals(`${error}`, `${name}: m`);
    });
  }
}

const others: readonly [what: string, value: unknown][] = [
  ["undefined", undefined],
  ["null", null],
  ["a string", "lease-lost"],
  ["a number", 5],
  ["an Error", new Error("m")],
  ["an object with the code", { code: "lease-lost" }],
  ["an error with the code of a system call", Object.assign(new Error(), { code: "ECONNRESET" })],
];
for (const [what, value] of others) {
  Deno.test(`${what} is no error of the library`, () => {
    assertEquals([value instanceof ours.HoldfastError, value instanceof ours.LeaseLostError], [
      false,
      false,
    ]);
  });
}

Deno.test("a class that a user derives matches only its own instances", () => {
  class Mine extends ours.StorageError {}
  const mine = new Mine("m", { transient: true });
  const plain = new ours.StorageError("m", { transient: true });
  assertEquals([mine instanceof Mine, mine instanceof ours.StorageError], [true, true]);
  assertEquals([plain instanceof Mine, new ours.LockTimeoutError("m") instanceof Mine], [
    false,
    false,
  ]);
});

Deno.test("the cause is there if it was given, and not otherwise", () => {
  assertEquals(errorsOf(ours).map(([, error]) => error.cause), [
    cause,
    undefined,
    cause,
    cause,
    cause,
  ]);
  assertEquals("cause" in new ours.StorageError("m", { transient: true }), false);
  assertEquals("cause" in new ours.LeaseLostError("m", { reason: "expired" }), false);
  assertEquals("cause" in new ours.StaleFenceError("m", { fence: 7 }), false);
});

const values: readonly [details: object, hasValue: boolean, value: unknown][] = [
  [{}, false, undefined],
  [{ value: undefined }, true, undefined],
  [{ value: 42 }, true, 42],
];
for (const [details, hasValue, value] of values) {
  Deno.test(`a LeaseLostError with ${Deno.inspect(details)} ${hasValue ? "has" : "has no"} value`, () => {
    const error = new ours.LeaseLostError("m", { reason: "evicted", ...details });
    assertEquals([error.hasValue, error.value, error.reason], [hasValue, value, "evicted"]);
  });
}

Deno.test("a StorageError says whether to ask again, and which command failed", () => {
  const error = new ours.StorageError("m", { transient: false, index: 2 });
  assertEquals([error.transient, error.index], [false, 2]);
  assertEquals(new ours.StorageError("m", { transient: true }).index, undefined);
});

Deno.test("a StaleFenceError says which fence", () => {
  assertEquals(new ours.StaleFenceError("m", { fence: 7 }).fence, 7);
});

Deno.test("the brand of an error does not show", () => {
  const error = new ours.LockTimeoutError("m");
  const shown = Object.entries({ ...error });
  assertEquals(shown.map(([key]) => key).sort(), ["code", "name"]);
  assertEquals(Object.getOwnPropertySymbols({ ...error }), []);
});
