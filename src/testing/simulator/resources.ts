/**
 * What the leases are for: a resource behind a fence gate, and one that nobody guards.
 *
 * @module
 */
import { FenceGate } from "../../core/fence_gate.ts";
import type { Ledger } from "./ledger.ts";
import type { Destination } from "./network.ts";
import type { World } from "./world.ts";

/** A read or a write of a resource outside the storage. */
export interface Access {
  /** The resource. */
  readonly name: string;
  /** The fencing token that comes along. */
  readonly fencingToken: number;
  /** Makes a resend harmless. */
  readonly nonce: string;
}

/** A server that has nothing to do with the storage, and never fails. */
export class Resources implements Destination {
  readonly isUp = true;
  readonly #ledger: Ledger;
  readonly #world: World;
  readonly #gate = new FenceGate();
  readonly #gated = new Map<string, number>();
  readonly #bare = new Map<string, number>();
  readonly #seen = new Set<string>();

  constructor(world: World, ledger: Ledger) {
    this.#world = world;
    this.#ledger = ledger;
  }

  /** Reads behind the gate: the fence is shown before the first read. */
  async readGated({ name, fencingToken }: Access): Promise<number> {
    await this.#gate.check(name, { fencingToken });
    return this.#gated.get(name) ?? 0;
  }

  /** Adds one to what was read behind the gate. */
  async writeGated({ name, fencingToken, nonce }: Access, from: number): Promise<void> {
    await this.#gate.check(name, { fencingToken });
    if (this.#seen.has(nonce)) return;
    this.#seen.add(nonce);
    const value = this.#gated.get(name) ?? 0;
    if (value !== from) {
      if (this.#ledger.hasFallen) this.#world.count("outside G3");
      else this.#world.fail("G3", `${name} at ${fencingToken} overwrites ${value}, read ${from}`);
    }
    this.#gated.set(name, from + 1);
    this.#world.count("gated writes");
  }

  /** Reads what nobody guards. */
  readBare(name: string): number {
    return this.#bare.get(name) ?? 0;
  }

  /**
   * Adds one to what was read and nobody guards.
   *
   * @returns whether somebody else wrote in between
   */
  writeBare({ name, nonce }: Access, from: number): boolean {
    if (this.#seen.has(nonce)) return false;
    this.#seen.add(nonce);
    const isLate = this.readBare(name) !== from;
    this.#world.count(isLate ? "bare writes over others" : "bare writes");
    this.#bare.set(name, from + 1);
    return isLate;
  }
}
