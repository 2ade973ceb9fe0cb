/**
 * Commands of the user's own that run only under a live lease (DESIGN.md, section 8).
 *
 * @module
 */
import { backoffMs } from "../core/backoff.ts";
import { sleep, systemClock } from "../core/clock.ts";
import { systemEntropy } from "../core/entropy.ts";
import { StaleFenceError, StorageError } from "../core/errors.ts";
import type { Fenced } from "../core/lease.ts";
import type { PollMs } from "../core/storage.ts";
import { FOREIGN, keyOf } from "./_redis_command.ts";
import { errorOf } from "./_redis_errors.ts";
import { runCalls, type ScriptCall, scriptOf, type SendCalls } from "./_redis_run.ts";
import { checkPrefix } from "./_redis_storage.ts";
import { SERVER_TIME } from "./redis_script.ts";

/** A command: its name and its arguments. */
export type FencedCommand = readonly [name: string, ...args: (string | number)[]];

/** What Redis replies, as far as a script sees it: an integer, a text, nothing, or a list. */
export type FencedReply = number | string | null | FencedReply[];

/** Options of `fencedExec`. */
export interface FencedExecOptions {
  /**
   * Every key that the commands touch. On a cluster each needs the lock's hash tag, which the storage's
   * `hashTag(name)` gives.
   */
  readonly keys: readonly string[];
  /**
   * What the storage's keys begin with; taken from the storage where that is given.
   *
   * @default {"holdfast"}
   */
  readonly prefix?: string | undefined;
  /** Ends the wait between two tries. */
  readonly signal?: AbortSignal | undefined;
}

/** How long after the lease's expiry a resend is still recognised, at least. */
const NONCE_MS = 60_000;

/** How often a call is sent whose outcome nobody knows; the nonce makes that harmless. */
const TRIES = 3;

const RETRY_MS: PollMs = { min: 50, max: 500 };

/**
 * ```text
 * KEYS[1]  the lock    KEYS[2]  the nonce    KEYS[3..]  the user's
 * ARGV     TOKEN FENCE (COUNT word...)...
 * reply    "ran", "=" and JSON: [replies] or [replies so far, index, error]; or "stale"; or "foreign"
 * ```
 *
 * The answer is JSON made here, because clients disagree on what they make of nested replies; it is kept
 * under the nonce and given again to a resend. Before the first command the nonce is written without an
 * answer: if memory is short, that is what fails.
 */
const FENCE_BODY = `
local known = redis.pcall('GET', KEYS[2])
if type(known) == 'table' then return known end
if known then return { 'ran', known } end

local text = redis.pcall('GET', KEYS[1])
if type(text) == 'table' then return text end
if not text then return { 'stale' } end
local is_ours = string.find(text, '^holdfast 1 %d+\\n') and string.sub(text, -3) == '\\n.\\n'
if not is_ours then return { '${FOREIGN}' } end
local _, at = string.find(text, '\\nh ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ', 1, true)
if not at then return { 'stale' } end
local ttl_ms, expires_ms = string.match(text, '^%d+ %d+ (%d+) %d+ (%d+) ', at + 1)
if not expires_ms then return { '${FOREIGN}' } end
if now_us >= expires_ms * 1000 then return { 'stale' } end

local left_ms = expires_ms - math.floor(now_us / 1000)
local keep_ms = string.format('%.0f', left_ms + math.max(ttl_ms, ${NONCE_MS}))
local kept = redis.pcall('SET', KEYS[2], '=', 'PX', keep_ms)
if kept.err then return kept end

local function json(reply)
  if type(reply) == 'number' then return string.format('%.0f', reply) end
  if type(reply) == 'table' and reply.ok then reply = reply.ok end
  if type(reply) == 'string' then
    return '"' .. string.gsub(reply, '[%c"\\\\]', function(c)
      return string.format('\\\\u%04x', string.byte(c))
    end) .. '"'
  end
  if type(reply) ~= 'table' then return 'null' end
  local items = {}
  for i = 1, #reply do items[i] = json(reply[i]) end
  return '[' .. table.concat(items, ',') .. ']'
end

local replies, failure, at = {}, '', 3
while ARGV[at] do
  local count = tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, at + count))
  if type(reply) == 'table' and reply.err then
    failure = ',' .. #replies .. ',' .. json(reply.err)
    break
  end
  replies[#replies + 1] = json(reply)
  at = at + 1 + count
end
local answer = '=[[' .. table.concat(replies, ',') .. ']' .. failure .. ']'
redis.pcall('SET', KEYS[2], answer, 'PX', keep_ms)
return { 'ran', answer }
`;

const FENCE = scriptOf(SERVER_TIME + FENCE_BODY);

/**
 * Runs commands under a lease; see `fencedExec`.
 *
 * @param send the client
 * @param lease whose holding has to be in the record
 * @param commands what to run
 * @param options keys, prefix, signal
 * @returns the replies, in order
 */
export async function runFenced(
  send: SendCalls,
  lease: Fenced,
  commands: readonly FencedCommand[],
  options: FencedExecOptions,
): Promise<FencedReply[]> {
  const key = keyOf(checkPrefix(options.prefix), lease.name);
  const call: ScriptCall = {
    script: FENCE,
    keys: [key, `${key}:exec:${systemEntropy.uuid()}`, ...options.keys],
    args: [
      lease.token,
      String(lease.fencingToken),
      ...commands.flatMap((command) => [String(command.length), ...command.map(String)]),
    ],
  };
  for (let tries = 1;; tries++) {
    options.signal?.throwIfAborted();
    const [result] = await runCalls(send, [call]);
    const answer = result!.status === "fulfilled" ? result!.value : undefined;
    const [how, json] = Array.isArray(answer) ? answer : [];
    if (how === "ran") return repliesOf(key, String(json));
    if (how === "stale") throw stale(lease);
    const error = errorOf(key, result!);
    if (!error.transient || tries === TRIES) throw error;
    const ms = backoffMs(tries, RETRY_MS, systemEntropy.random());
    await sleep(systemClock, ms, { keepAlive: true, signal: options.signal });
  }
}

function repliesOf(key: string, answer: string): FencedReply[] {
  if (answer === "=") {
    throw new StorageError(
      `Cannot use key "${key}" as nobody knows what became of the commands under it`,
      { transient: false },
    );
  }
  const [replies, index, text] = JSON.parse(answer.slice(1)) as [FencedReply[], number?, string?];
  if (index === undefined) return replies;
  throw new StorageError(
    `Cannot run command ${index} under key "${key}" as Redis refused: ${text}`,
    { transient: false, index, cause: new Error(text) },
  );
}

function stale({ name, fencingToken: fence }: Fenced): StaleFenceError {
  return new StaleFenceError(
    `Cannot run commands under lock "${name}" as this holding of it is over: ` +
      `current value is fence ${fence}`,
    { fence },
  );
}
