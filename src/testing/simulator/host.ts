/**
 * The clocks of a simulated machine, and all that real ones do: they run fast or slow, the wall clock is
 * stepped, the monotonic clock stands still while the machine is suspended.
 *
 * @module
 */
import type { Stamp } from "../../core/clock.ts";
import type { World } from "./world.ts";

/** The clocks of one machine. */
export class Host {
  /** How fast its clocks run. */
  readonly rate: number;
  /** When its wall clock was last set back, in true time. */
  setBackAtMs = -Infinity;
  /** When its wall clock was last set, in true time. */
  steppedAtMs = -Infinity;
  /** When it was last suspended, in true time. */
  suspendedAtMs = -Infinity;

  readonly #world: World;
  #wallAtSyncMs: number;
  #syncMs = 0;
  #suspendedMs = 0;
  #suspendedSinceMs: number | undefined;

  /**
   * @param world true time
   * @param rate how fast the clocks run
   * @param offsetMs how far the wall clock is off
   */
  constructor(world: World, rate: number, offsetMs: number) {
    this.#world = world;
    this.rate = rate;
    this.#syncMs = world.nowMs;
    this.#wallAtSyncMs = world.wallMs() + offsetMs;
  }

  /** Reads both clocks. */
  read(): Stamp {
    return { monotonicMs: this.monotonicMs(), wallMs: this.wallMs() };
  }

  /** The monotonic clock. */
  monotonicMs(): number {
    const untilMs = this.#suspendedSinceMs ?? this.#world.nowMs;
    return this.rate * (untilMs - this.#suspendedMs);
  }

  /** The wall clock. */
  wallMs(): number {
    return this.#wallAtSyncMs + this.rate * (this.#world.nowMs - this.#syncMs);
  }

  /** How far the wall clock is off. */
  offsetMs(): number {
    return this.wallMs() - this.#world.wallMs();
  }

  /** Sets the wall clock to be off by `offsetMs`. */
  setWall(offsetMs: number): void {
    const nowMs = this.#world.nowMs;
    this.steppedAtMs = nowMs;
    if (offsetMs < this.offsetMs()) this.setBackAtMs = nowMs;
    this.#wallAtSyncMs = this.#world.wallMs() + offsetMs;
    this.#syncMs = nowMs;
  }

  /** Whether nothing runs on it. */
  get isSuspended(): boolean {
    return this.#suspendedSinceMs !== undefined;
  }

  /** The monotonic clock stands still until {@linkcode Host.resume}. */
  suspend(): void {
    this.#suspendedSinceMs ??= this.#world.nowMs;
    this.suspendedAtMs = this.#world.nowMs;
  }

  /** The monotonic clock goes on where it stood. */
  resume(): void {
    if (this.#suspendedSinceMs === undefined) return;
    this.#suspendedMs += this.#world.nowMs - this.#suspendedSinceMs;
    this.#suspendedSinceMs = undefined;
    this.suspendedAtMs = this.#world.nowMs;
  }

  /**
   * Whether its two clocks together have shown all the time that passed since an instant. They have not if
   * the wall clock was set back and the machine was suspended: no holder can know.
   */
  isTrueSince(sinceMs: number): boolean {
    return this.setBackAtMs < sinceMs || this.suspendedAtMs < sinceMs;
  }
}
