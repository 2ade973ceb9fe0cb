/**
 * The simulated network between processes and servers, with the client library at its near end.
 *
 * @module
 */
import { StorageError } from "../../core/errors.ts";
import type { Faults, SimulatedFault } from "./faults.ts";
import type { Process } from "./process.ts";
import type { Random } from "./random.ts";
import type { World } from "./world.ts";

/** One request. */
export interface Message<T> {
  /** What the trace calls it. */
  readonly label: string;
  /** What it does at the server, each time that a copy arrives. */
  readonly apply: () => T | Promise<T>;
  /** Gives up. */
  readonly signal?: AbortSignal | undefined;
}

/** How a network behaves when nothing goes wrong, and how wrong it goes. */
export interface NetworkOptions {
  /** One way, in milliseconds. */
  readonly latencyMs: { readonly min: number; readonly max: number };
  /** The latest that a late copy arrives, in milliseconds. */
  readonly lateMs: number;
  /** Whether the client library goes on resending after its caller gave up. */
  readonly deafLibrary: boolean;
}

/** What a message finds at its destination. */
export interface Destination {
  /** Whether it answers. */
  readonly isUp: boolean;
}

/** How often a client library resends. */
const RESENDS = 3;

/** Carries messages. */
export class Network {
  readonly #world: World;
  readonly #faults: Faults;
  readonly #random: Random;
  readonly #options: NetworkOptions;
  readonly #streams = new Map<string, Random>();

  constructor(world: World, faults: Faults, random: Random, options: NetworkOptions) {
    this.#world = world;
    this.#faults = faults;
    this.#random = random;
    this.#options = options;
  }

  /**
   * Sends a request and its copies.
   *
   * @returns the first answer that comes through; never settles if none does
   */
  call<T>(from: Process, to: Destination, message: Message<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      if (from.isDead) return;
      const call = new Call(message, resolve, reject);
      const { signal } = message;
      if (signal && !this.#options.deafLibrary) {
        if (signal.aborted) return call.reject(signal.reason);
        const onAbort = (): void => call.reject(signal.reason);
        signal.addEventListener("abort", onAbort, { once: true });
        call.onSettle = () => signal.removeEventListener("abort", onAbort);
      }
      if (this.#befalls(from, "before-send") || from.isFrozen) {
        // What was written to the socket before the freeze leaves after it.
        from.deliver(() => this.#leave(from, to, call));
      } else {
        this.#leave(from, to, call);
        this.#befalls(from, "after-send");
      }
    });
  }

  /** Freezes or kills a process at a point of its work; whether its next act has to wait. */
  befalls(from: Process, point: "before-use"): boolean {
    return this.#befalls(from, point);
  }

  /** A message from a server to a process: a hint. */
  push(to: Process, callback: () => void): void {
    const who = to.id;
    if (this.#faults.strike("hint-lost", who)) return;
    const lateMs = this.#faults.strike("hint-late", who) ? this.#lateMs("hint-late", who) : 0;
    const times = this.#faults.strike("hint-twice", who) ? 2 : 1;
    for (let i = 0; i < times; i++) {
      const atMs = this.#world.nowMs + this.#latencyMs(who) + lateMs;
      this.#world.at(atMs, () => to.deliver(callback));
    }
  }

  #befalls(
    from: Process,
    point: "before-send" | "after-send" | "after-reply" | "before-use",
  ): boolean {
    const who = from.id;
    if (this.#faults.strike(`crash-${point}`, who)) {
      from.crash();
      return true;
    }
    if (!this.#faults.strike(`freeze-${point}`, who)) return false;
    const random = this.#faults.stream(`freeze-${point}`, who);
    from.freeze(random.next() * random.next() * this.#options.lateMs, "freeze");
    return true;
  }

  #leave<T>(from: Process, to: Destination, call: Call<T>): void {
    const who = from.id;
    const { label } = call.message;
    if (this.#faults.strike("failed-before", who)) {
      this.#world.log(who, `${label} fails before it is sent`);
      this.#fail(from, call);
      return;
    }
    this.#copy(from, to, call, this.#delayMs("request-late", who), false);
    for (const fault of ["duplicate-soon", "duplicate-late"] as const) {
      if (!this.#faults.strike(fault, who)) continue;
      const lateMs = fault === "duplicate-late" ? this.#lateMs(fault, who) : 0;
      this.#copy(from, to, call, this.#latencyMs(who) + lateMs, true);
    }
    if (this.#faults.strike("library-resend", who)) this.#resend(from, to, call, RESENDS);
  }

  /** The client library sends the request again as long as nothing has come back. */
  #resend<T>(from: Process, to: Destination, call: Call<T>, times: number): void {
    const random = this.#faults.stream("library-resend", from.id);
    const afterMs = random.chance(0.5)
      ? random.between(50, 1000)
      : this.#lateMs("library-resend", from.id);
    this.#world.at(this.#world.nowMs + afterMs, () =>
      from.deliver(() => {
        if (call.isSettled) return;
        this.#copy(from, to, call, this.#delayMs("request-late", from.id), true);
        if (times > 1) this.#resend(from, to, call, times - 1);
      }));
  }

  /** One copy of a request on its way, and its reply. */
  #copy<T>(from: Process, to: Destination, call: Call<T>, delayMs: number, again: boolean): void {
    const who = from.id;
    const { label, apply } = call.message;
    this.#world.log(who, `${again ? "sends again" : "sends"} ${label}`);
    if (this.#faults.strike("request-lost", who)) {
      this.#world.log(who, `${label} is lost`);
      return;
    }
    this.#world.at(this.#world.nowMs + delayMs, () => {
      if (!to.isUp) {
        this.#world.log("server", `down for ${who} ${label}`);
        if (this.#stream(who).chance(0.5)) this.#fail(from, call);
        return;
      }
      answer(apply).then(
        (value) => this.#reply(from, call, () => call.resolve(value)),
        (error) => this.#reply(from, call, () => call.reject(error)),
      );
    });
  }

  #reply<T>(from: Process, call: Call<T>, settle: () => void): void {
    const who = from.id;
    const { label } = call.message;
    if (this.#faults.strike("failed-after", who)) return this.#fail(from, call);
    if (this.#faults.strike("reply-lost", who)) {
      this.#world.log("server", `reply to ${who} ${label} is lost`);
      return;
    }
    const atMs = this.#world.nowMs + this.#delayMs("reply-late", who);
    this.#world.at(atMs, () =>
      from.deliver(() => {
        if (call.isSettled) return;
        settle();
        this.#befalls(from, "after-reply");
      }));
  }

  /** The library of the product reports that the connection failed. */
  #fail<T>(from: Process, call: Call<T>): void {
    const atMs = this.#world.nowMs + this.#latencyMs(from.id);
    this.#world.at(atMs, () =>
      from.deliver(() => {
        this.#world.log(from.id, `${call.message.label} failed`);
        call.reject(new StorageError("Cannot reach server as it is gone", { transient: true }));
      }));
  }

  #delayMs(fault: "request-late" | "reply-late", who: string): number {
    const lateMs = this.#faults.strike(fault, who) ? this.#lateMs(fault, who) : 0;
    return this.#latencyMs(who) + lateMs;
  }

  #lateMs(fault: SimulatedFault, who: string): number {
    const random = this.#faults.stream(fault, who);
    return random.next() * random.next() * this.#options.lateMs;
  }

  #latencyMs(who: string): number {
    const { min, max } = this.#options.latencyMs;
    return this.#stream(who).between(min, max);
  }

  /** What is drawn for one process does not disturb the others. */
  #stream(who: string): Random {
    let stream = this.#streams.get(who);
    if (!stream) this.#streams.set(who, stream = this.#random.fork(who));
    return stream;
  }
}

/** One request under way. */
class Call<T> {
  readonly message: Message<T>;
  isSettled = false;
  onSettle: (() => void) | undefined;
  readonly #resolve: (value: T) => void;
  readonly #reject: (error: unknown) => void;

  constructor(
    message: Message<T>,
    resolve: (value: T) => void,
    reject: (error: unknown) => void,
  ) {
    this.message = message;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  resolve(value: T): void {
    this.#settle();
    this.#resolve(value);
  }

  reject(error: unknown): void {
    this.#settle();
    this.#reject(error);
  }

  #settle(): void {
    this.isSettled = true;
    this.onSettle?.();
  }
}

async function answer<T>(apply: () => T | Promise<T>): Promise<T> {
  return await apply();
}
