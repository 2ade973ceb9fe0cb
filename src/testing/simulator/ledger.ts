/**
 * What the records have gone through, and whether each change was allowed: an account of the rules that is
 * independent of the record machine and looks only at what it did.
 *
 * @module
 */
import {
  type Command,
  EMPTY_RECORD,
  type Holder,
  type LeaseRecord,
  MAX_SPENT,
  type Outcome,
} from "../../core/record.ts";
import type { World } from "./world.ts";

/** One change of a record. */
export interface Change {
  /** The lock. */
  readonly name: string;
  /** What was there. */
  readonly before: LeaseRecord;
  /** What is there now. */
  readonly after: LeaseRecord;
  /** The process that asked for it. */
  readonly by: string;
  /** What it asked for. */
  readonly command: Command;
  /** The instant by whoever says the time, in microseconds since the epoch. */
  readonly nowUs: number;
}

/** What the ledger needs to know of the storage. */
export interface LedgerOptions {
  /** How far `nowUs` of a change may be from the instant at which the client decided, in milliseconds. */
  readonly toleranceMs: number;
  /** Added to every expiry, in milliseconds. */
  readonly marginMs: number;
  /** Whether clients may presume holders dead. */
  readonly presumes: boolean;
}

/** How a holding ended. */
export type End =
  | "expired"
  | "released"
  | "evicted"
  | "adopted"
  | "presumed dead"
  | "lost with record";

/** A token that must not be granted again. */
interface Over {
  readonly untilMs: number;
  readonly count: number;
}

/** The history of one lock. */
interface Account {
  record: LeaseRecord;
  topFence: number;
  /** The record was lost since the last grant, in a way that its retention does not allow for. */
  wasLost: boolean;
  /** All holdings that ever were, by token and fence. */
  readonly granted: Map<string, Holder>;
  /** How each of them ended. */
  readonly ends: Map<string, End>;
  readonly over: Map<string, Over>;
  overCount: number;
  /** When each token's entry last changed, in true time. */
  readonly changedAtMs: Map<string, number>;
}

/** The histories of all locks. */
export class Ledger {
  /** Whether fences ever went down, outside the condition of G2. */
  hasFallen = false;
  /** Told of each grant. */
  onGrant: ((name: string) => void) | undefined;
  readonly #world: World;
  readonly #options: LedgerOptions;
  readonly #accounts = new Map<string, Account>();
  #wasSetBack = false;

  constructor(world: World, options: LedgerOptions) {
    this.#world = world;
    this.#options = options;
  }

  /** The record of a lock as it is now. */
  record(name: string): LeaseRecord {
    return this.#account(name).record;
  }

  /** The names that were ever used. */
  names(): Iterable<string> {
    return this.#accounts.keys();
  }

  /** How a holding ended; `undefined` while it is in the record. */
  endOf(name: string, token: string, fence: number): End | undefined {
    return this.#account(name).ends.get(`${token} ${fence}`);
  }

  /** What a holding takes; `undefined` if there never was one. */
  shareOf(
    name: string,
    token: string,
    fence: number,
  ): Pick<Holder, "permits" | "capacity"> | undefined {
    return this.#account(name).granted.get(`${token} ${fence}`);
  }

  /** The holding, if it is in the record. */
  holder(name: string, token: string, fence: number): Holder | undefined {
    return this.record(name).holders.find((h) => h.token === token && h.fence === fence);
  }

  /** The holding of a token that is in the record, with the instant of its last change. */
  holdingOf(name: string, token: string): { holder: Holder; changedAtMs: number } | undefined {
    const account = this.#account(name);
    const holder = account.record.holders.find((h) => h.token === token);
    return holder && { holder, changedAtMs: account.changedAtMs.get(token) ?? 0 };
  }

  /** The record is gone. `expected`: after its retention, which must harm nothing. */
  lost(name: string, expected: boolean): void {
    const account = this.#account(name);
    this.#world.log("server", `${name} ${expected ? "is forgotten" : "loses its record"}`);
    for (const h of account.record.holders) {
      account.ends.set(`${h.token} ${h.fence}`, expected ? "expired" : "lost with record");
    }
    account.record = EMPTY_RECORD;
    account.over.clear();
    if (!expected) account.wasLost = true;
  }

  /** A clock that says the time was set back, or beyond the bound. */
  clockWasSetBack(): void {
    this.#wasSetBack = true;
  }

  /** A line of a later version was added to a record. */
  extended(name: string, record: LeaseRecord): void {
    this.#account(name).record = record;
  }

  /** Checks one change, and takes it into the account. */
  changed(change: Change): void {
    const account = this.#account(change.name);
    const { before, after } = change;
    if (account.record !== before) this.#fail("G4", change, "the record was not what was replaced");
    account.record = after;
    for (const holder of after.holders) this.#checkHolder(account, change, holder);
    for (const holder of before.holders) this.#checkGone(account, change, holder);
    this.#checkTickets(change);
    if (after.extra.join("\n") !== before.extra.join("\n")) {
      this.#fail("G12", change, "lines of a later version were dropped");
    }
    if (after.fence < before.fence) this.#fail("G2", change, "the record's fence went down");
    this.#noteSpent(account, change);
  }

  /** Checks what a storage that runs the machine answered. */
  answered(
    name: string,
    before: LeaseRecord,
    command: Command,
    outcome: Outcome,
    nowUs: number,
  ): void {
    const change = { name, before, after: this.record(name), by: "server", command, nowUs };
    if (command.type === "acquire") {
      const held = before.holders.find((h) => h.token === command.token && isLive(h, nowUs));
      if (held && !(outcome.type === "granted" && outcome.fence === held.fence)) {
        this.#fail("G11", change, `a holder is refused its own lock as ${outcome.type}`);
      }
    }
    if (command.type === "renew") {
      const { token, fence } = command;
      const held = before.holders.some((h) =>
        h.token === token && h.fence === fence && isLive(h, nowUs)
      );
      if (held !== (outcome.type === "renewed")) {
        this.#fail("G4", change, `a renewal is answered as ${outcome.type}`);
      }
    }
    if (outcome.type === "granted") {
      const token = command.type === "adopt"
        ? command.newToken
        : (command as { token: string }).token;
      const holder = this.holder(name, token, outcome.fence);
      if (!holder || !isLive(holder, nowUs)) {
        this.#fail("G1", change, "a grant is not in the record");
      }
    }
  }

  #checkHolder(account: Account, change: Change, holder: Holder): void {
    const { before, command } = change;
    const old = before.holders.find((h) => h.token === holder.token && h.fence === holder.fence);
    if (old === holder) return;
    if (holder.token !== null) account.changedAtMs.set(holder.token, this.#world.nowMs);
    if (!old) {
      if (holder.token === null) this.#checkKept(change, holder);
      else this.#checkGrant(account, change, holder);
      return;
    }
    const by = "newToken" in command ? command.newToken : "token" in command ? command.token : null;
    const same = old.expiresAtMs === holder.expiresAtMs && old.beats === holder.beats &&
      old.permits === holder.permits && old.ttlMs === holder.ttlMs;
    if (same) return;
    if (holder.token === null || by !== holder.token || command.type === "release") {
      this.#fail("G4", change, `holding ${holder.fence} was changed by another`);
    }
    if (holder.expiresAtMs < old.expiresAtMs) {
      this.#fail("G5", change, `the expiry of ${holder.fence} moved back`);
    }
    if (holder.beats <= old.beats) this.#fail("G4", change, "a renewal does not show");
    if (holder.permits !== old.permits || holder.capacity !== old.capacity) {
      this.#fail("G1", change, "a renewal changed the permits");
    }
    this.#checkExpiry(change, holder, Math.max(old.expiresAtMs, this.#latestMs(change)));
  }

  #checkGrant(account: Account, change: Change, holder: Holder): void {
    const { name, before, after, command, nowUs } = change;
    const { token, fence } = holder;
    if (command.type !== "acquire" && command.type !== "adopt") {
      return this.#fail("G4", change, `a ${command.type} granted ${fence}`);
    }
    const asked = command.type === "acquire" ? command.token : command.newToken;
    if (asked !== token) this.#fail("G4", change, "the grant is for another token");
    const permits = after.holders.reduce((sum, h) => sum + h.permits, 0);
    if (permits > holder.capacity) {
      this.#fail("G1", change, `${permits} of ${holder.capacity} permits are taken`);
    }
    if (after.holders.some((h) => h.capacity !== holder.capacity)) {
      this.#fail("G1", change, "holders differ in the capacity");
    }
    this.#checkFence(account, change, holder);
    const over = account.over.get(token!);
    if (over && nowUs < over.untilMs * 1000 && account.overCount - over.count < MAX_SPENT) {
      this.#fail("G9", change, "a token that is over was granted");
    }
    if (command.type === "acquire") this.#checkTurn(change, token!);
    const given = command.type === "adopt" && before.holders.find((h) => isSame(h, command));
    const oldMs = given ? given.expiresAtMs : 0;
    this.#checkExpiry(change, holder, Math.max(oldMs, this.#latestMs(change)));
    account.granted.set(`${token} ${fence}`, holder);
    this.#world.log("server", `${name} grants ${fence} to ${token}`);
    this.#world.count("grants");
    this.onGrant?.(name);
  }

  /** G2, except for a holding that was dead when its late write arrived: its holder never gets it. */
  #checkFence(account: Account, { name, before, nowUs }: Change, holder: Holder): void {
    const { fence } = holder;
    const { topFence } = account;
    if (fence <= topFence && isLive(holder, nowUs)) {
      const isOutside = before.fence === 0 && (account.wasLost || this.#wasSetBack);
      this.hasFallen = true;
      if (isOutside) {
        this.#world.count("outside G2");
        account.topFence = fence;
        return;
      }
      this.#world.fail("G2", `${name}: fence ${fence} follows ${topFence}`);
    }
    account.topFence = Math.max(topFence, fence);
  }

  /** Nobody may pass a fair ticket that is live. */
  #checkTurn(change: Change, token: string): void {
    const { before, nowUs } = change;
    const lateUs = nowUs + this.#options.toleranceMs * 1000;
    for (const ticket of before.tickets) {
      if (ticket.token === token) break;
      if (ticket.fair && isLive(ticket, lateUs)) {
        if (this.#wasSetBack) return this.#world.count("outside G10");
        return this.#fail("G10", change, `${token} passes the ticket of ${ticket.token}`);
      }
    }
  }

  #checkKept(change: Change, holder: Holder): void {
    const { before, command } = change;
    const old = before.holders.find((h) => h.fence === holder.fence);
    if (command.type !== "release" || old?.token !== command.token || command.keepMs === 0) {
      this.#fail("G4", change, "permits are kept without a release");
    }
    this.#checkExpiry(change, holder, this.#latestMs(change));
  }

  #checkGone(account: Account, change: Change, holder: Holder): void {
    const { after, command, nowUs, name } = change;
    if (this.#isIn(after, holder)) return;
    let end: End | undefined;
    if (command.type === "release" && command.token === holder.token) end = "released";
    else if (command.type === "adopt" && isSame(holder, command)) end = "adopted";
    else if (
      command.type === "evict" && holder.fence <= command.maxFence &&
      (command.fence ?? holder.fence) === holder.fence
    ) end = "evicted";
    else if (!isLive(holder, nowUs)) end = "expired";
    else if (command.type === "acquire" && this.#options.presumes) end = "presumed dead";
    else if (!isLive(holder, nowUs + this.#options.toleranceMs * 1000)) end = "expired";
    if (end === undefined) {
      return this.#fail("G4", change, `holding ${holder.fence} was removed by another`);
    }
    account.ends.set(`${holder.token} ${holder.fence}`, end);
    this.#world.log("server", `${name} ends ${holder.fence}: ${end}`);
    this.#world.count(`ended ${end}`);
  }

  /** Tickets keep their order, and go only with their token or their time. */
  #checkTickets(change: Change): void {
    const { before, after, command, nowUs } = change;
    const token = "token" in command ? command.token : undefined;
    const lateUs = nowUs + this.#options.toleranceMs * 1000;
    const live = before.tickets.filter((t) => isLive(t, lateUs));
    let place = 0;
    for (const { token: waiter } of live) {
      const at = after.tickets.findIndex((t) => t.token === waiter);
      if (at >= 0 && at < place) this.#fail("G10", change, `${waiter} lost its place`);
      if (at < 0 && waiter !== token) {
        if (this.#wasSetBack) this.#world.count("outside G10");
        else this.#fail("G10", change, `${waiter} lost its ticket`);
      }
      place = Math.max(place, at);
    }
    for (const [i, ticket] of after.tickets.entries()) {
      const old = before.tickets.find((t) => t.token === ticket.token);
      if (!old && i < place) this.#fail("G10", change, `${ticket.token} does not queue at the end`);
      const isSame = old?.expiresAtMs === ticket.expiresAtMs && old.permits === ticket.permits;
      const isAsked = ticket.token === token && command.type === "acquire" && command.queueMs > 0;
      if (!isSame && !isAsked) this.#fail("G10", change, `${ticket.token} was changed by another`);
    }
  }

  #checkExpiry(change: Change, holder: Holder, latestMs: number): void {
    // A clock that was set between the client's decision and its effect tells nothing.
    if (holder.expiresAtMs <= latestMs || this.#wasSetBack) return;
    this.#fail(
      "G9",
      change,
      `holding ${holder.fence} lasts ${holder.expiresAtMs - latestMs} ms too long`,
    );
  }

  /** The latest expiry that a command can ask for. */
  #latestMs({ command, nowUs }: Change): number {
    const spanMs = command.type === "release"
      ? command.keepMs
      : "ttlMs" in command
      ? command.ttlMs
      : 0;
    const { marginMs, toleranceMs } = this.#options;
    return Math.ceil(nowUs / 1000) + spanMs + marginMs + toleranceMs;
  }

  #noteSpent(account: Account, change: Change): void {
    const { command, before, after, nowUs } = change;
    const over = (token: string, spanMs: number): void => {
      account.over.set(token, {
        untilMs: nowUs / 1000 + spanMs - this.#options.toleranceMs,
        count: ++account.overCount,
      });
    };
    if (command.type === "release") over(command.token, command.spentMs);
    if (command.type === "adopt") over(command.token, command.ttlMs);
    if (command.type === "evict") {
      for (const h of before.holders) {
        if (h.token !== null && !this.#isIn(after, h)) over(h.token, h.ttlMs);
      }
    }
  }

  #isIn(record: LeaseRecord, holder: Holder): boolean {
    return record.holders.some((h) => h.token === holder.token && h.fence === holder.fence);
  }

  #fail(guarantee: string, change: Change, what: string): void {
    const { name, by, command } = change;
    this.#world.fail(guarantee, `${name}: ${what}, by ${by}: ${JSON.stringify(command)}`);
  }

  #account(name: string): Account {
    let account = this.#accounts.get(name);
    if (!account) {
      account = {
        record: EMPTY_RECORD,
        topFence: 0,
        wasLost: false,
        granted: new Map(),
        ends: new Map(),
        over: new Map(),
        overCount: 0,
        changedAtMs: new Map(),
      };
      this.#accounts.set(name, account);
    }
    return account;
  }
}

/** Whether an entry is live at an instant. */
export function isLive(entry: { readonly expiresAtMs: number }, nowUs: number): boolean {
  return nowUs < entry.expiresAtMs * 1000;
}

function isSame(
  holder: Holder,
  other: { readonly token: string; readonly fence: number },
): boolean {
  return holder.token === other.token && holder.fence === other.fence;
}
