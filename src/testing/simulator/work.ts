/**
 * What is done under a lease: by careful callers, and by such that never look whether they still hold it.
 *
 * @module
 */
import { StaleFenceError, StorageError } from "../../core/errors.ts";
import type { Lease } from "../../core/lease.ts";
import type { LockOptions } from "../../core/settings.ts";
import type { Stage } from "./actor.ts";
import type { Destination } from "./network.ts";
import type { Process } from "./process.ts";
import type { Random } from "./random.ts";

/** How long a caller waits for a resource to answer, in milliseconds. */
const PATIENCE_MS = 2000;

/** The work of one caller. */
export class Work {
  readonly #stage: Stage;
  readonly #process: Process;
  readonly #random: Random;
  #nonces = 0;

  constructor(stage: Stage, process: Process, random: Random) {
    this.#stage = stage;
    this.#process = process;
    this.#random = random;
  }

  /** Holds a lease for a while, and uses it. */
  async use(lease: Lease, options: LockOptions): Promise<void> {
    const { scenario, trusts } = this.#stage;
    const random = this.#random;
    trusts.handle(this.#process, lease, random.chance(0.6));
    const isCareful = random.chance(0.6);
    const untilMs = this.#stage.world.nowMs + random.next() * random.next() * scenario.holdMs;
    const writes = ["guarded", "gated", "bare"] as const;
    const canWrite = new Set<string>(writes);
    for (let i = 0; i < 50; i++) {
      if (isCareful && !lease.isHeld()) return;
      if (random.chance(0.15)) {
        await lease.renew(random.chance(0.3) ? undefined : random.int(10, 3 * scenario.ttlMs));
      }
      for (const what of writes) {
        if (!canWrite.has(what) || !random.chance(0.4)) continue;
        if (!await this.#write(what, lease, options, isCareful)) canWrite.delete(what);
      }
      const leftMs = untilMs - this.#stage.world.nowMs;
      if (leftMs <= 0) return;
      await this.#process.sleep(Math.min(leftMs, 20 + random.next() * scenario.holdMs / 3));
    }
  }

  /**
   * Reads a resource and writes one more.
   *
   * @returns whether it may be done again: not when it is unknown what became of it
   */
  async #write(
    what: "guarded" | "gated" | "bare",
    lease: Lease,
    { name, permits = 1, capacity = 1 }: LockOptions,
    isCareful: boolean,
  ): Promise<boolean> {
    const { network, server, resources, scenario } = this.#stage;
    const isExclusive = permits === capacity;
    if (what === "gated" && capacity > 1) return false;
    if (what === "bare" && !isExclusive) return false;
    const { token, fencingToken } = lease;
    const nonce = `${this.#process.id}-${this.#random.hex()}-${this.#nonces++}`;
    const access = { name, fencingToken, nonce };
    const from = await this.#patiently<number>(
      what === "guarded" ? server : resources,
      `read ${what} ${name}`,
      () =>
        what === "guarded"
          ? server.readGuarded(name)
          : what === "gated"
          ? resources.readGated(access)
          : resources.readBare(name),
    );
    if (from === undefined) return false;
    await this.#process.sleep(this.#random.next() * scenario.ttlMs / 4);
    // Between the check and the use anything can happen.
    if (isCareful && !lease.isHeld()) return false;
    network.befalls(this.#process, "before-use");
    const done = await this.#patiently<boolean>(
      what === "guarded" ? server : resources,
      `write ${what} ${name} ${nonce}`,
      async () => {
        if (what === "guarded") {
          const write = { name, token, fence: fencingToken, nonce, from };
          return server.writeGuarded(write, isExclusive) !== undefined;
        }
        if (what === "gated") return await resources.writeGated(access, from).then(() => true);
        if (resources.writeBare(access, from)) {
          this.#stage.strange(
            `${name} was written by two at once`,
          );
        }
        return true;
      },
    );
    return done === true;
  }

  /** An answer, or `undefined` if there is none in time, or a refusal. */
  async #patiently<T>(
    to: Destination,
    label: string,
    apply: () => T | Promise<T>,
  ): Promise<T | undefined> {
    const { network } = this.#stage;
    try {
      return await Promise.race([
        network.call(this.#process, to, { label, apply }),
        this.#process.sleep(PATIENCE_MS).then(() => undefined),
      ]);
    } catch (error) {
      if (error instanceof StaleFenceError) {
        this.#stage.world.count("gated writes refused");
        return undefined;
      }
      if (error instanceof StorageError) return undefined;
      throw error;
    }
  }
}
