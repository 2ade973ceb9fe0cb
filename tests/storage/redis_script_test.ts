import { assert, assertEquals, assertThrows } from "@std/assert";
import fc from "fast-check";
import type { Redis } from "ioredis";
import { withService } from "../../scripts/services.ts";
import { decodeRecord } from "../../src/core/codec.ts";
import {
  type Command,
  type Granted,
  type Holder,
  type LeaseRecord,
  MAX_ENTRIES,
  MAX_SPENT,
} from "../../src/core/record.ts";
import { outcomeOf, wordsOf } from "../../src/storage/_redis_command.ts";
import { LEASE_SCRIPT } from "../../src/storage/redis_script.ts";
import { acquire, adopt, evict, inspect, release, renew, uniqueName } from "../support/commands.ts";
import { connectIoredis } from "../support/redis_clients.ts";
import { type Event, Model, runScript, type Seen } from "../support/redis_script.ts";

const START_US = 1_763_650_000_123_456;

/** Some that share their first characters, and the shortest and the longest that there are. */
const TOKENS = [
  "7d444840-9dc0-11d1-b245-5ffdce74fad2",
  "7d444840-9dc0-11d1-b245-5ffdce74fad3",
  "ab",
  "abc",
  "a-b",
  "--",
  ...Array.from({ length: 18 }, (_, i) => `token-${i}`),
];
const LABELS = [
  "",
  " ",
  "worker 7",
  "=",
  "true",
  "42",
  "null",
  "{}",
  "é—𝄞",
  "x".repeat(64),
  "%d %s",
];
const EXTRA = [[], ["x of a later version"], ["a é", "z 1 2 3", "r"]].map((lines) =>
  lines.map((line) => line.length === 1 ? `${line} ` : line)
);
const TTLS_MS = [10, 50, 1000, 30_000, 30 * 24 * 3_600_000];

/**
 * A command as a choice among what the record has when its turn comes: numbers are picked modulo what
 * there is, so that shrinking one event does not make the others meaningless.
 */
type Choice = {
  readonly kind: "acquire" | "renew" | "release" | "adopt" | "inspect" | "evict" | "lost" | "extra";
  readonly passes: Passing;
  readonly token: number;
  readonly other: number;
  readonly pick: number;
  readonly isWrong: boolean;
  readonly flag: boolean;
  readonly capacity: number;
  readonly permits: number;
  readonly ttlMs: number;
  readonly spanMs: number;
  readonly label: string;
};

/** How the clock moves: by some microseconds, or to the brink of an expiry. */
type Passing = { readonly us: number } | { readonly toExpiryOf: number; readonly us: number };

const passing: fc.Arbitrary<Passing> = fc.oneof(
  { weight: 8, arbitrary: fc.record({ us: fc.integer({ min: 0, max: 3000 }) }) },
  { weight: 1, arbitrary: fc.record({ us: fc.integer({ min: 0, max: 40_000_000 }) }) },
  { weight: 1, arbitrary: fc.record({ us: fc.integer({ min: -60_000_000, max: 0 }) }) },
  {
    weight: 3,
    arbitrary: fc.record({ toExpiryOf: fc.nat(20), us: fc.integer({ min: -1, max: 1 }) }),
  },
);

const choice: fc.Arbitrary<Choice> = fc.record({
  kind: fc.oneof(
    { weight: 12, arbitrary: fc.constant("acquire" as const) },
    { weight: 6, arbitrary: fc.constant("release" as const) },
    { weight: 5, arbitrary: fc.constant("renew" as const) },
    { weight: 3, arbitrary: fc.constant("adopt" as const) },
    { weight: 2, arbitrary: fc.constant("evict" as const) },
    { weight: 1, arbitrary: fc.constant("inspect" as const) },
    { weight: 1, arbitrary: fc.constantFrom("lost" as const, "extra" as const) },
  ),
  passes: passing,
  token: fc.oneof(fc.nat(3), fc.nat(TOKENS.length - 1)),
  other: fc.nat(TOKENS.length - 1),
  pick: fc.nat(20),
  isWrong: fc.oneof({ weight: 4, arbitrary: fc.constant(false) }, fc.boolean()),
  flag: fc.boolean(),
  capacity: fc.constantFrom(1, 1, 3, 3, 3, 1_000_000),
  permits: fc.constantFrom(1, 1, 2, 3, 1_000_000),
  ttlMs: fc.constantFrom(...TTLS_MS),
  spanMs: fc.constantFrom(0, 0, 1, 100, 10_000),
  label: fc.constantFrom(...LABELS),
});

/** Makes an event of a choice, by what the record holds at that moment. */
function toEvent(model: Model, chosen: Choice, lastUs: number, capacity: number): Event {
  const { record } = model;
  const entries = [...record.holders, ...record.tickets, ...record.spent];
  const target = "toExpiryOf" in chosen.passes && entries.length > 0
    ? entries[chosen.passes.toExpiryOf % entries.length]!.expiresAtMs * 1000
    : lastUs;
  const nowUs = Math.max(1, target + chosen.passes.us);
  if (chosen.kind === "lost") return { nowUs, lost: true };
  if (chosen.kind === "extra") {
    return model.put(nowUs, { ...record, extra: EXTRA[chosen.pick % EXTRA.length]! });
  }
  return { nowUs, command: toCommand(record, chosen, capacity) };
}

function toCommand(record: LeaseRecord, chosen: Choice, ofAll: number): Command {
  const { pick, ttlMs, spanMs, isWrong } = chosen;
  const holder: Holder | undefined = record.holders[pick % (record.holders.length || 1)];
  const isOfHolder = chosen.kind !== "acquire" && chosen.flag && !isWrong;
  const token = (isOfHolder ? holder?.token : undefined) ?? TOKENS[chosen.token]!;
  const fence = (record.holders.find((h) => h.token === token)?.fence ?? record.fence) +
    (isWrong ? pick - 10 : 0);
  switch (chosen.kind) {
    case "acquire": {
      const capacity = isWrong ? chosen.capacity : ofAll;
      const presumedDead = chosen.flag && holder && pick % 3 === 0
        ? [{ fence: 7, beats: 0 }, { fence: holder.fence, beats: holder.beats + (isWrong ? 1 : 0) }]
        : [];
      return {
        type: "acquire",
        token,
        permits: Math.min(chosen.permits, capacity),
        capacity,
        ttlMs,
        label: chosen.label,
        queueMs: spanMs,
        fair: chosen.flag,
        presumedDead,
      };
    }
    case "renew":
      return { type: "renew", token, fence: Math.max(0, fence), ttlMs };
    case "release":
      return { type: "release", token, keepMs: spanMs, spentMs: ttlMs };
    case "adopt":
      return {
        type: "adopt",
        token,
        fence: Math.max(0, fence),
        newToken: TOKENS[chosen.other]!,
        ttlMs,
      };
    case "evict": {
      const maxFence = Math.max(0, isWrong ? fence : record.fence);
      return { type: "evict", maxFence, fence: chosen.flag ? holder?.fence : undefined };
    }
    default:
      return { type: "inspect" };
  }
}

/** Runs choices through the model; the events are what the model made of them. */
function play(
  choices: readonly Choice[],
  startUs: number,
  capacity: number,
): { events: Event[]; seen: Seen[]; leftMs: number[] } {
  const model = new Model();
  const events: Event[] = [];
  const seen: Seen[] = [];
  const leftMs: number[] = [];
  let nowUs = startUs;
  for (const chosen of choices) {
    const event = toEvent(model, chosen, nowUs, capacity);
    nowUs = event.nowUs;
    events.push(event);
    seen.push(
      "put" in event
        ? { text: model.text, outcome: undefined, wake: undefined }
        : model.apply(event),
    );
    leftMs.push(model.leftMs(nowUs));
  }
  return { events, seen, leftMs };
}

await withService("redis", ({ test, service }) => {
  async function withRedis(run: (redis: Redis) => Promise<void>): Promise<void> {
    await using redis = connectIoredis(service().url);
    await run(redis);
  }

  /** Runs commands, one millisecond apart, on both; compares all that is to be seen. */
  async function compare(redis: Redis, commands: readonly Command[]): Promise<readonly Seen[]> {
    const model = new Model();
    const events = commands.map((command, i) => ({ nowUs: START_US + i * 1000, command }));
    const expected = events.map((event) => model.apply(event));
    const replies = await runScript(redis, events);
    assertEquals(replies.map((reply) => reply.seen), expected);
    return expected;
  }

  // covers: G1
  // covers: G2
  // covers: G4
  // covers: S3.2 S3.5 S3.6 S4.6 S4.13
  test("the script does what step does, over 2,000 random sequences of commands and clocks", () =>
    withRedis(async (redis) => {
      await fc.assert(
        fc.asyncProperty(
          fc.array(choice, { minLength: 1, maxLength: 60, size: "max" }),
          fc.constantFrom(START_US, START_US, 5000),
          fc.constantFrom(1, 1, 3, 3, 1_000_000),
          async (choices, startUs, capacity) => {
            const { events, seen, leftMs } = play(choices, startUs, capacity);
            const replies = await runScript(redis, events);
            for (const [i, event] of events.entries()) {
              const { seen: got, leftMs: left } = replies[i]!;
              assertEquals(got, seen[i], `event ${i}: ${JSON.stringify(event)}`);
              const wasWritten = "command" in event && got.text !== replies[i - 1]?.seen.text;
              // Redis may not forget a record early; a slow machine takes something off.
              if (wasWritten) assert(left > leftMs[i]! - 1000, `event ${i}: ${left}, ${leftMs[i]}`);
            }
          },
        ),
        { numRuns: 2000, interruptAfterTimeLimit: 120_000, markInterruptAsFailure: true },
      );
    }));

  test("the script forgets spent tokens as step does, when they are too many and when they expire", () =>
    withRedis(async (redis) => {
      const many = Array.from({ length: MAX_SPENT + 5 }, (_, i) => release(`token-${i}`));
      const short = (i: number) => ({ ...release(`short-${i}`), spentMs: 1 });
      const mixed = Array.from({ length: 40 }, (_, i) => i % 3 ? release(`long-${i}`) : short(i));
      for (const commands of [many, mixed]) {
        const seen = await compare(redis, commands);
        const longest = seen.map(({ text }) => decodeRecord(text!).spent.length);
        assertEquals(Math.max(...longest), MAX_SPENT);
      }
    }));

  // covers: G1
  test("the script takes 256 holders and 256 tickets and no more, as step does", () =>
    withRedis(async (redis) => {
      const shared = { capacity: 1000, label: "x".repeat(64), queueMs: 60_000 };
      const holders = Array.from(
        { length: MAX_ENTRIES + 1 },
        (_, i) => acquire(`holder-${i}`, shared),
      );
      const tickets = Array.from(
        { length: MAX_ENTRIES + 1 },
        (_, i) => acquire(`waiter-${i}`, { ...shared, permits: 900, fair: i % 2 === 0 }),
      );
      const after = [renew("holder-0", START_US), release("holder-9"), inspect, evict()];
      const seen = await compare(redis, [...holders, ...tickets, ...after]);
      const full = seen.filter(({ outcome }) => outcome?.type === "full");
      assertEquals(full.length, 2);
    }));

  // covers: G12
  test("the script refuses what the codec refuses, and leaves it as it is", () =>
    withRedis(async (redis) => {
      const commands: readonly Command[] = [
        acquire("own"),
        renew("own", 5),
        release("own"),
        adopt("own", 5, "new"),
        inspect,
        evict(),
      ];
      for (const text of FOREIGN_TEXTS) {
        assertThrows(() => decodeRecord(text), RangeError, undefined, JSON.stringify(text));
        for (const command of commands) {
          const events: Event[] = [{ nowUs: START_US, put: text }, { nowUs: START_US, command }];
          const [, { seen }] = await runScript(redis, events) as [unknown, { seen: Seen }];
          const expected = { text, outcome: undefined, wake: undefined };
          assertEquals(seen, expected, `${command.type} on ${JSON.stringify(text)}`);
        }
      }
    }));

  // covers: G12
  test("the script takes no record that was cut short", () =>
    withRedis(async (redis) => {
      const model = new Model();
      const shared = { capacity: 2, label: "é", queueMs: 60_000 };
      [acquire("aa", shared), acquire("bb", shared), acquire("cc", shared), release("bb")]
        .forEach((command) => model.apply({ nowUs: START_US, command }));
      model.put(START_US, { ...model.record, extra: ["x later"] });
      const text = model.text!;
      for (let end = 1; end < text.length; end++) {
        const cut = text.slice(0, end);
        const events: Event[] = [
          { nowUs: START_US, put: cut },
          { nowUs: START_US, command: inspect },
        ];
        const [, { seen }] = await runScript(redis, events) as [unknown, { seen: Seen }];
        assertEquals(seen.outcome, undefined, JSON.stringify(cut));
      }
    }));

  test("the script reads the server's clock in microseconds", () =>
    withRedis(async (redis) => {
      const name = uniqueName("time");
      const before = await microseconds(redis);
      const words = ["0", "", ...wordsOf(acquire("own"))];
      const reply = await redis.eval(LEASE_SCRIPT, 1, name, ...words);
      const after = await microseconds(redis);
      const outcome = outcomeOf(acquire("own"), reply);
      const fence = (outcome as Granted).fence;
      assert(before < fence && fence < after, `${before}, ${fence}, ${after}`);
    }));
});

async function microseconds(redis: Redis): Promise<number> {
  const [seconds, us] = await redis.time();
  return Number(seconds) * 1e6 + Number(us);
}

const H = `h own 5 1 1 1000 0 ${START_US} x`;

/** What is not a record of this version. */
const FOREIGN_TEXTS = [
  "",
  "\n",
  "not ours",
  "holdfast",
  "holdfast 1 5",
  "holdfast 1 \n.\n",
  "holdfast 1 -5\n.\n",
  "holdfast 1 5 6\n.\n",
  "holdfast 2 5\n",
  "holdfast 11 5\n",
  " holdfast 1 5\n.\n",
  "holdfast 1 5\n\n.\n",
  "holdfast 1 5\nh own\n.\n",
  "holdfast 1 5\nh own 5 1 1 1000 0 x label\n.\n",
  "holdfast 1 5\nh own 5 1 1 1000 0 7\n.\n",
  "holdfast 1 5\n",
  "holdfast 1 5\n.",
  "holdfast 1 5\n.\n.\n",
  "holdfast 1 5\n.x\n.\n",
  "holdfast 1 5\n.\nx later\n.\n",
  `holdfast 1 5\n${H}`,
  `holdfast 1 5\n${H}\n`,
  `holdfast 1 5\n${H}\n \n.\n`,
  `holdfast 1 5\n${H}\u0007\n.\n`,
  "holdfast 1 5\nt own 1 2 9\n.\n",
  "holdfast 1 5\nt own 1 0\n.\n",
  "holdfast 1 5\ns own released\n.\n",
  "holdfast 1 5\ns own released x\n.\n",
  "holdfast 1 5\ns own released 9",
  "holdfast 1 5\nX later\n.\n",
  "holdfast 1 5\nlater\n.\n",
  `holdfast 1 5\nx ${"y".repeat(2048)}\n.\n`,
  "holdfast 1 99999999999999999999\n.\n",
  '{"holder":"somebody"}',
];
