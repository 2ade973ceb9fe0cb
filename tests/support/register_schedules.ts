/**
 * Every schedule of a few commands on a register with the clients' time: the real `RegisterStorage`, one per
 * client, over a register whose requests and replies move only when the search says so. A run cannot be
 * copied, so each way is run again from its beginning; two ways lead to the same state if the register,
 * what is on its way, and all that each client has ever heard are the same.
 */
import type { Clock, Stamp } from "../../src/core/clock.ts";
import { decodeRecord } from "../../src/core/codec.ts";
import { dispose } from "../../src/core/disposable.ts";
import { StorageError } from "../../src/core/errors.ts";
import { granted, type Held, lossAt, renewed } from "../../src/core/lifecycle.ts";
import type { Command, Outcome } from "../../src/core/record.ts";
import {
  type Register,
  RegisterStorage,
  type Versioned,
  type Written,
} from "../../src/core/register.ts";
import { turn } from "../../src/testing/manual_clock.ts";
import { acquire } from "./commands.ts";

const TICK_MS = 1000;
const TTL_MS = 2 * TICK_MS;
const SKEW_MS = TICK_MS;
const EPOCH_MS = 1_700_000_000_000;
const NAME = "lock";

/** A client and what it does, one command after another. */
export interface ScheduledClient {
  /** How far its wall clock is off. */
  readonly offsetMs: number;
  readonly commands: readonly ("acquire" | "renew" | "release")[];
  /** How often it repeats a command that failed. */
  readonly retries: number;
}

/** What is searched. */
export interface ScheduleTerms {
  readonly clients: readonly ScheduledClient[];
  /** How much time passes. */
  readonly ticks: number;
  /** How many requests fail for their client, before or after they take effect. */
  readonly faults: number;
  /** How many requests arrive twice. */
  readonly duplicates: number;
  /** Whether an absent value has a version. */
  readonly absent: boolean;
}

/** What a search came to. */
export interface Searched {
  readonly states: number;
  readonly broken: { readonly what: string; readonly way: readonly string[] } | undefined;
}

/** Runs every schedule. */
export async function searchSchedules(terms: ScheduleTerms): Promise<Searched> {
  const seen = new Set<string>();
  const ways: string[][] = [[]];
  for (let way = ways.pop(); way; way = ways.pop()) {
    const run = new Run(terms);
    for (const choice of way) await run.choose(choice);
    // The first way on is taken in place; the others are run later.
    for (;;) {
      if (run.wrong) return { states: seen.size, broken: { what: run.wrong, way } };
      const key = run.key();
      if (seen.has(key)) break;
      seen.add(key);
      const [first, ...others] = run.choices();
      for (const choice of others) ways.push([...way, choice]);
      if (first === undefined) break;
      way = [...way, first];
      await run.choose(first);
    }
  }
  return { states: seen.size, broken: undefined };
}

/** A request on its way, or its reply. */
interface Message {
  readonly id: number;
  readonly client: number;
  readonly what: string;
  readonly apply: () => unknown;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** A client in a run. */
interface Client {
  readonly storage: RegisterStorage<number>;
  readonly token: string;
  next: number;
  retries: number;
  isBusy: boolean;
  held: { life: Held; fence: number } | undefined;
  /** All that it has heard. */
  readonly heard: string[];
}

class Run {
  wrong: string | undefined;
  readonly #terms: ScheduleTerms;
  readonly #clients: Client[];
  readonly #requests: Message[] = [];
  readonly #replies: (Message & { readonly value: unknown })[] = [];
  #stored: Versioned<number> = { value: null, version: 0 };
  #versions = 0;
  #ids = 0;
  #tick = 0;
  #faults: number;
  #duplicates: number;
  #topFence = 0;

  constructor(terms: ScheduleTerms) {
    this.#terms = terms;
    this.#faults = terms.faults;
    this.#duplicates = terms.duplicates;
    this.#clients = terms.clients.map((client, i) => ({
      storage: new RegisterStorage(this.#register(i), { serverTime: false }, {
        pollMs: { min: 1, max: 1 },
        maxClockSkewMs: SKEW_MS,
        clock: this.#clock(client),
        entropy: { uuid: () => "unused", random: () => 0 },
      }),
      token: `token-${i}`,
      next: 0,
      retries: client.retries,
      isBusy: false,
      held: undefined,
      heard: [],
    }));
  }

  /** All that can happen now. */
  choices(): string[] {
    const list: string[] = [];
    for (const { id } of this.#replies) {
      list.push(`reply ${id}`);
      if (this.#faults > 0) list.push(`fail ${id}`);
    }
    for (const { id } of this.#requests) {
      list.push(`arrive ${id}`);
      if (this.#duplicates > 0) list.push(`twice ${id}`);
      if (this.#faults > 0) list.push(`fail ${id}`);
    }
    this.#clients.forEach((client, i) => {
      if (!client.isBusy && client.next < this.#terms.clients[i]!.commands.length) {
        list.push(`begin ${i}`);
      }
    });
    if (this.#tick < this.#terms.ticks) list.push("tick");
    return list;
  }

  /** Lets one thing happen, and all that follows from it at once. */
  async choose(choice: string): Promise<void> {
    const [what, number] = choice.split(" ");
    const id = Number(number);
    if (what === "tick") this.#tick++;
    else if (what === "begin") this.#begin(id);
    else if (what === "reply") this.#reply(id);
    else if (what === "fail") this.#fail(id);
    else this.#arrive(id, what === "twice");
    await turn();
    this.#check();
  }

  /** Equal if nothing that comes can differ. */
  key(): string {
    const replies = this.#replies.map((r) => `${r.client} ${r.what} ${JSON.stringify(r.value)}`);
    const requests = this.#requests.map((r) => `${r.client} ${r.what}`);
    return [
      this.#tick,
      this.#faults,
      this.#duplicates,
      this.#stored.version,
      this.#stored.value,
      requests.sort().join(),
      replies.sort().join(),
      ...this.#clients.map((c) => `${c.next} ${c.isBusy} ${c.heard.join()}`),
    ].join("\n");
  }

  #register(client: number): Register<number> {
    const call = <T>(what: string, apply: () => T) =>
      new Promise<T>((resolve, reject) => {
        const id = this.#ids++;
        const settle = resolve as (value: unknown) => void;
        this.#requests.push({ id, client, what, apply, resolve: settle, reject });
      });
    return {
      key: (name) => name,
      ...(this.#terms.absent ? { absent: 0 } : {}),
      read: () => call("read", () => this.#stored),
      write: (_, { value, fence }, version) =>
        call(`write over ${version} ${value}`, (): Written<number> => {
          if (this.#stored.version !== version) return { ok: false };
          const before = this.#stored.value;
          this.#stored = { value, version: ++this.#versions };
          if (fence !== (before === null ? 0 : decodeRecord(before).fence)) this.#noteGrant(fence);
          return { ok: true, version: this.#versions };
        }),
    };
  }

  #noteGrant(fence: number): void {
    if (fence <= this.#topFence) this.wrong ??= "G2: fences do not rise";
    this.#topFence = Math.max(this.#topFence, fence);
  }

  #begin(i: number): void {
    const client = this.#clients[i]!;
    const what = this.#terms.clients[i]!.commands[client.next++]!;
    const command = this.#command(client, what);
    if (!command) return;
    client.isBusy = true;
    const sentAt = this.#read(this.#terms.clients[i]!);
    if (command.type === "release") client.held = undefined;
    client.storage.execute(NAME, command).then(
      (outcome) => this.#learn(i, sentAt, command, outcome),
      (error) => {
        client.heard.push(`failed at ${this.#tick}`);
        if (!(error instanceof StorageError)) this.wrong ??= `error: ${error}`;
        client.isBusy = false;
        if (client.retries-- > 0) client.next--;
      },
    );
  }

  #command({ token, held }: Client, what: string): Command | undefined {
    if (what === "acquire") return acquire(token, { ttlMs: TTL_MS });
    if (what === "release") return { type: "release", token, keepMs: 0, spentMs: TTL_MS };
    return held && { type: "renew", token, fence: held.fence, ttlMs: TTL_MS };
  }

  #learn(i: number, sentAt: Stamp, command: Command, outcome: Outcome): void {
    const client = this.#clients[i]!;
    client.isBusy = false;
    client.heard.push(`${outcome.type} at ${this.#tick}`);
    const record = this.#stored.value === null ? undefined : decodeRecord(this.#stored.value);
    const own = record?.holders.find((h) => h.token === client.token);
    const isOwnLive = own && own.expiresAtMs > this.#latestMs();
    const { life } = client.held ?? {};
    const now = this.#read(this.#terms.clients[i]!);
    if (outcome.type === "granted") {
      client.held = { life: granted(sentAt, TTL_MS), fence: outcome.fence };
    } else if (outcome.type === "renewed" && life && !lossAt(life, TERMS, now)) {
      client.held!.life = renewed(life, sentAt, TTL_MS, now);
    } else if (command.type !== "release") {
      const isRefused = outcome.type !== "renewed";
      if (isRefused && isOwnLive) this.wrong ??= `G11: a holder is told ${outcome.type}`;
      client.held = undefined;
    }
  }

  #arrive(id: number, again: boolean): void {
    const at = this.#requests.findIndex((r) => r.id === id);
    const request = this.#requests[at]!;
    if (again) this.#duplicates--;
    else this.#requests.splice(at, 1);
    const value = request.apply();
    // A second copy is not answered: the client has its answer from the first.
    if (!this.#replies.some((r) => r.id === id)) this.#replies.push({ ...request, value });
  }

  #reply(id: number): void {
    const [reply] = this.#replies.splice(this.#replies.findIndex((r) => r.id === id), 1);
    const { client, value, resolve } = reply!;
    this.#clients[client]!.heard.push(`${JSON.stringify(value)} at ${this.#tick}`);
    resolve(value);
  }

  /** The client hears that the connection broke; what is on its way goes on. */
  #fail(id: number): void {
    this.#faults--;
    const message = [...this.#replies, ...this.#requests].find((m) => m.id === id)!;
    const at = this.#replies.findIndex((r) => r.id === id);
    if (at >= 0) this.#replies.splice(at, 1);
    this.#clients[message.client]!.heard.push(`fault at ${this.#tick}`);
    message.reject(new StorageError("Cannot reach server as it is gone", { transient: true }));
  }

  /** Whoever trusts its lease is in the record, live by every clock. */
  #check(): void {
    const record = this.#stored.value === null ? undefined : decodeRecord(this.#stored.value);
    this.#clients.forEach(({ held, token }, i) => {
      if (!held || lossAt(held.life, TERMS, this.#read(this.#terms.clients[i]!))) return;
      const own = record?.holders.find((h) => h.token === token && h.fence === held.fence);
      if (!own || own.expiresAtMs <= this.#latestMs()) {
        this.wrong ??= `G5: client ${i} trusts a lease that the register ended`;
      }
    });
  }

  #latestMs(): number {
    return Math.max(...this.#terms.clients.map((c) => this.#read(c).wallMs));
  }

  #read({ offsetMs }: ScheduledClient): Stamp {
    const ms = this.#tick * TICK_MS;
    return { monotonicMs: ms, wallMs: EPOCH_MS + ms + offsetMs };
  }

  #clock(client: ScheduledClient): Clock {
    return {
      read: () => this.#read(client),
      setTimer: (_, callback) => {
        queueMicrotask(callback);
        return { [dispose]: () => {} };
      },
    };
  }
}

const TERMS = { ttlMs: TTL_MS, renewEveryMs: TICK_MS, maxHoldMs: undefined };
