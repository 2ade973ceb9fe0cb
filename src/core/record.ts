/**
 * Who may hold a lock, and why: all coordination state of one lock is one {@linkcode LeaseRecord},
 * and one pure function, {@linkcode step}, moves it. Every storage runs this machine (the Redis
 * script is proven equal to it), so the rules stand here and nowhere else:
 *
 * 1. A holding is live iff `now < expiresAtMs`. What is not live is ignored; a grant drops it.
 * 2. `acquire` is idempotent: a token that already holds is granted again, with the same fence.
 * 3. A grant needs room for its permits and no live fair ticket ahead of it.
 * 4. Fences rise with every grant, by themselves also after the record was lost (a hybrid logical
 *    clock, Kulkarni et al. 2014).
 * 5. Contenders never change a holder's expiry.
 * 6. Expiry never moves back, so a late duplicate of an older request harms nothing.
 * 7. `renew` and `adopt` need the live holder's token and fence, `release` its token.
 * 8. `release` spends the token: a resend that lands after it grants nothing.
 *
 * @module
 */

/** One holding of a lock. */
export interface Holder {
  /** The secret identity of the holding; `null` where permits are only kept (min-hold). */
  readonly token: string | null;
  /** The fencing token of the grant. */
  readonly fence: number;
  /** How many permits the holding takes. */
  readonly permits: number;
  /** The lock's capacity as this holder understood it. */
  readonly capacity: number;
  /** For how long an observer must see the holding unchanged before it is dead, in milliseconds. */
  readonly ttlMs: number;
  /** Counts renewals, so that every renewal changes the record. */
  readonly beats: number;
  /** When the holding ends, in milliseconds since the epoch by the storage's clock. */
  readonly expiresAtMs: number;
  /** What the holder calls itself. */
  readonly label: string;
}

/** A waiter's place in the queue. */
export interface Ticket {
  /** The token that the waiter will hold under. */
  readonly token: string;
  /** How many permits it waits for. */
  readonly permits: number;
  /** Whether those behind it must wait for it. */
  readonly fair: boolean;
  /** When the place is lost unless refreshed, in milliseconds since the epoch. */
  readonly expiresAtMs: number;
}

/** A token that is over, and how it ended. */
export interface Spent {
  /** The token. */
  readonly token: string;
  /** `unheld`: it was released without holding. */
  readonly end: "released" | "unheld" | "evicted" | "adopted";
  /** When it may be forgotten, in milliseconds since the epoch. */
  readonly expiresAtMs: number;
}

/** The state of one lock. */
export interface LeaseRecord {
  /** The last fencing token granted, 0 before the first. */
  readonly fence: number;
  /** In order of grant. */
  readonly holders: readonly Holder[];
  /** First come, first in line. */
  readonly tickets: readonly Ticket[];
  /** Oldest first. */
  readonly spent: readonly Spent[];
  /** Lines of the stored text that this version does not know; kept as they are. */
  readonly extra: readonly string[];
}

/** A holding as an observer last saw it. */
export type Beat = Pick<Holder, "fence" | "beats">;

/** Asks for permits; asking again with the same token is harmless. */
export interface AcquireCommand {
  /** Discriminates the command. */
  readonly type: "acquire";
  /** Secret identity of the wanted holding. */
  readonly token: string;
  /** Permits wanted. */
  readonly permits: number;
  /** Permits that exist. */
  readonly capacity: number;
  /** Length of the lease in milliseconds. */
  readonly ttlMs: number;
  /** What the holder calls itself. */
  readonly label: string;
  /** For how long a refused caller keeps a place in the queue, in milliseconds; 0 for none. */
  readonly queueMs: number;
  /** Whether that place blocks those behind it. */
  readonly fair: boolean;
  /** Holdings that the caller has itself watched die; dropped if they still have those beats. */
  readonly presumedDead: readonly Beat[];
}

/** Prolongs a holding. */
export interface RenewCommand {
  /** Discriminates the command. */
  readonly type: "renew";
  /** The holding's token. */
  readonly token: string;
  /** The holding's fence. */
  readonly fence: number;
  /** New length from now, in milliseconds. */
  readonly ttlMs: number;
}

/** Ends a holding, or a wait, of a token for good. */
export interface ReleaseCommand {
  /** Discriminates the command. */
  readonly type: "release";
  /** The token that is over. */
  readonly token: string;
  /** For how long the permits stay taken, in milliseconds (min-hold). */
  readonly keepMs: number;
  /** For how long the token stays refused, in milliseconds. */
  readonly spentMs: number;
}

/** Hands a holding over to a new token, under a new and larger fence. */
export interface AdoptCommand {
  /** Discriminates the command. */
  readonly type: "adopt";
  /** The giver's token. */
  readonly token: string;
  /** The giver's fence. */
  readonly fence: number;
  /** The taker's token. */
  readonly newToken: string;
  /** New length from now, in milliseconds. */
  readonly ttlMs: number;
}

/** Looks, and changes nothing. */
export interface InspectCommand {
  /** Discriminates the command. */
  readonly type: "inspect";
}

/** Removes holdings whoever holds them. */
export interface EvictCommand {
  /** Discriminates the command. */
  readonly type: "evict";
  /** Only this holding. */
  readonly fence?: number | undefined;
  /** Only holdings up to this fence, so that a late copy cannot touch a later holder. */
  readonly maxFence: number;
}

/** What a storage can be asked to do to one record. */
export type Command =
  | AcquireCommand
  | RenewCommand
  | ReleaseCommand
  | AdoptCommand
  | InspectCommand
  | EvictCommand;

/** Why a holding is no longer there. */
export type Refusal = "expired" | "evicted" | "superseded";

/** The permits are the caller's. */
export interface Granted {
  /** Discriminates the outcome. */
  readonly type: "granted";
  /** The fencing token of the holding. */
  readonly fence: number;
}

/** The permits are taken, or someone is ahead. */
export interface Held {
  /** Discriminates the outcome. */
  readonly type: "held";
  /** Until the earliest expiry of what is in the way, in milliseconds, at least 1. */
  readonly retryAfterMs: number;
  /** How many tickets are ahead. */
  readonly ahead: number;
}

/** The record has no room for one more holder or ticket. */
export interface Full {
  /** Discriminates the outcome. */
  readonly type: "full";
  /** Until the earliest expiry of what is in the way, in milliseconds, at least 1. */
  readonly retryAfterMs: number;
}

/** The token was released, evicted or handed over, and grants nothing any more. */
export interface SpentToken {
  /** Discriminates the outcome. */
  readonly type: "spent";
}

/** The live holders understand the lock's capacity otherwise. */
export interface CapacityMismatch {
  /** Discriminates the outcome. */
  readonly type: "capacity-mismatch";
  /** The capacity that the live holders recorded. */
  readonly capacity: number;
}

/** The holding goes on. */
export interface Renewed {
  /** Discriminates the outcome. */
  readonly type: "renewed";
}

/** There is no such live holding. */
export interface Refused {
  /** Discriminates the outcome. */
  readonly type: "refused";
  /** What became of it. */
  readonly reason: Refusal;
}

/** The token is over. */
export interface Released {
  /** Discriminates the outcome. */
  readonly type: "released";
  /** Whether it held until now. */
  readonly freed: boolean;
}

/** What there is to see of a holding; never its token. */
export interface HolderView {
  /** The fencing token, which is the holding's public identity. */
  readonly fence: number;
  /** What the holder calls itself. */
  readonly label: string;
  /** How many permits it takes. */
  readonly permits: number;
  /** Until it expires unless renewed, in milliseconds. */
  readonly remainingMs: number;
}

/** What there is to see of a lock. */
export interface Inspected {
  /** Discriminates the outcome. */
  readonly type: "inspected";
  /** The last fencing token granted, 0 before the first. */
  readonly fence: number;
  /** The live holdings. */
  readonly holders: readonly HolderView[];
  /** How many tickets wait. */
  readonly waiters: number;
}

/** Holdings were removed. */
export interface Evicted {
  /** Discriminates the outcome. */
  readonly type: "evicted";
  /** How many of them were live. */
  readonly count: number;
}

/** What a storage answers. */
export type Outcome =
  | Granted
  | Held
  | Full
  | SpentToken
  | CapacityMismatch
  | Renewed
  | Refused
  | Released
  | Inspected
  | Evicted;

/** The outcomes that a given command can have. */
export type OutcomeOf<C extends Command> = C extends AcquireCommand
  ? Granted | Held | Full | SpentToken | CapacityMismatch
  : C extends RenewCommand ? Renewed | Refused
  : C extends ReleaseCommand ? Released
  : C extends AdoptCommand ? Granted | Refused
  : C extends InspectCommand ? Inspected
  : C extends EvictCommand ? Evicted
  : never;

/** What {@linkcode step} makes of a record and a command. */
export interface Step<O extends Outcome = Outcome> {
  /** The next record: the same reference if nothing changed, so that a storage can skip the write. */
  readonly record: LeaseRecord;
  /** What to answer. */
  readonly outcome: O;
  /** The token of the first waiter, if what just changed leaves room for it. */
  readonly wake?: string | undefined;
}

/** The most live holders, and the most live tickets, that a record takes (64 KiB with its text). */
export const MAX_ENTRIES = 256;

/** How many spent tokens a record remembers. */
export const MAX_SPENT = 16;

/** A ticket is fresh, and asking again does not write it, for this part of its time. */
export const FRESH = 8;

/** The record of a lock that nobody ever took. */
export const EMPTY_RECORD: LeaseRecord = {
  fence: 0,
  holders: [],
  tickets: [],
  spent: [],
  extra: [],
};

/** The instant of one step and the safety added to every expiry written at it. */
interface Now {
  readonly us: number;
  readonly marginMs: number;
}

/**
 * Applies one command to a record at one instant. Pure: no clock, no randomness, no input is changed.
 *
 * @param record the record, {@linkcode EMPTY_RECORD} where there is none
 * @param command what to do
 * @param nowUs the instant in integer microseconds since the epoch, by whoever says the time
 * @param marginMs added to every expiry that is written, in milliseconds: the bound between the wall
 *   clocks of any two clients where the storage has no clock of its own
 * @returns the next record, the outcome, and whom to wake
 */
export function step<C extends Command>(
  record: LeaseRecord,
  command: C,
  nowUs: number,
  marginMs = 0,
): Step<OutcomeOf<C>> {
  return dispatch(record, command, { us: nowUs, marginMs }) as Step<OutcomeOf<C>>;
}

function dispatch(record: LeaseRecord, command: Command, now: Now): Step {
  switch (command.type) {
    case "acquire":
      return acquire(record, command, now);
    case "renew":
      return renew(record, command, now);
    case "release":
      return release(record, command, now);
    case "adopt":
      return adopt(record, command, now);
    case "inspect":
      return inspect(record, now);
    case "evict":
      return evict(record, command, now);
  }
}

function acquire(record: LeaseRecord, command: AcquireCommand, now: Now): Step {
  if (spentEnd(record, command.token, now)) return { record, outcome: { type: "spent" } };
  const again = record.holders.find((h) => h.token === command.token && isLive(h, now));
  if (again) return grantAgain(record, again, command.ttlMs, now);

  const live = record.holders.filter((h) =>
    isLive(h, now) &&
    !command.presumedDead.some((d) => d.fence === h.fence && d.beats === h.beats)
  );
  const other = live.find((h) => h.capacity !== command.capacity);
  if (other) {
    return { record, outcome: { type: "capacity-mismatch", capacity: other.capacity } };
  }

  const tickets = record.tickets.filter((t) => isLive(t, now));
  const place = tickets.findIndex((t) => t.token === command.token);
  const ahead = place < 0 ? tickets : tickets.slice(0, place);
  const inTheWay = [...live, ...ahead.filter((t) => t.fair)];
  const fits = sumPermits(live) + command.permits <= command.capacity;
  if (!fits || inTheWay.length > live.length) {
    const retryAfterMs = untilFirstExpiry(inTheWay, now);
    return wait(record, tickets, place, command, {
      type: "held",
      retryAfterMs,
      ahead: ahead.length,
    }, now);
  }
  if (live.length >= MAX_ENTRIES) {
    return { record, outcome: { type: "full", retryAfterMs: untilFirstExpiry(live, now) } };
  }

  const { token, permits, capacity, ttlMs, label } = command;
  const fence = nextFence(record, now);
  const expiresAtMs = expiry(ttlMs, now);
  return changed(
    {
      ...record,
      fence,
      holders: [...live, { token, fence, permits, capacity, ttlMs, beats: 0, expiresAtMs, label }],
      tickets: tickets.filter((t) => t.token !== token),
    },
    { type: "granted", fence },
    now,
  );
}

/** Leaves or refreshes a ticket, in its place, if the caller queues. */
function wait(
  record: LeaseRecord,
  tickets: readonly Ticket[],
  place: number,
  command: AcquireCommand,
  held: Held,
  now: Now,
): Step {
  if (command.queueMs === 0) return { record, outcome: held };
  if (place < 0 && tickets.length >= MAX_ENTRIES) {
    return { record, outcome: { type: "full", retryAfterMs: held.retryAfterMs } };
  }
  const { token, permits, fair, queueMs } = command;
  const expiresAtMs = expiry(queueMs, now);
  const old = tickets[place];
  const isFresh = old && expiresAtMs - old.expiresAtMs <= queueMs / FRESH;
  if (isFresh && old.fair === fair) return { record, outcome: held };
  const ticket: Ticket = { token, permits, fair, expiresAtMs };
  const next = place < 0 ? [...tickets, ticket] : tickets.map((t, i) => i === place ? ticket : t);
  return { record: { ...record, tickets: next }, outcome: held };
}

function renew(record: LeaseRecord, command: RenewCommand, now: Now): Step {
  const holder = liveHolder(record, command, now);
  if (!holder) return refuse(record, command, now);
  return {
    record: replaceHolder(record, holder, prolong(holder, command.ttlMs, now)),
    outcome: { type: "renewed" },
  };
}

function release(record: LeaseRecord, command: ReleaseCommand, now: Now): Step {
  const end = spentEnd(record, command.token, now);
  if (end) return { record, outcome: { type: "released", freed: end === "released" } };

  const holder = record.holders.find((h) => h.token === command.token);
  const freed = holder !== undefined && isLive(holder, now);
  const others = record.holders.filter((h) => h !== holder);
  const kept: Holder[] = freed && command.keepMs > 0
    ? [{
      ...holder,
      token: null,
      ttlMs: command.keepMs,
      beats: holder.beats + 1,
      expiresAtMs: expiry(command.keepMs, now),
    }]
    : [];
  return changed(
    {
      ...record,
      holders: [...others, ...kept],
      tickets: record.tickets.filter((t) => t.token !== command.token && isLive(t, now)),
      spent: spend(record.spent, [{
        token: command.token,
        end: freed ? "released" : "unheld",
        expiresAtMs: expiry(command.spentMs, now),
      }], now),
    },
    { type: "released", freed },
    now,
  );
}

function adopt(record: LeaseRecord, command: AdoptCommand, now: Now): Step {
  const again = record.holders.find((h) => h.token === command.newToken && isLive(h, now));
  if (again) return grantAgain(record, again, command.ttlMs, now);
  const holder = liveHolder(record, command, now);
  if (!holder || spentEnd(record, command.newToken, now)) return refuse(record, command, now);
  const fence = nextFence(record, now);
  const taken: Holder = {
    ...prolong(holder, command.ttlMs, now),
    token: command.newToken,
    fence,
    beats: 0,
  };
  const old: Spent = {
    token: command.token,
    end: "adopted",
    expiresAtMs: expiry(command.ttlMs, now),
  };
  return {
    record: {
      ...replaceHolder(record, holder, taken),
      fence,
      spent: spend(record.spent, [old], now),
    },
    outcome: { type: "granted", fence },
  };
}

function inspect(record: LeaseRecord, now: Now): Step {
  const holders = record.holders.filter((h) => isLive(h, now)).map((h) => ({
    fence: h.fence,
    label: h.label,
    permits: h.permits,
    remainingMs: untilFirstExpiry([h], now),
  }));
  const waiters = record.tickets.filter((t) => isLive(t, now)).length;
  return { record, outcome: { type: "inspected", fence: record.fence, holders, waiters } };
}

function evict(record: LeaseRecord, command: EvictCommand, now: Now): Step {
  const isMeant = (h: Holder): boolean =>
    h.fence <= command.maxFence && (command.fence === undefined || h.fence === command.fence);
  const gone = record.holders.filter(isMeant);
  if (gone.length === 0) return { record, outcome: { type: "evicted", count: 0 } };
  const spent = gone.flatMap((h): Spent[] =>
    h.token === null ? [] : [{ token: h.token, end: "evicted", expiresAtMs: expiry(h.ttlMs, now) }]
  );
  return changed(
    {
      ...record,
      holders: record.holders.filter((h) => !isMeant(h)),
      spent: spend(record.spent, spent, now),
    },
    { type: "evicted", count: gone.filter((h) => isLive(h, now)).length },
    now,
  );
}

/** Rule 2: the same holding again, no shorter than it was. */
function grantAgain(record: LeaseRecord, holder: Holder, ttlMs: number, now: Now): Step {
  return {
    record: replaceHolder(record, holder, prolong(holder, ttlMs, now)),
    outcome: { type: "granted", fence: holder.fence },
  };
}

/**
 * Rule 6. The span that observers wait for shrinks no faster than time passes either: a shorter
 * renewal must not let them take over before the longer one before it has run out.
 */
function prolong(holder: Holder, ttlMs: number, now: Now): Holder {
  const leftMs = holder.expiresAtMs - Math.floor(now.us / 1000);
  return {
    ...holder,
    ttlMs: Math.max(ttlMs, Math.min(holder.ttlMs, leftMs)),
    beats: holder.beats + 1,
    expiresAtMs: Math.max(holder.expiresAtMs, expiry(ttlMs, now)),
  };
}

/** Rule 7: says what became of a holding that is not there. */
function refuse(record: LeaseRecord, was: { token: string; fence: number }, now: Now): Step {
  const end = spentEnd(record, was.token, now);
  const here = record.holders.find((h) => h.token === was.token);
  let reason: Refusal = "expired";
  if (end === "adopted" || (here && here.fence !== was.fence)) reason = "superseded";
  else if (end) reason = "evicted";
  else if (!here && record.fence > was.fence) reason = "superseded";
  return { record, outcome: { type: "refused", reason } };
}

/** After a change that may have made room: names the first waiter, if it fits now. */
function changed(record: LeaseRecord, outcome: Outcome, now: Now): Step {
  const first = record.tickets.find((t) => isLive(t, now));
  const live = record.holders.filter((h) => isLive(h, now));
  const capacity = live[0]?.capacity ?? Infinity;
  const fits = first && sumPermits(live) + first.permits <= capacity;
  return { record, outcome, wake: fits ? first.token : undefined };
}

function isLive(entry: { readonly expiresAtMs: number }, now: Now): boolean {
  return now.us < entry.expiresAtMs * 1000;
}

/** Expiries are rounded up to the next millisecond, so that they are never early. */
function expiry(spanMs: number, now: Now): number {
  return Math.ceil(now.us / 1000) + spanMs + now.marginMs;
}

/** Rule 4. Microseconds since the epoch are a safe integer until the year 2255. */
function nextFence(record: LeaseRecord, now: Now): number {
  return Math.max(record.fence + 1, now.us);
}

function sumPermits(holders: readonly Holder[]): number {
  return holders.reduce((sum, h) => sum + h.permits, 0);
}

function untilFirstExpiry(entries: readonly { expiresAtMs: number }[], now: Now): number {
  const first = Math.min(...entries.map((e) => e.expiresAtMs));
  return Math.ceil((first * 1000 - now.us) / 1000);
}

function liveHolder(
  record: LeaseRecord,
  was: { token: string; fence: number },
  now: Now,
): Holder | undefined {
  return record.holders.find((h) =>
    h.token === was.token && h.fence === was.fence && isLive(h, now)
  );
}

function replaceHolder(record: LeaseRecord, old: Holder, next: Holder): LeaseRecord {
  return { ...record, holders: record.holders.map((h) => h === old ? next : h) };
}

function spentEnd(record: LeaseRecord, token: string, now: Now): Spent["end"] | undefined {
  return record.spent.find((s) => s.token === token && isLive(s, now))?.end;
}

/** Adds spent tokens; forgets from the oldest on what has expired or is too many. */
function spend(spent: readonly Spent[], more: readonly Spent[], now: Now): Spent[] {
  const all = [...spent, ...more];
  while (all.length > MAX_SPENT || (all[0] && !isLive(all[0], now))) all.shift();
  return all;
}
