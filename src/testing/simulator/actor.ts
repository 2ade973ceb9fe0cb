/**
 * A caller of the library: does with locks all that users do, well and badly.
 *
 * @module
 */
import { asyncDispose, dispose } from "../../core/disposable.ts";
import {
  HoldfastError,
  LeaseLostError,
  LockTimeoutError,
  StorageError,
} from "../../core/errors.ts";
import type { Baton, Lease } from "../../core/lease.ts";
import { Lock } from "../../core/lock.ts";
import type { LockOptions } from "../../core/settings.ts";
import type { LeaseStorage } from "../../core/storage.ts";
import type { Liveness } from "./liveness.ts";
import type { Network } from "./network.ts";
import type { Process } from "./process.ts";
import type { Random } from "./random.ts";
import type { Resources } from "./resources.ts";
import type { Deed, Scenario } from "./scenario.ts";
import type { Server } from "./server.ts";
import type { Trusts } from "./trust.ts";
import { Work } from "./work.ts";
import type { World } from "./world.ts";

/** Where an actor acts. */
export interface Stage {
  readonly world: World;
  readonly scenario: Scenario;
  readonly network: Network;
  readonly server: Server;
  readonly resources: Resources;
  readonly trusts: Trusts;
  readonly liveness: Liveness;
  readonly names: readonly string[];
  /** Hands a baton over, to whoever it may reach, any number of times. */
  readonly handOver: (from: Process, baton: Baton, options: LockOptions) => void;
  /** Takes work that goes on behind a call. */
  readonly background: (process: Process, work: Promise<unknown>) => void;
  /** Something that must not happen if nothing goes wrong. */
  readonly strange: (what: string) => void;
  /** Whether the workload is over. */
  readonly isOver: () => boolean;
}

/** A timer, and the turn after it. */
const PUNCTUAL_MS = 8;

/** One line of control in one process. */
export class Actor {
  /** Whether it has done all it had to. */
  isDone = false;
  /** What it is about. */
  doing = "nothing";
  readonly #stage: Stage;
  readonly #process: Process;
  readonly #storage: LeaseStorage;
  readonly #random: Random;
  readonly #label: string;
  readonly #work: Work;

  constructor(stage: Stage, process: Process, storage: LeaseStorage, label: string) {
    this.#stage = stage;
    this.#process = process;
    this.#storage = storage;
    this.#label = label;
    this.#random = process.random.fork(label);
    this.#work = new Work(stage, process, this.#random);
  }

  /** Does one thing after another, and at the end takes each lock once more. */
  run(): Promise<void> {
    const { scenario, isOver, names } = this.#stage;
    return this.#play(async () => {
      while (!isOver()) {
        await this.#process.sleep(this.#random.next() * scenario.thinkMs);
        if (isOver()) break;
        const deed = this.#random.pick(scenario.deeds);
        await this.#tolerate(deed, () => this.#do(deed));
      }
      for (const name of names) await this.#tolerate("the end", () => this.#last(name));
    });
  }

  /** Takes over a lease that another process detached. */
  resume(baton: Baton, options: LockOptions): Promise<void> {
    const lock = new Lock({ ...options, ...this.#own() });
    return this.#play(() =>
      this.#tolerate("resume", async () => {
        const lease = await lock.resume(JSON.parse(JSON.stringify(baton)));
        if (!lease || this.#process.isDead) return;
        this.#stage.trusts.resumed(baton);
        await this.#useAndEnd(lease, options);
      })
    );
  }

  /** Errors that no user has to expect end the run. */
  async #play(part: () => Promise<void>): Promise<void> {
    try {
      await part();
    } catch (error) {
      this.#fail("error", `${(error as Error)?.stack ?? error}`);
    }
    this.isDone = true;
  }

  #do(deed: Deed): Promise<void> {
    const options = this.#options();
    const lock = new Lock(options);
    switch (deed) {
      case "acquire":
        return this.#acquire(lock, options, {});
      case "acquire-timeout":
        return this.#acquireInTime(lock, options);
      case "acquire-abort":
        return this.#acquireUnlessAborted(lock, options);
      case "try-acquire":
        return this.#tryAcquire(lock, options);
      case "with":
        return this.#with(lock, options);
      case "try-with":
        return lock.tryWith((lease) => this.#workUnder(lease, options)).then(() => {});
      case "hand-over":
        return this.#handOver(lock, options);
      case "force-release":
        return lock.forceRelease().then((count) => this.#stage.world.count("forced", count));
      case "inspect":
        return this.#inspect(lock);
      case "other-capacity":
        return this.#tryAcquire(new Lock({ ...options, capacity: 1001 }), {
          ...options,
          capacity: 1001,
        });
    }
  }

  /** What this lock is, to this actor. */
  #options(name: string = this.#random.pick(this.#stage.names)): LockOptions {
    const { scenario: s } = this.#stage;
    const share = SHARES[s.lock];
    const permits = s.lock === "readers-writer" && this.#random.chance(0.3) ? share.capacity : 1;
    return {
      name,
      ttlMs: s.ttlMs,
      requestTimeoutMs: s.requestTimeoutMs,
      minHoldMs: s.minHoldMs,
      maxHoldMs: s.maxHoldMs || undefined,
      permits,
      capacity: share.capacity,
      fair: s.fair,
      queueMs: s.queueMs,
      gate: s.gate,
      autoRenew: s.autoRenew,
      ...this.#own(),
    };
  }

  /** What belongs to the process. */
  #own(): Pick<LockOptions, "storage"> & Partial<LockOptions> {
    const { trusts, background } = this.#stage;
    const process = this.#process;
    const storage = this.#storage;
    const { clock, entropy } = process;
    return {
      storage,
      clock,
      entropy,
      label: process.id,
      onEvent: (event) => trusts.happened(process, event),
      waitUntil: (work) => background(process, work),
    };
  }

  async #acquire(
    lock: Lock,
    options: LockOptions,
    wait: { signal?: AbortSignal; timeoutMs?: number | undefined },
  ): Promise<void> {
    const lease = await this.#waiting(options, () => lock.acquire(wait));
    await this.#useAndEnd(lease, options);
  }

  /** A time-out is kept by the process's own clock. */
  async #acquireInTime(lock: Lock, options: LockOptions): Promise<void> {
    const timeoutMs = Math.ceil(this.#random.next() * this.#random.next() * 20_000) + 1;
    const { world } = this.#stage;
    const { clock } = this.#process;
    const [startedAtMs, started] = [world.nowMs, clock.read().monotonicMs];
    let lease: Lease;
    try {
      lease = await this.#waiting(options, () => lock.acquire({ timeoutMs }));
    } finally {
      const tookMs = clock.read().monotonicMs - started;
      if (tookMs > timeoutMs + PUNCTUAL_MS && this.#process.thawedAtMs < startedAtMs) {
        this.#fail("G9", `acquire() took ${tookMs} of ${timeoutMs} ms`);
      }
    }
    await this.#useAndEnd(lease, options);
  }

  /** Whenever the caller gives up, the call settles at once, with the caller's reason. */
  async #acquireUnlessAborted(lock: Lock, options: LockOptions): Promise<void> {
    const { world } = this.#stage;
    const controller = new AbortController();
    const reason = new Error("enough");
    const spanMs = this.#random.pick([0, 5, 100, 3000, 30_000]);
    let abortedAtMs: number | undefined;
    const cancel = world.at(
      world.nowMs + this.#random.next() * spanMs,
      () =>
        this.#process.deliver(() => {
          abortedAtMs = world.nowMs;
          world.count("aborts");
          controller.abort(reason);
        }),
    );
    try {
      const { signal } = controller;
      const lease = await this.#waiting(
        options,
        () => this.#random.chance(0.7) ? lock.acquire({ signal }) : lock.tryAcquire({ signal }),
      );
      cancel();
      if (!lease) return;
      await this.#useAndEnd(lease, options);
    } catch (error) {
      cancel();
      if (abortedAtMs === undefined || error !== reason) throw error;
      if (world.nowMs > abortedAtMs && !this.#process.isDead) {
        this.#fail("G9", `acquire() settled ${world.nowMs - abortedAtMs} ms after the abort`);
      }
    }
  }

  async #with(lock: Lock, options: LockOptions): Promise<void> {
    const timeoutMs = this.#random.chance(0.5) ? this.#random.int(1, 30_000) : undefined;
    const done = this.#waits(options);
    const work = (lease: Lease): Promise<void> => {
      done();
      return this.#workUnder(lease, options);
    };
    await lock.with(work, { timeoutMs }).finally(done);
  }

  async #tryAcquire(lock: Lock, options: LockOptions): Promise<void> {
    const lease = await lock.tryAcquire();
    if (!lease) return;
    await this.#useAndEnd(lease, options);
  }

  async #handOver(lock: Lock, options: LockOptions): Promise<void> {
    const lease = await this.#waiting(options, () => lock.acquire({ timeoutMs: 20_000 }));
    try {
      await this.#work.use(lease, options);
      this.#stage.handOver(this.#process, lease.detach(), options);
    } finally {
      const wasDetached = lease.status === "detached";
      if (await lease.release() && wasDetached) this.#fail("G7", "a detached lease was released");
    }
  }

  async #inspect(lock: Lock): Promise<void> {
    const view = await lock.inspect();
    if (/-p\d/.test(JSON.stringify(view).replace(/"label":"[^"]*"/g, ""))) {
      this.#fail("token", "inspect() shows a token");
    }
  }

  /** One last time, when nothing goes wrong any more: everyone gets it. */
  async #last(name: string): Promise<void> {
    const options = { ...this.#options(name), minHoldMs: 0 };
    const lease = await this.#waiting(options, () => new Lock(options).acquire());
    await this.#process.sleep(50);
    await this.#release(lease);
  }

  async #waiting<T>(options: LockOptions, wait: () => Promise<T>): Promise<T> {
    const done = this.#waits(options);
    try {
      return await wait();
    } finally {
      done();
    }
  }

  /** Somebody waits, until the result is called. */
  #waits({ name, permits = 1, capacity = 1 }: LockOptions): () => void {
    return this.#stage.liveness.waits({ process: this.#process, name, permits, capacity });
  }

  async #workUnder(lease: Lease, options: LockOptions): Promise<void> {
    await this.#work.use(lease, options);
    if (this.#random.chance(0.3)) lease.signal.throwIfAborted();
  }

  async #useAndEnd(lease: Lease, options: LockOptions): Promise<void> {
    try {
      await this.#work.use(lease, options);
    } finally {
      await this.#end(lease);
    }
  }

  async #end(lease: Lease): Promise<void> {
    const how = this.#random.pick(["release", "release", "await using", "using"] as const);
    if (how === "release") return await this.#release(lease);
    if (how === "using") return lease[dispose]();
    await lease[asyncDispose]();
    this.#stage.trusts.released(this.#process, lease, undefined);
  }

  async #release(lease: Lease): Promise<void> {
    const signal = this.#random.chance(0.5) && lease.status === "held" ? lease.signal : undefined;
    const wasHeld = lease.isHeld();
    const isBack = await lease.release();
    this.#stage.trusts.released(this.#process, lease, signal);
    if (wasHeld && !isBack) this.#stage.world.count("released too late");
    if (!wasHeld && isBack) this.#fail("G7", "a lost lease was given back");
  }

  /** What a user has to expect is no failure of the run. */
  async #tolerate(doing: string, work: () => Promise<void>): Promise<void> {
    this.doing = doing;
    const who = `${this.#process.id} ${this.#label}`;
    if (!this.#process.isDead) this.#stage.world.log(who, `begins ${doing}`);
    try {
      await work();
      if (!this.#process.isDead) this.#stage.world.log(who, `ends ${doing}`);
    } catch (error) {
      if (!isExpected(error)) throw error;
      if (this.#process.isDead) return;
      this.#stage.world.log(who, `ends ${doing} with ${error}`);
      this.#stage.world.count(`thrown ${(error as HoldfastError).code}`);
      // A time-out that is shorter than an answer is the caller's own doing, and races may be lost.
      const isUsual = doing === "with" || doing === "acquire-timeout" ||
        this.#stage.scenario.storage !== "script";
      if (error instanceof StorageError && !isUsual) this.#stage.strange(String(error));
    }
  }

  #fail(guarantee: string, what: string): void {
    if (!this.#process.isDead) this.#stage.world.fail(guarantee, `${this.#process.id}: ${what}`);
  }
}

function isExpected(error: unknown): boolean {
  return error instanceof StorageError || error instanceof LockTimeoutError ||
    error instanceof LeaseLostError ||
    (error instanceof HoldfastError && error.code === "capacity-mismatch");
}

/** How a lock is shared. */
const SHARES = {
  "mutex": { capacity: 1 },
  "semaphore": { capacity: 2 },
  "readers-writer": { capacity: 1000 },
};
