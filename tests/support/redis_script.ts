/**
 * Runs the Redis script and `step` side by side, on one real Redis, by a clock that the test sets.
 *
 * @module
 */
import type { Redis } from "ioredis";
import { encodeRecord, lastExpiryMs } from "../../src/core/codec.ts";
import {
  type Command,
  EMPTY_RECORD,
  type LeaseRecord,
  type Outcome,
  step,
} from "../../src/core/record.ts";
import { waiterMark } from "../../src/core/storage.ts";
import { mayWake, outcomeOf, wordsOf } from "../../src/storage/_redis_command.ts";
import { LEASE_BODY } from "../../src/storage/redis_script.ts";

/** What happens to the record of a lock: a command, an eviction, or a text put there by another version. */
export type Event =
  | { readonly nowUs: number; readonly command: Command }
  | { readonly nowUs: number; readonly lost: true }
  | { readonly nowUs: number; readonly put: string };

/** What is to be seen after an event; `undefined` where there is nothing stored. */
export interface Seen {
  readonly text: string | undefined;
  readonly outcome: Outcome | undefined;
  /** The mark of the waiter that was woken. */
  readonly wake: string | undefined;
}

export const RETENTION_MS = 100_000;

/**
 * The body of the script, verbatim, once for each event: with the event's words as its ARGV, the event's
 * time as its time, and a PUBLISH that is noted before it is sent.
 */
function harness(body: string): string {
  return `
local real, replies = redis, {}
for _, words in ipairs(cjson.decode(ARGV[1])) do
  local now_us, woken = tonumber(table.remove(words, 1)), ''
  local reply = 'none'
  if words[1] == 'lost' then
    real.call('DEL', KEYS[1])
  elseif words[1] == 'put' then
    real.call('SET', KEYS[1], words[2])
  else
    local redis = { call = real.call, pcall = function(name, ...)
      if name == 'PUBLISH' then woken = select(2, ...) end
      return real.pcall(name, ...)
    end }
    local ARGV = words
    reply = (function() ${body} end)()
  end
  replies[#replies + 1] = { reply, woken, real.call('GET', KEYS[1]), real.call('PTTL', KEYS[1]) }
end
real.call('DEL', KEYS[1])
return replies`;
}

/** One reply of the harness. */
interface Reply {
  readonly seen: Seen;
  /** In how many milliseconds Redis may forget the record; negative where it never does, or has. */
  readonly leftMs: number;
}

/** Sends events to the script. */
export async function runScript(
  redis: Redis,
  events: readonly Event[],
  body: string = LEASE_BODY,
): Promise<Reply[]> {
  const words = events.map((event) => {
    const now = String(event.nowUs);
    if ("lost" in event) return [now, "lost"];
    if ("put" in event) return [now, "put", event.put];
    return [now, String(RETENTION_MS), "channel", ...wordsOf(event.command)];
  });
  const replies = await redis.eval(harness(body), 1, "fuzz", JSON.stringify(words)) as [
    unknown,
    string,
    string | null,
    number,
  ][];
  return replies.map(([reply, woken, text, leftMs], i) => {
    const event = events[i]!;
    const outcome = "command" in event ? outcomeOf(event.command, reply) : undefined;
    return { seen: { text: text ?? undefined, outcome, wake: woken || undefined }, leftMs };
  });
}

/** The model: `step`, and the text that a storage would have. */
export class Model {
  record: LeaseRecord = EMPTY_RECORD;
  text: string | undefined;

  apply(event: Event): Seen {
    if ("lost" in event) {
      this.record = EMPTY_RECORD;
      this.text = undefined;
      return { text: undefined, outcome: undefined, wake: undefined };
    }
    if ("put" in event) throw new TypeError("Use put(record)");
    const { record, outcome, wake } = step(this.record, event.command, event.nowUs);
    if (record !== this.record) this.text = encodeRecord(record);
    this.record = record;
    if (wake !== undefined && !mayWake(event.command)) {
      throw new Error(`A ${event.command.type} woke somebody without a channel`);
    }
    return { text: this.text, outcome, wake: wake === undefined ? undefined : waiterMark(wake) };
  }

  /** Another version of the library writes. */
  put(nowUs: number, record: LeaseRecord): Event {
    this.record = record;
    this.text = encodeRecord(record);
    return { nowUs, put: this.text };
  }

  /** For how long the record has to stay, in milliseconds. */
  leftMs(nowUs: number): number {
    return lastExpiryMs(this.record) + RETENTION_MS - Math.floor(nowUs / 1000);
  }
}
