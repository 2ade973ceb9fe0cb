/**
 * The protocol between a few clients and a storage that says the time, small enough to be searched whole:
 * the real record machine, the real rules of a lease's life, and messages that are lost, late or doubled.
 * A message that is never delivered is lost, one that is delivered after others is late. A client that does
 * nothing is frozen, or dead.
 */
import { elapsedForHolderMs, type Stamp } from "../../src/core/clock.ts";
import {
  granted,
  type Held,
  lossAt,
  renewed,
  type Terms,
  ttlToAskMs,
} from "../../src/core/lifecycle.ts";
import {
  type AcquireCommand,
  type Command,
  EMPTY_RECORD,
  type Holder,
  type LeaseRecord,
  type Outcome,
  step,
} from "../../src/core/record.ts";
import type { Model } from "./explore.ts";

/** One length of time: leases last two of them. */
const TICK_MS = 1000;

const EPOCH_MS = 1_700_000_000_000;

/** How a client shares the lock. */
export interface ClientTerms {
  /** Permits that it takes. */
  readonly permits: number;
  /** How fast its clocks run. */
  readonly rate: number;
  /** How often it acquires, each time under a new token. */
  readonly turns: number;
  /** How many requests it sends in one turn, releases not counted. */
  readonly sends: number;
  /** What it does: one that only resumes takes no lock of its own, one that keeps never releases. */
  readonly way: "all" | "resumes" | "keeps";
}

/** What is searched. */
export interface ProtocolTerms {
  readonly capacity: number;
  readonly fair: boolean;
  /** 0: no tickets. */
  readonly queueTicks: number;
  /** 0: none. */
  readonly keepTicks: number;
  readonly maxHoldTicks: number | undefined;
  readonly clients: readonly ClientTerms[];
  /** How much time passes. */
  readonly ticks: number;
  /** How many messages arrive twice. */
  readonly duplicates: number;
  /** How often an operator takes the lock away. */
  readonly evictions: number;
  /** Whether a holder may hand its lease over, and how many take the baton. */
  readonly handOver: boolean;
  /** Spans that renewals ask for, in ticks. */
  readonly renewTicks: readonly number[];
  /** How often the record is lost. */
  readonly losses: number;
}

/** A request, or its reply, on its way. */
interface Message {
  readonly id: number;
  readonly client: number;
  readonly command: Command;
  readonly sentAt: Stamp;
}

/** A client. */
interface Client {
  readonly turn: number;
  readonly sends: number;
  readonly token: string | undefined;
  /** The request whose answer counts. */
  readonly pending: number;
  readonly held: { readonly life: Held; readonly fence: number } | undefined;
}

/** Everything. */
interface State {
  readonly tick: number;
  readonly record: LeaseRecord;
  readonly clients: readonly Client[];
  readonly requests: readonly Message[];
  readonly replies: readonly (Message & { readonly outcome: Outcome })[];
  readonly batons: readonly { readonly token: string; readonly fence: number }[];
  readonly duplicates: number;
  readonly evictions: number;
  readonly losses: number;
  /** The highest fence ever granted. */
  readonly topFence: number;
  /** Holdings that are over: none of them may ever be there again. */
  readonly ended: readonly string[];
  /** Holdings that were taken away, which their holders cannot know. */
  readonly taken: readonly string[];
  readonly wrong: string | undefined;
}

const TTL_MS = 2 * TICK_MS;

/** The model of some terms. */
export function protocolModel(terms: ProtocolTerms): Model<State> {
  return {
    initial: {
      tick: 0,
      record: EMPTY_RECORD,
      clients: terms.clients.map(() => ({
        turn: 0,
        sends: 0,
        token: undefined,
        pending: 0,
        held: undefined,
      })),
      requests: [],
      replies: [],
      batons: [],
      duplicates: terms.duplicates,
      evictions: terms.evictions,
      losses: terms.losses,
      topFence: 0,
      ended: [],
      taken: [],
      wrong: undefined,
    },
    *next(state) {
      if (state.tick < terms.ticks) yield ["time passes", { ...state, tick: state.tick + 1 }];
      for (let i = 0; i < state.clients.length; i++) yield* acts(terms, state, i);
      for (const request of state.requests) yield* arrivals(terms, state, request);
      for (const reply of state.replies) {
        yield [`${nameOf(reply.client)} hears ${reply.outcome.type}`, hear(terms, state, reply)];
      }
      yield* others(terms, state);
    },
    key: keyOf,
    wrong: (state) => state.wrong ?? wrongTrust(terms, state),
  };
}

/** What a client can do of its own accord. */
function* acts(terms: ProtocolTerms, state: State, i: number): Iterable<readonly [string, State]> {
  const client = state.clients[i]!;
  const { turns, sends, permits, way } = terms.clients[i]!;
  const who = nameOf(i);
  const now = clockOf(terms, state, i);
  const isHeld = client.held && lossAt(client.held.life, lifeTerms(terms), now) === undefined;
  const canSend = client.sends < sends;
  if (client.token === undefined || client.held && !isHeld) {
    if (client.turn >= turns) return;
    const turn = client.turn + 1;
    const token = `${who}${turn}`;
    const begun = { turn, sends: 0, token, pending: 0, held: undefined };
    const command = acquireOf(terms, permits, token);
    if (way !== "resumes") yield [`${who} asks as ${token}`, send(terms, state, i, begun, command)];
    for (const baton of state.batons) {
      const adopt: Command = { type: "adopt", ...baton, newToken: token, ttlMs: TTL_MS };
      yield [`${who} resumes ${baton.token} as ${token}`, send(terms, state, i, begun, adopt)];
    }
    return;
  }
  const { token } = client;
  if (isHeld) {
    const { fence, life } = client.held!;
    for (const ticks of canSend ? terms.renewTicks : []) {
      const ttlMs = ttlToAskMs(ticks * TICK_MS, life, lifeTerms(terms), now);
      const renew: Command = { type: "renew", token, fence, ttlMs };
      yield [`${who} renews for ${ticks}`, send(terms, state, i, client, renew)];
    }
    if (terms.handOver && state.batons.length === 0) {
      const batons = [{ token, fence }];
      yield [`${who} detaches`, { ...replaceClient(state, i, gone(client)), batons }];
    }
  } else if (canSend && way !== "resumes") {
    yield [
      `${who} asks again`,
      send(terms, state, i, client, acquireOf(terms, permits, token)),
    ];
  }
  if (way === "keeps") return;
  const keepMs = isHeld ? terms.keepTicks * TICK_MS : 0;
  const release: Command = { type: "release", token, keepMs, spentMs: TTL_MS };
  yield [`${who} releases`, send(terms, state, i, gone(client), release)];
}

/** A request arrives; it may arrive once more. */
function* arrivals(
  terms: ProtocolTerms,
  state: State,
  request: Message,
): Iterable<readonly [string, State]> {
  const after = arrive(terms, state, request);
  const label = `${request.command.type} of ${nameOf(request.client)} arrives`;
  yield [label, { ...after, requests: state.requests.filter((r) => r !== request) }];
  if (state.duplicates > 0) {
    yield [`${label}, not for the last time`, { ...after, duplicates: state.duplicates - 1 }];
  }
}

/** What neither client nor network does. */
function* others(terms: ProtocolTerms, state: State): Iterable<readonly [string, State]> {
  if (state.evictions > 0 && state.record.holders.length > 0) {
    const command: Command = { type: "evict", maxFence: state.record.fence };
    const request: Message = { id: -1, client: -1, command, sentAt: { monotonicMs: 0, wallMs: 0 } };
    const requests = [...state.requests, request];
    yield ["an operator takes it away", { ...state, requests, evictions: state.evictions - 1 }];
  }
  // Fences rise by themselves only if the clock has moved since the last grant.
  if (state.losses > 0 && state.record !== EMPTY_RECORD && state.tick < terms.ticks) {
    const taken = [...state.taken, ...state.record.holders.map(idOf)].sort();
    const [losses, tick] = [state.losses - 1, state.tick + 1];
    yield ["the record is lost", { ...state, record: EMPTY_RECORD, taken, losses, tick }];
  }
}

function send(
  terms: ProtocolTerms,
  state: State,
  i: number,
  client: Client,
  command: Command,
): State {
  const id = 10 * client.turn + client.sends + 1;
  const sentAt = clockOf(terms, state, i);
  const isAnswered = command.type !== "release";
  const next = isAnswered ? { ...client, sends: client.sends + 1, pending: id } : client;
  const requests = [...state.requests, { id: isAnswered ? id : 0, client: i, command, sentAt }];
  return { ...replaceClient(state, i, next), requests };
}

/** The storage applies a request; all that the record machine must not do is looked for here. */
function arrive(terms: ProtocolTerms, state: State, request: Message): State {
  const { command } = request;
  const nowUs = (EPOCH_MS + state.tick * TICK_MS) * 1000;
  const before = state.record;
  const { record, outcome } = step(before, command, nowUs);
  const gone = before.holders.filter((h) => !record.holders.some((o) => idOf(o) === idOf(h)));
  const come = record.holders.filter((h) => !before.holders.some((o) => idOf(o) === idOf(h)));
  const evicted = command.type === "evict" ? gone.map(idOf) : [];
  const next: State = {
    ...state,
    record,
    topFence: Math.max(state.topFence, ...come.map((h) => h.fence)),
    ended: [...new Set([...state.ended, ...gone.map(idOf)])].sort(),
    taken: [...state.taken, ...evicted].sort(),
    replies: state.clients[request.client]?.pending === request.id && request.id > 0
      ? [...state.replies, { ...request, outcome }]
      : state.replies,
  };
  const what = wrongGrant(terms, state, come, command, record, nowUs) ??
    wrongEnd(gone, command, nowUs) ?? wrongChange(before, record, command, nowUs) ??
    wrongAnswer(before, command, outcome, nowUs);
  return what ? { ...next, wrong: what } : next;
}

/** A client takes the answer it waits for; any other is for a request that it gave up. */
function hear(
  terms: ProtocolTerms,
  state: State,
  reply: Message & { readonly outcome: Outcome },
): State {
  const { client: i, command, outcome, sentAt } = reply;
  const heard = { ...state, replies: state.replies.filter((r) => r !== reply) };
  const client = state.clients[i]!;
  const now = clockOf(terms, state, i);
  const life = lifeTerms(terms);
  if (outcome.type === "granted") {
    const { ttlMs } = command as AcquireCommand;
    const held = { life: granted(sentAt, ttlMs), fence: outcome.fence };
    const isLate = lossAt(held.life, life, now) !== undefined;
    return replaceClient(heard, i, isLate ? gone(client) : { ...client, held });
  }
  if (client.held && lossAt(client.held.life, life, now) === undefined) {
    if (outcome.type === "refused") return replaceClient(heard, i, gone(client));
    const { ttlMs } = command as { ttlMs: number };
    const held = { ...client.held, life: renewed(client.held.life, sentAt, ttlMs, now) };
    return replaceClient(heard, i, { ...client, held });
  }
  return outcome.type === "held" ? heard : replaceClient(heard, i, gone(client));
}

function wrongGrant(
  terms: ProtocolTerms,
  state: State,
  come: readonly Holder[],
  command: Command,
  record: LeaseRecord,
  nowUs: number,
): string | undefined {
  for (const holder of come) {
    if (holder.token === null) continue;
    if (holder.fence <= state.topFence) return "G2: fences do not rise";
    if (state.ended.includes(idOf(holder))) return "G3: a holding is back";
    if (state.ended.some((id) => id.startsWith(`${holder.token} `)) && wasReleased(state, holder)) {
      return "G9: a token that is over is granted";
    }
    const live = record.holders.filter((h) => nowUs < h.expiresAtMs * 1000);
    const taken = live.reduce((sum, h) => sum + h.permits, 0);
    if (taken > terms.capacity) return `G1: ${taken} of ${terms.capacity} permits are taken`;
    if (command.type !== "acquire") continue;
    for (const ticket of state.record.tickets) {
      if (ticket.token === holder.token) break;
      if (ticket.fair && nowUs < ticket.expiresAtMs * 1000) return "G10: a live ticket is passed";
    }
  }
  return undefined;
}

/** Whether the storage remembers that the token was given back or handed over. */
function wasReleased({ record, tick }: State, { token }: Holder): boolean {
  const nowMs = EPOCH_MS + tick * TICK_MS;
  return record.spent.some((s) => s.token === token && nowMs < s.expiresAtMs);
}

function wrongEnd(gone: readonly Holder[], command: Command, nowUs: number): string | undefined {
  for (const holder of gone) {
    if (nowUs >= holder.expiresAtMs * 1000) continue;
    const isOwn = "token" in command && command.token === holder.token &&
      (command.type === "release" || command.type === "adopt");
    const isEvicted = command.type === "evict" && holder.fence <= command.maxFence;
    if (!isOwn && !isEvicted) return `G4: a live holding is ended by ${command.type}`;
  }
  return undefined;
}

function wrongChange(
  before: LeaseRecord,
  after: LeaseRecord,
  command: Command,
  nowUs: number,
): string | undefined {
  for (const holder of after.holders) {
    const old = before.holders.find((h) => idOf(h) === idOf(holder));
    if (!old || old === holder) continue;
    if (holder.expiresAtMs < old.expiresAtMs) return "G5: an expiry moves back";
    const by = "newToken" in command ? command.newToken : "token" in command ? command.token : "";
    if (by !== holder.token) return "G4: a holding is changed by another";
    if (holder.beats <= old.beats) return "G4: a renewal does not show";
  }
  const live = before.tickets.filter((t) => nowUs < t.expiresAtMs * 1000);
  const places = after.tickets.map((t) => live.findIndex((b) => b.token === t.token));
  const kept = places.filter((p) => p >= 0);
  if (kept.some((p, i) => i > 0 && p < kept[i - 1]!)) return "G10: tickets change places";
  return undefined;
}

function wrongAnswer(
  before: LeaseRecord,
  command: Command,
  outcome: Outcome,
  nowUs: number,
): string | undefined {
  if (command.type !== "acquire" && command.type !== "renew") return undefined;
  const own = before.holders.find((h) =>
    h.token === command.token && nowUs < h.expiresAtMs * 1000 &&
    (command.type === "acquire" || h.fence === command.fence)
  );
  if (own && outcome.type !== "granted" && outcome.type !== "renewed") {
    return `G11: a holder is told ${outcome.type}`;
  }
  if (own && outcome.type === "granted" && outcome.fence !== own.fence) {
    return "G11: a holder gets another fence";
  }
  if (!own && outcome.type === "renewed") return "G4: what is not there is renewed";
  return undefined;
}

/** Whoever trusts its lease must be in the record, and there must be room for all who do. */
function wrongTrust(terms: ProtocolTerms, state: State): string | undefined {
  const nowUs = (EPOCH_MS + state.tick * TICK_MS) * 1000;
  let taken = 0;
  for (const [i, client] of state.clients.entries()) {
    if (!client.held || client.token === undefined) continue;
    const now = clockOf(terms, state, i);
    if (lossAt(client.held.life, lifeTerms(terms), now) !== undefined) continue;
    const id = `${client.token} ${client.held.fence}`;
    if (state.taken.includes(id)) continue;
    taken += terms.clients[i]!.permits;
    const holder = state.record.holders.find((h) => idOf(h) === id);
    if (!holder || nowUs >= holder.expiresAtMs * 1000) {
      return `G5: ${nameOf(i)} trusts a lease that the storage ended`;
    }
    const { maxHoldTicks } = terms;
    const heldMs = elapsedForHolderMs(client.held.life.grantedAt, now);
    if (maxHoldTicks !== undefined && heldMs >= maxHoldTicks * TICK_MS) {
      return `G5: ${nameOf(i)} holds for too long`;
    }
  }
  return taken > terms.capacity ? "G1: too many trust their lease" : undefined;
}

function acquireOf(terms: ProtocolTerms, permits: number, token: string): AcquireCommand {
  const { capacity, fair, queueTicks } = terms;
  const now = { monotonicMs: 0, wallMs: 0 };
  return {
    type: "acquire",
    token,
    permits,
    capacity,
    ttlMs: ttlToAskMs(TTL_MS, undefined, lifeTerms(terms), now),
    label: "",
    queueMs: queueTicks * TICK_MS,
    fair,
    presumedDead: [],
  };
}

function lifeTerms({ maxHoldTicks }: ProtocolTerms): Terms {
  const maxHoldMs = maxHoldTicks === undefined ? undefined : maxHoldTicks * TICK_MS;
  return { ttlMs: TTL_MS, renewEveryMs: TICK_MS, maxHoldMs };
}

function clockOf(terms: ProtocolTerms, state: State, i: number): Stamp {
  const ms = state.tick * TICK_MS * terms.clients[i]!.rate;
  return { monotonicMs: ms, wallMs: ms };
}

function gone(client: Client): Client {
  return { ...client, token: undefined, pending: 0, held: undefined };
}

function replaceClient(state: State, i: number, client: Client): State {
  const clients = state.clients.map((c, j) => j === i ? client : c);
  // An answer that nobody waits for any more is the same as none.
  const replies = state.replies.filter((r) => r.client !== i || r.id === client.pending);
  return { ...state, clients, replies };
}

function idOf(holder: Holder): string {
  return `${holder.token} ${holder.fence}`;
}

function nameOf(i: number): string {
  return i < 0 ? "operator" : "ABC"[i]!;
}

/** Everything that can matter later; identities of requests only as far as they tell them apart. */
function keyOf(state: State): string {
  const { record } = state;
  const parts: unknown[] = [state.tick, record.fence, state.topFence];
  for (const h of record.holders) parts.push("h", h.token, h.fence, h.expiresAtMs, h.ttlMs);
  for (const t of record.tickets) parts.push("t", t.token, t.expiresAtMs);
  for (const s of record.spent) parts.push("s", s.token, s.end, s.expiresAtMs);
  for (const c of state.clients) {
    parts.push("c", c.turn, c.sends, c.token, c.pending, c.held?.fence);
    if (c.held) parts.push(c.held.life.trust.since.monotonicMs, c.held.life.trust.ms);
  }
  const messages = [...state.requests, ...state.replies].map((m) => {
    const outcome = "outcome" in m ? (m as { outcome: Outcome }).outcome : undefined;
    const { command: c } = m;
    return [
      m.id,
      m.client,
      c.type,
      "token" in c ? c.token : "maxFence" in c ? c.maxFence : "",
      "ttlMs" in c ? c.ttlMs : "",
      m.sentAt.monotonicMs,
      outcome?.type,
      outcome && "fence" in outcome ? outcome.fence : "",
    ].join(" ");
  });
  parts.push(...messages.sort(), ...state.ended, "-", ...state.taken);
  parts.push(state.duplicates, state.evictions, state.losses, state.batons.length, state.wrong);
  return parts.join(" ");
}
