/**
 * A simulated process: it runs the real library on a clock of its own, can be frozen, and can die.
 *
 * @module
 */
import type { Clock, Stamp } from "../../core/clock.ts";
import { dispose } from "../../core/disposable.ts";
import type { Entropy } from "../../core/entropy.ts";
import type { Host } from "./host.ts";
import type { Random } from "./random.ts";
import type { World } from "./world.ts";

/** A timer fires up to this much late, in milliseconds. */
const TIMER_LAG_MS = 1;

/** One process. Everything that happens to it passes through {@linkcode Process.deliver}. */
export class Process {
  /** What the trace calls it. */
  readonly id: string;
  /** Its machine. */
  readonly host: Host;
  /** The library's time. */
  readonly clock: Clock;
  /** The library's randomness. */
  readonly entropy: Entropy;
  /** What the process does. */
  readonly random: Random;
  /** Whether it will never run again. */
  isDead = false;
  /** Timers of the library that have not run yet. */
  pendingTimers = 0;
  /** When it last ran again after a freeze, in true time. */
  thawedAtMs = -Infinity;

  readonly #world: World;
  readonly #onCrash: () => void;
  #frozenUntilMs: number | undefined;
  #waiting: (() => void)[] = [];
  #diedAt: Stamp | undefined;

  constructor(world: World, host: Host, id: string, random: Random, onCrash: () => void) {
    this.#world = world;
    this.#onCrash = onCrash;
    this.id = id;
    this.host = host;
    this.random = random.fork("work");
    const tokens = random.fork("tokens");
    const jitter = random.fork("jitter");
    const lag = random.fork("lag");
    this.entropy = { uuid: () => `${tokens.hex()}-${id}`, random: () => jitter.next() };
    this.clock = {
      read: () => this.#diedAt ?? host.read(),
      setTimer: (ms, callback) => this.#setTimer(ms, callback, lag),
    };
  }

  /** Whether its code runs now. */
  get isRunning(): boolean {
    return !this.isDead && this.#frozenUntilMs === undefined;
  }

  /** Whether it is frozen. */
  get isFrozen(): boolean {
    return this.#frozenUntilMs !== undefined;
  }

  /** Runs a callback now, or when the process is thawed, or never. */
  deliver(callback: () => void): void {
    if (this.isDead) return;
    if (this.#frozenUntilMs === undefined) callback();
    else this.#waiting.push(callback);
  }

  /**
   * Nothing of the process runs for a while.
   *
   * @param ms how long
   * @param how `suspend`: its machine's monotonic clock stands still, too
   */
  freeze(ms: number, how: "freeze" | "suspend"): void {
    if (this.isDead) return;
    this.#world.log(this.id, `${how} for ${ms.toFixed(3)} ms`);
    if (how === "suspend") this.host.suspend();
    this.#frozenUntilMs = Math.max(this.#frozenUntilMs ?? 0, this.#world.nowMs + ms);
    this.#world.at(this.#frozenUntilMs, () => this.#thaw());
  }

  /** What waited while it was frozen happens, in some order, each thing at its own event. */
  #thaw(): void {
    if (this.isDead || this.#world.nowMs < (this.#frozenUntilMs ?? Infinity)) return;
    this.#world.log(this.id, "thaw");
    this.host.resume();
    this.#frozenUntilMs = undefined;
    this.thawedAtMs = this.#world.nowMs;
    const waiting = this.#waiting;
    this.#waiting = [];
    while (waiting.length > 0) {
      const next = this.random.chance(0.5) ? 0 : this.random.int(0, waiting.length - 1);
      const [callback] = waiting.splice(next, 1);
      this.#world.at(this.#world.nowMs, () => this.deliver(callback!));
    }
  }

  /** Nothing of the process ever runs again: no timer, no answer, and its clock stands still. */
  crash(): void {
    if (this.isDead) return;
    this.#world.log(this.id, "crash");
    this.#diedAt = this.host.read();
    this.isDead = true;
    this.#waiting = [];
    this.#onCrash();
  }

  /** Waits by the process's own clock; not a timer of the library. */
  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.#world.at(this.#world.nowMs + ms, () => this.deliver(resolve));
    });
  }

  #setTimer(ms: number, callback: () => void, lag: Random): Disposable {
    if (this.isDead) return { [dispose]: () => {} };
    const dueMs = this.host.monotonicMs() + Math.max(ms, 0);
    let cancel: (() => void) | undefined;
    let isPending = true;
    this.pendingTimers++;
    const fire = (): void => {
      if (!isPending) return;
      if (this.host.monotonicMs() < dueMs) return arm();
      isPending = false;
      this.pendingTimers--;
      callback();
    };
    const arm = (): void => {
      const leftMs = (dueMs - this.host.monotonicMs()) / this.host.rate;
      const atMs = this.#world.nowMs + Math.max(leftMs, 0) + lag.next() * TIMER_LAG_MS;
      cancel = this.#world.at(atMs, () => this.deliver(fire));
    };
    arm();
    return {
      [dispose]: () => {
        if (!isPending) return;
        isPending = false;
        this.pendingTimers--;
        cancel!();
      },
    };
  }
}
