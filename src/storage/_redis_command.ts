/**
 * Commands and outcomes as the script of `redis_script.ts` takes and gives them, and where a lock lives.
 *
 * @module
 */
import type { Command, HolderView, Outcome, OutcomeOf, Refusal } from "../core/record.ts";
import { sha1Hex } from "./_sha1.ts";

/**
 * The part of a lock's key that decides its slot on a cluster: the name, percent-encoded so that no
 * brace in it ends the tag, in braces.
 *
 * @param name the lock
 * @returns the hash tag
 */
export function hashTagOf(name: string): string {
  return `{${encodeURIComponent(name)}}`;
}

/**
 * Where a lock lives.
 *
 * @param prefix the storage's prefix
 * @param name the lock
 * @returns its key
 */
export function keyOf(prefix: string, name: string): string {
  return `${prefix}:${hashTagOf(name)}`;
}

/**
 * What the channels of a lock's waiters begin with: each has its own, so that a release disturbs nobody but the
 * one who is next. Hashed, because the REST client puts a channel into a path as it is.
 *
 * @param prefix the storage's prefix
 * @param name the lock
 * @returns the first part of their channels
 */
export function channelOf(prefix: string, name: string): string {
  return `${prefix}:${sha1Hex(keyOf(prefix, name))}`;
}

/**
 * Where one waiter listens.
 *
 * @param channel what {@linkcode channelOf} gives
 * @param mark the waiter's mark
 * @returns its channel
 */
export function waiterChannelOf(channel: string, mark: string): string {
  return `${channel}:${mark}`;
}

/**
 * Whether a command can make room for somebody who waits, so that it has to be told the channel.
 *
 * @param command the command
 * @returns false if `step` never wakes anybody after it
 */
export function mayWake(command: Command): boolean {
  return command.type === "release" || command.type === "evict" ||
    (command.type === "acquire" && command.capacity > 1);
}

/**
 * Writes a command as arguments of the script, after the retention and the channel.
 *
 * @param command the command
 * @returns its words
 */
export function wordsOf(command: Command): string[] {
  switch (command.type) {
    case "acquire": {
      const { type, token, permits, capacity, ttlMs, label, queueMs, fair } = command;
      const dead = command.presumedDead.flatMap((d) => [d.fence, d.beats]);
      return [type, token, permits, capacity, ttlMs, label, queueMs, fair ? 1 : 0, ...dead]
        .map(String);
    }
    case "renew":
      return [command.type, command.token, `${command.fence}`, `${command.ttlMs}`];
    case "release":
      return [command.type, command.token, `${command.keepMs}`, `${command.spentMs}`];
    case "adopt":
      return [
        command.type,
        command.token,
        `${command.fence}`,
        `${command.ttlMs}`,
        command.newToken,
      ];
    case "inspect":
      return [command.type];
    case "evict":
      return [command.type, `${command.maxFence}`, `${command.fence ?? ""}`];
  }
}

/** What the script answers where there is no record of ours; nothing was changed. */
export const FOREIGN = "foreign";

/**
 * Reads the script's reply. Clients hand over its words as strings and its numbers as numbers, or as
 * strings where they are set so.
 *
 * @param command what was asked
 * @param reply what the client gave
 * @returns the outcome; undefined if this is no answer of the script
 */
export function outcomeOf<C extends Command>(command: C, reply: unknown): OutcomeOf<C> | undefined {
  if (!Array.isArray(reply)) return undefined;
  const [type, ...values] = reply.map(String);
  const outcome = toOutcome(`${command.type} ${type}`, values, values.map(Number));
  const isWhole = outcome &&
    Object.values(outcome).every((value) =>
      typeof value !== "number" || Number.isSafeInteger(value)
    );
  return isWhole ? outcome as OutcomeOf<C> : undefined;
}

function toOutcome(
  answer: string,
  values: readonly string[],
  [first = NaN, second = NaN]: readonly number[],
): Outcome | undefined {
  switch (answer) {
    case "acquire granted":
    case "adopt granted":
      return { type: "granted", fence: first };
    case "acquire held":
      return { type: "held", retryAfterMs: first, ahead: second };
    case "acquire full":
      return { type: "full", retryAfterMs: first };
    case "acquire spent":
      return { type: "spent" };
    case "acquire capacity-mismatch":
      return { type: "capacity-mismatch", capacity: first };
    case "renew renewed":
      return { type: "renewed" };
    case "renew refused":
    case "adopt refused":
      return { type: "refused", reason: values[0] as Refusal };
    case "release released":
      return { type: "released", freed: first === 1 };
    case "inspect inspected":
      return { type: "inspected", fence: first, waiters: second, holders: views(values.slice(2)) };
    case "evict evicted":
      return { type: "evicted", count: first };
  }
  return undefined;
}

function views(values: readonly string[]): HolderView[] {
  const holders: HolderView[] = [];
  for (let i = 0; i + 3 < values.length; i += 4) {
    const [fence, permits, remainingMs, label] = values.slice(i, i + 4);
    holders.push({
      fence: Number(fence),
      label: label!.slice(1),
      permits: Number(permits),
      remainingMs: Number(remainingMs),
    });
  }
  return holders;
}
