/**
 * The record machine in Lua: one script that does to one key what `step` of `core/record.ts` does to a
 * record, by the server's clock. The rules stand in `record.ts`; a number in a comment is the rule of
 * DESIGN.md section 3 that is meant. `redis_script_test.ts` drives both with the same random commands and
 * compares the stored text, the outcome and the wake-up after each.
 *
 * ```text
 * KEYS[1]  the lock
 * ARGV     RETENTION_MS CHANNEL command ...
 *          acquire TOKEN PERMITS CAPACITY TTL_MS LABEL QUEUE_MS FAIR (FENCE BEATS)...
 *          renew   TOKEN FENCE TTL_MS
 *          release TOKEN KEEP_MS SPENT_MS
 *          adopt   TOKEN FENCE TTL_MS NEW_TOKEN
 *          inspect
 *          evict   MAX_FENCE FENCE            FENCE empty for all
 * reply    the outcome's type and its numbers; labels begin with "=", so that no client takes one for
 *          JSON; "foreign" if what is stored is not a record of ours, which is then left as it is
 * ```
 *
 * Commands inside the script: TIME and GET, and SET if the record changes; PUBLISH where there is room now
 * for somebody who waits. Most comments are out here, because they would be sent along in there.
 *
 * @module
 */
import { FRESH, MAX_ENTRIES, MAX_SPENT } from "../core/record.ts";

/** Takes the time from the server: microseconds since the epoch, an exact integer in a Lua number. */
export const SERVER_TIME = `
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
`;

/**
 * Reads what is stored, as codec.ts states it, and refuses what is not ours. An entry is live until its
 * expiry (1); expiries are rounded up to the next millisecond, so that none is early (6).
 *
 * Numbers stay text until they are compared or counted with, and become text again by themselves, which is
 * exact up to 14 digits: a fence has 16, and an instant has 15 from the year 5138 on. Spent tokens stay text
 * altogether, because most records carry ${MAX_SPENT} of them; what is taken is their last expiry, by its 13
 * digits (until 2286), as a pattern for the whole line would cost three times as much. Lines of a later minor
 * version follow them and are kept.
 */
const READ = `
local key, retention_ms, channel, command, token = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ceil, floor, max, min, huge = math.ceil, math.floor, math.max, math.min, math.huge
local byte, find, match, sub, format =
  string.byte, string.find, string.match, string.sub, string.format
local now_ms = ceil(now_us / 1000)

local text = redis.pcall('GET', key)
if type(text) == 'table' then return text end
text = text or 'holdfast 1 0\\n.\\n'
local fence, at = match(text, '^holdfast 1 (%d+)\\n()')
if not at or sub(text, -3) ~= '\\n.\\n' then return { 'foreign' } end
fence = tonumber(fence)
local last_ms = ceil(fence / 1000)

local holders = {}
while byte(text, at) == 104 do -- h
  local holder, fence, permits, capacity, ttl, beats, expires, label, next_at =
    match(text, '^h ([%w-]+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([^%c]*)\\n()', at)
  if not holder then return { 'foreign' } end
  expires = tonumber(expires)
  holders[#holders + 1] = {
    token = holder, fence = fence, permits = permits, capacity = capacity, ttl = ttl,
    beats = beats, expires = expires, label = label,
    is_live = now_us < expires * 1000, from = at, to = next_at - 1,
  }
  if expires > last_ms then last_ms = expires end
  at = next_at
end

local tickets = {}
while byte(text, at) == 116 do -- t
  local waiter, permits, fair, expires, next_at =
    match(text, '^t ([%w-]+) (%d+) ([01]) (%d+)\\n()', at)
  if not waiter then return { 'foreign' } end
  expires = tonumber(expires)
  tickets[#tickets + 1] = {
    token = waiter, permits = permits, fair = fair, expires = expires,
    is_live = now_us < expires * 1000, from = at, to = next_at - 1,
  }
  if expires > last_ms then last_ms = expires end
  at = next_at
end

local spent_at, spent_count = at, 0
while byte(text, at) == 115 do -- s
  local stop = find(text, '\\n', at, true)
  local expires = stop and (tonumber(sub(text, stop - 13, stop - 1))
    or tonumber(match(text, '^s [^ ]+ %l+ (%d+)\\n', at)))
  if not expires then return { 'foreign' } end
  if expires > last_ms then last_ms = expires end
  spent_count, at = spent_count + 1, stop + 1
end

local extra_at = at
while byte(text, at) ~= 46 do -- .
  at = match(text, '^[a-gi-ru-z] [^%c]*\\n()', at)
  if not at then return { 'foreign' } end
end
if at ~= #text - 1 or at - extra_at > 2048 or last_ms >= 1e14 then return { 'foreign' } end
`;

/**
 * What the commands share. Besides its outcome a command decides whether the record is changed, and for
 * somebody who holds; which tokens are over; and whether there may be room now.
 *
 * `spent_end` says how a token ended, if it is over (8). `prolong` never moves an expiry back, nor the end
 * of the span that observers wait for (6). `next_fence` is a hybrid logical clock (4). `refuse` says what
 * became of a holding that is not there (7).
 */
const SHARED = `
local is_changed, is_holding, may_have_room = false, false, false
local over, over_count = '', 0

local function spent_end(token)
  local needle, from, stop = '\\ns ' .. token .. ' ', spent_at - 1, nil
  while true do
    from, stop = find(text, needle, from, true)
    if not from then return nil end
    local how, expires = match(text, '^(%l+) (%d+)', stop + 1)
    if now_us < expires * 1000 then return how end
    from = stop
  end
end

local function spend(token, how, span_ms)
  local expires = now_ms + span_ms
  over = over .. 's ' .. token .. ' ' .. how .. ' ' .. expires .. '\\n'
  over_count, last_ms = over_count + 1, max(last_ms, expires)
end

local function live_holder(token, fence)
  for i = 1, #holders do
    local h = holders[i]
    if h.token == token and h.is_live and (not fence or h.fence == fence) then return h end
  end
end

local function prolong(holder, ttl)
  local left_ms = holder.expires - floor(now_us / 1000)
  holder.ttl = max(ttl, min(holder.ttl, left_ms))
  holder.beats = holder.beats + 1
  holder.expires = max(holder.expires, now_ms + ttl)
  holder.from = nil
  is_changed, is_holding = true, true
end

local function next_fence()
  fence = max(fence + 1, now_us)
  return format('%.0f', fence)
end

local function refuse(was_fence)
  local how, here = spent_end(token), nil
  for i = 1, #holders do
    if holders[i].token == token then here = holders[i] break end
  end
  local reason = 'expired'
  if how == 'adopted' or (here and here.fence ~= was_fence) then reason = 'superseded'
  elseif how then reason = 'evicted'
  elseif not here and fence > tonumber(was_fence) then reason = 'superseded' end
  return { 'refused', reason }
end
`;

/**
 * A token that is over grants nothing (8); one that holds is granted again (2). Otherwise there must be room
 * beside the live holders that the caller has not seen die (10), and no live fair ticket ahead (3). Who must
 * wait changes no holder and may keep a place in the queue (5). A record has room for ${MAX_ENTRIES} of
 * each (11).
 */
const ACQUIRE = `
local function acquire()
  local permits, capacity, ttl, label = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
  local queue_ms, fair = tonumber(ARGV[9]), ARGV[10]
  if spent_end(token) then return { 'spent' } end
  local again = live_holder(token)
  if again then
    prolong(again, ttl)
    return { 'granted', tonumber(again.fence) }
  end

  local dead = {}
  for i = 11, #ARGV, 2 do dead[ARGV[i] .. ' ' .. ARGV[i + 1]] = true end
  local live, used, first = {}, 0, huge
  for i = 1, #holders do
    local h = holders[i]
    if h.is_live and not dead[h.fence .. ' ' .. h.beats] then
      if h.capacity ~= capacity then return { 'capacity-mismatch', tonumber(h.capacity) } end
      live[#live + 1], used, first = h, used + h.permits, min(first, h.expires)
    end
  end

  local queue, others, place = {}, {}, nil
  for i = 1, #tickets do
    local t = tickets[i]
    if t.is_live then
      queue[#queue + 1] = t
      if t.token ~= token then others[#others + 1] = t
      elseif not place then place = #queue end
    end
  end
  local ahead = place and place - 1 or #queue
  local must_wait = used + permits > tonumber(capacity)
  for i = 1, ahead do
    if queue[i].fair == '1' then must_wait, first = true, min(first, queue[i].expires) end
  end

  local retry_ms = ceil((first * 1000 - now_us) / 1000)
  if must_wait then
    if queue_ms > 0 then
      if not place and #queue >= ${MAX_ENTRIES} then return { 'full', retry_ms } end
      local expires, old = now_ms + queue_ms, place and queue[place]
      if not old or old.fair ~= fair or expires - old.expires > queue_ms / ${FRESH} then
        queue[place or #queue + 1] = { token = token, permits = permits, fair = fair, expires = expires }
        tickets, is_changed = queue, true
      end
    end
    return { 'held', retry_ms, ahead }
  end
  if #live >= ${MAX_ENTRIES} then return { 'full', retry_ms } end
  live[#live + 1] = {
    token = token, fence = next_fence(), permits = permits, capacity = capacity, ttl = ttl,
    beats = 0, expires = now_ms + ttl, label = label, is_live = true,
  }
  holders, tickets, is_changed, may_have_room = live, others, true, true
  return { 'granted', fence }
end
`;

/** Acts only on the live holder with that token and fence (7). */
const RENEW = `
local function renew()
  local was_fence, ttl = ARGV[5], ARGV[6]
  local holder = live_holder(token, was_fence)
  if not holder then return refuse(was_fence) end
  prolong(holder, ttl)
  return { 'renewed' }
end
`;

/** Spends the token, whether or not it held; min-hold leaves a holder without a token (8). */
const RELEASE = `
local function release()
  local keep_ms, spent_ms = tonumber(ARGV[5]), ARGV[6]
  local how = spent_end(token)
  if how then return { 'released', how == 'released' and 1 or 0 } end

  local holder, others, waiting = nil, {}, {}
  for i = 1, #holders do
    local h = holders[i]
    if not holder and h.token == token then holder = h else others[#others + 1] = h end
  end
  for i = 1, #tickets do
    local t = tickets[i]
    if t.is_live and t.token ~= token then waiting[#waiting + 1] = t end
  end
  local freed = holder and holder.is_live
  if freed and keep_ms > 0 then
    holder.token, holder.ttl, holder.beats = '-', keep_ms, holder.beats + 1
    holder.expires, holder.from = now_ms + keep_ms, nil
    others[#others + 1] = holder
  end
  spend(token, freed and 'released' or 'unheld', spent_ms)
  holders, tickets, is_changed, is_holding, may_have_room = others, waiting, true, true, true
  return { 'released', freed and 1 or 0 }
end
`;

/** Replaces token and fence, once (9). */
const ADOPT = `
local function adopt()
  local was_fence, ttl, new_token = ARGV[5], ARGV[6], ARGV[7]
  local again = live_holder(new_token)
  if again then
    prolong(again, ttl)
    return { 'granted', tonumber(again.fence) }
  end
  local holder = live_holder(token, was_fence)
  if not holder or spent_end(new_token) then return refuse(was_fence) end
  prolong(holder, ttl)
  holder.token, holder.fence, holder.beats = new_token, next_fence(), 0
  spend(token, 'adopted', ttl)
  return { 'granted', fence }
end
`;

/** Says what there is to see, and no token. */
const INSPECT = `
local function inspect()
  local waiters = 0
  for i = 1, #tickets do
    if tickets[i].is_live then waiters = waiters + 1 end
  end
  local seen = { 'inspected', fence, waiters }
  for i = 1, #holders do
    local h = holders[i]
    if h.is_live then
      seen[#seen + 1], seen[#seen + 2] = tonumber(h.fence), tonumber(h.permits)
      seen[#seen + 1], seen[#seen + 2] = ceil((h.expires * 1000 - now_us) / 1000), '=' .. h.label
    end
  end
  return seen
end
`;

/** Removes holdings up to the fence that was seen, and spends their tokens (7). */
const EVICT = `
local function evict()
  local max_fence, only = tonumber(ARGV[4]), ARGV[5]
  local others, live = {}, 0
  for i = 1, #holders do
    local h = holders[i]
    if tonumber(h.fence) <= max_fence and (only == '' or h.fence == only) then
      if h.is_live then live = live + 1 end
      if h.token ~= '-' then spend(h.token, 'evicted', h.ttl) end
      is_changed, is_holding, may_have_room = true, true, true
    else
      others[#others + 1] = h
    end
  end
  holders = others
  return { 'evicted', live }
end
`;

/**
 * Writes the record. Spent tokens are forgotten from the oldest on, if they have expired or are too many (8).
 * The record may go RETENTION_MS after its last expiry, or after the instant in its fence (4).
 *
 * With maxmemory and noeviction Redis looks at the memory only before a script's first write, so that what is
 * meant for somebody who holds passes behind a PEXPIRE. Where a quota refuses that, too, a release of the
 * last holder still lets go: the next fence is larger by the clock (4).
 */
const WRITE = `
local lines, is_taken = { format('holdfast 1 %.0f\\n', fence) }, false
for i = 1, #holders do
  local h = holders[i]
  lines[#lines + 1] = h.from and sub(text, h.from, h.to)
    or 'h ' .. h.token .. ' ' .. h.fence .. ' ' .. h.permits .. ' ' .. h.capacity .. ' ' .. h.ttl
      .. ' ' .. h.beats .. ' ' .. h.expires .. ' ' .. h.label .. '\\n'
  last_ms, is_taken = max(last_ms, h.expires), is_taken or h.is_live
end
for i = 1, #tickets do
  local t = tickets[i]
  lines[#lines + 1] = t.from and sub(text, t.from, t.to)
    or 't ' .. t.token .. ' ' .. t.permits .. ' ' .. t.fair .. ' ' .. t.expires .. '\\n'
  last_ms = max(last_ms, t.expires)
end
if may_have_room and command ~= 'acquire' or over ~= '' then
  local spent, from = sub(text, spent_at, extra_at - 1) .. over, 1
  spent_count = spent_count + over_count
  while spent_count > 0 do
    local expires, next_from = match(spent, '^s [^ ]+ %l+ (%d+)\\n()', from)
    if spent_count <= ${MAX_SPENT} and now_us < expires * 1000 then break end
    spent_count, from = spent_count - 1, next_from
  end
  lines[#lines + 1] = sub(spent, from)
  lines[#lines + 1] = sub(text, extra_at)
else
  lines[#lines + 1] = sub(text, spent_at)
end
local value = table.concat(lines)
last_ms = max(last_ms, ceil(fence / 1000))
local px = max(last_ms + retention_ms - floor(now_us / 1000), 1)

local reply = redis.pcall('SET', key, value, 'PX', px)
if reply.err and is_holding then
  redis.pcall('PEXPIRE', key, px)
  reply = redis.pcall('SET', key, value, 'PX', px)
end
if reply.err and command == 'release' and not is_taken and fence < now_us then
  reply = redis.pcall('DEL', key)
end
if type(reply) == 'table' and reply.err then return reply end
`;

/**
 * Names the first waiter, if it fits now. A user without rights on the channel must not get an error after
 * the write.
 */
const WAKE = `
if may_have_room and channel ~= '' and #tickets > 0 then
  local used, capacity = 0, nil
  for i = 1, #holders do
    local h = holders[i]
    if h.is_live then used, capacity = used + h.permits, capacity or tonumber(h.capacity) end
  end
  for i = 1, #tickets do
    local t = tickets[i]
    if now_us < t.expires * 1000 then
      if used + t.permits <= (capacity or huge) then
        local mark = sub(t.token, 1, 8)
        redis.pcall('PUBLISH', channel .. ':' .. mark, mark)
      end
      break
    end
  end
end
`;

/** Everything but the time: expects a local `now_us`. Lua makes a function each time it is met: one is. */
export const LEASE_BODY: string = `${READ}${SHARED}
local outcome
if command == 'acquire' then ${ACQUIRE} outcome = acquire()
elseif command == 'renew' then ${RENEW} outcome = renew()
elseif command == 'release' then ${RELEASE} outcome = release()
elseif command == 'adopt' then ${ADOPT} outcome = adopt()
elseif command == 'inspect' then ${INSPECT} outcome = inspect()
elseif command == 'evict' then ${EVICT} outcome = evict()
end
if not is_changed then return outcome end
${WRITE}${WAKE}
return outcome
`;

/** The script as it is sent. */
export const LEASE_SCRIPT: string = SERVER_TIME + LEASE_BODY;
