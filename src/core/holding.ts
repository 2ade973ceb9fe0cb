/**
 * What goes on behind a `Lease` handle. The heartbeat and the gate refer to the holding, the handle refers
 * to it too, and it never refers to the handle (unless pinned): so a handle that nobody keeps any more can
 * be collected, and its lease ends with its ttl.
 *
 * @module
 */
import { backoffMs } from "./backoff.ts";
import { elapsedForHolderMs, elapsedForObserverMs, type Stamp } from "./clock.ts";
import { HoldfastError, LeaseLostError, type LossReason } from "./errors.ts";
import { emit, type LockEvent } from "./events.ts";
import type { Turn } from "./gate.ts";
import { type Beating, Heartbeat } from "./heartbeat.ts";
import {
  granted,
  type Held,
  leftMs,
  type Life,
  lossAt,
  renewalFailed,
  renewed,
  renewInMs,
  ttlToAskMs,
} from "./lifecycle.ts";
import type { Refused, ReleaseCommand, RenewCommand, Renewed } from "./record.ts";
import { insist, RETRY_MS, sendCommand } from "./request.ts";
import type { Settings, WaitUntil } from "./settings.ts";

/** Where a lease is in its life, for its user. */
export type LeaseStatus = "held" | "released" | "detached" | "lost";

/** What a grant is made of. */
export interface Grant {
  /** The secret identity of the holding. */
  readonly token: string;
  /** The fencing token. */
  readonly fence: number;
  /** Taken before the request was sent. */
  readonly sentAt: Stamp;
  /** What was asked for, in milliseconds. */
  readonly ttlMs: number;
  /** How long the caller waited, in milliseconds. */
  readonly waitedMs: number;
  /** The place in the gate. */
  readonly turn: Turn | undefined;
  /** Takes work that goes on in the background. */
  readonly waitUntil: WaitUntil | undefined;
}

/** The state of one held lease. */
export class Holding implements Beating {
  readonly settings: Settings;
  readonly grant: Grant;
  /** Told once, when the lease is lost. */
  onLost: ((error: LeaseLostError) => void) | undefined;
  /** Told when the lease is over, however it ended. */
  onEnd: ((holding: Holding) => void) | undefined;
  /** Keeps the handle alive, if its user said so. */
  pinned: unknown;

  #life: Life;
  /** After the reply: `minHoldMs` counts as an observer does. */
  readonly #grantedAt: Stamp;
  #loop: Heartbeat | undefined;
  /** Those under way; none most of the time, and an empty list is small. */
  readonly #renewals: { settled: Promise<void>; abort: (reason: unknown) => void }[] = [];
  #releasing: Promise<boolean> | undefined;
  #error: LeaseLostError | undefined;

  constructor(settings: Settings, grant: Grant) {
    this.settings = settings;
    this.grant = grant;
    this.#life = granted(grant.sentAt, grant.ttlMs);
    this.#grantedAt = settings.clock.read();
    grant.turn?.hold((now) => this.leftMs(now));
    if (settings.autoRenew) this.watchOver();
    const { fence, waitedMs } = grant;
    this.emit({ type: "acquired", name: this.name, fence, waitedMs });
  }

  get name(): string {
    return this.settings.name;
  }

  get renewEveryMs(): number {
    return this.settings.renewEveryMs;
  }

  get requestTimeoutMs(): number {
    return this.settings.requestTimeoutMs;
  }

  /** Where the lease is in its life, by the clock of this moment. */
  get status(): LeaseStatus {
    this.loseIfOver(this.settings.clock.read());
    return this.#life.status;
  }

  /** Why the lease cannot be used any more; `undefined` while it is held. */
  get error(): LeaseLostError | undefined {
    if (this.status === "held") return undefined;
    return this.#error ??= this.#makeError((this.#life as Exclude<Life, Held>).reason);
  }

  /** The error for a lease that is held, but not for as long as it has to be. */
  tooShort(minMs: number): LeaseLostError {
    const leftMs = Math.floor(this.leftMs(this.settings.clock.read()));
    return new LeaseLostError(
      `Cannot use lease "${this.name}" as less than ${minMs} ms are left: current value is ${leftMs} ms`,
      { reason: "expired" },
    );
  }

  /** Puts the lease under a loop that renews it if it should, and declares its loss in time. */
  watchOver(): void {
    if (this.#loop || this.#life.status !== "held") return;
    const { storage, clock, autoRenew } = this.settings;
    this.#loop = autoRenew === true ? Heartbeat.of(storage, clock) : new Heartbeat(storage, clock);
    this.#loop.add(this);
  }

  leftMs(now: Stamp): number {
    return this.#life.status === "held" ? leftMs(this.#life, this.settings, now) : 0;
  }

  renewInMs(now: Stamp): number {
    const isUnderWay = this.#renewals.length > 0;
    if (this.#life.status !== "held" || isUnderWay || !this.settings.autoRenew) return Infinity;
    return renewInMs(this.#life, this.settings, now);
  }

  loseIfOver(now: Stamp): boolean {
    if (this.#life.status !== "held") return true;
    const reason = lossAt(this.#life, this.settings, now);
    if (reason) this.#lose(reason);
    return reason !== undefined;
  }

  renewal(now: Stamp, ttlMs: number = this.settings.ttlMs): RenewCommand {
    const life = this.#life.status === "held" ? this.#life : undefined;
    return {
      type: "renew",
      token: this.grant.token,
      fence: this.grant.fence,
      ttlMs: ttlToAskMs(ttlMs, life, this.settings, now),
    };
  }

  renewing(settled: Promise<void>, abort: (reason: unknown) => void): void {
    const renewal = { settled, abort };
    this.#renewals.push(renewal);
    settled.finally(() => {
      this.#renewals.splice(this.#renewals.indexOf(renewal), 1);
      this.#loop?.touch(this);
    });
  }

  answered(
    sentAt: Stamp,
    command: RenewCommand,
    answer: { readonly outcome: Renewed | Refused } | { readonly error: unknown },
  ): void {
    const { clock, entropy } = this.settings;
    const { fence } = this.grant;
    const now = clock.read();
    if (this.loseIfOver(now) || this.#life.status !== "held") return;
    if ("error" in answer) {
      // A short lease has no time for the usual pause.
      const retryMs = { ...RETRY_MS, min: Math.min(RETRY_MS.min, this.renewEveryMs) };
      const pauseMs = backoffMs(this.#life.failed?.times ?? 0, retryMs, entropy.random());
      this.#life = renewalFailed(this.#life, now, pauseMs);
      const remainingMs = this.leftMs(now);
      this.emit({ type: "renewFailed", name: this.name, fence, remainingMs, error: answer.error });
    } else if (answer.outcome.type === "refused") {
      this.#lose(answer.outcome.reason);
    } else {
      this.#life = renewed(this.#life, sentAt, command.ttlMs, now);
      const tookMs = elapsedForHolderMs(sentAt, now);
      this.emit({ type: "renewed", name: this.name, fence, tookMs });
    }
  }

  /** Extends the lease once, now. */
  async renewNow(ttlMs: number): Promise<void> {
    if (this.error) throw this.error;
    const sentAt = this.settings.clock.read();
    const command = this.renewal(sentAt, ttlMs);
    const limitMs = Math.min(this.requestTimeoutMs, this.leftMs(sentAt));
    const { result, abort } = sendCommand(this.settings, "renew lease", command, { limitMs });
    this.renewing(result.then(() => {}, () => {}), abort);
    try {
      const outcome = await result;
      this.answered(sentAt, command, { outcome });
    } catch (error) {
      this.answered(sentAt, command, { error });
      if (this.#life.status === "held") throw error;
    }
    this.#loop?.touch(this);
    if (this.error) throw this.error;
  }

  /** Gives the lease back. See `Lease.release`. */
  release(awaited = true): Promise<boolean> {
    if (this.#releasing) return this.#releasing;
    const { status } = this;
    if (status === "lost" || status === "detached") return Promise.resolve(false);
    const inFlight = this.#renewals.map((renewal) => renewal.settled);
    if (status === "held") this.#end("released", "released");
    return this.#releasing = this.#giveBack(awaited, inFlight);
  }

  /** Ends the lease for this process without giving it back. */
  detach(): void {
    if (this.error) throw this.error;
    const { fence } = this.grant;
    const remainingMs = this.leftMs(this.settings.clock.read());
    this.#end("detached", "detached");
    this.emit({ type: "detached", name: this.name, fence, remainingMs });
  }

  /** The handle is gone: stop renewing, so that the ttl frees the lock. */
  abandon(): void {
    if (this.status !== "held") return;
    const { fence } = this.grant;
    const remainingMs = this.leftMs(this.settings.clock.read());
    this.#end("lost", "abandoned");
    this.emit({ type: "abandoned", name: this.name, fence, remainingMs });
  }

  emit(event: LockEvent): void {
    emit(this.settings.onEvent, event);
  }

  #lose(reason: LossReason): void {
    this.#end("lost", reason);
    this.#error = this.#makeError(reason);
    this.emit({ type: "lost", name: this.name, fence: this.grant.fence, reason });
    this.onLost?.(this.#error);
    this.onLost = undefined;
  }

  /** Stops renewing and opens the gate, so that the next waiter of this process can go on. */
  #end(status: "released" | "detached" | "lost", reason: LossReason): void {
    this.#life = { status, reason };
    for (const { abort } of this.#renewals) {
      abort(new HoldfastError("lease-lost", `Lease "${this.name}" is ${WORDS[reason]}`));
    }
    this.#loop?.remove(this);
    this.onEnd?.(this);
    this.pinned = undefined;
    this.grant.turn?.leave();
  }

  async #giveBack(awaited: boolean, renewals: readonly Promise<void>[]): Promise<boolean> {
    const { fence } = this.grant;
    try {
      const [{ freed }] = await insist(
        this.settings,
        () => Promise.all([this.#sendRelease(), ...renewals]),
      );
      this.emit({ type: "released", name: this.name, fence, heldMs: this.#heldMs(), awaited });
      // A second release finds nothing to give back.
      this.#releasing = Promise.resolve(false);
      return freed;
    } catch (error) {
      this.#releasing = undefined;
      this.emit({ type: "releaseFailed", name: this.name, fence, error });
      throw error;
    }
  }

  #sendRelease(): Promise<{ freed: boolean }> {
    const { minHoldMs, ttlMs } = this.settings;
    const command: ReleaseCommand = {
      type: "release",
      token: this.grant.token,
      keepMs: Math.max(0, Math.ceil(minHoldMs - this.#heldMs())),
      spentMs: ttlMs,
    };
    return sendCommand(this.settings, "release lease", command).result;
  }

  #heldMs(): number {
    return elapsedForObserverMs(this.#grantedAt, this.settings.clock.read());
  }

  #makeError(reason: LossReason): LeaseLostError {
    return new LeaseLostError(
      `Cannot use lease "${this.name}" as it is ${
        WORDS[reason]
      }: current value is fence ${this.grant.fence}`,
      { reason },
    );
  }
}

const WORDS: Readonly<Record<LossReason, string>> = {
  "expired": "expired",
  "evicted": "evicted",
  "superseded": "superseded by a later holder",
  "max-hold": "held for its longest time",
  "abandoned": "abandoned",
  "released": "released",
  "detached": "detached",
};
