/**
 * What befalls processes and the storage from time to time.
 *
 * @module
 */
import type { Faults } from "./faults.ts";
import type { Host } from "./host.ts";
import type { Ledger } from "./ledger.ts";
import type { Process } from "./process.ts";
import { Random } from "./random.ts";
import type { Scenario } from "./scenario.ts";
import type { Server } from "./server.ts";
import type { World } from "./world.ts";

/** What the nemesis can get at. */
export interface Targets {
  readonly world: World;
  readonly faults: Faults;
  readonly ledger: Ledger;
  readonly server: Server;
  /** The processes that run now. */
  readonly processes: () => readonly Process[];
  readonly hosts: readonly Host[];
  readonly names: readonly string[];
}

/** Faults are drawn this often, in milliseconds. */
const TICK_MS = 1000;

/** Wall clocks of hosts that keep the bound are within this part of it, on either side. */
const WALL_SHARE = 0.36;

/** The trouble maker. */
export class Nemesis {
  /** When a wall clock first left the bound, in true time. */
  wildSinceMs = Infinity;
  readonly #targets: Targets;
  readonly #scenario: Scenario;
  readonly #random: Random;

  constructor(targets: Targets, scenario: Scenario) {
    this.#targets = targets;
    this.#scenario = scenario;
    this.#random = new Random(`nemesis ${scenario.seed}`);
  }

  /** Begins. */
  start(): void {
    this.#tickLater();
  }

  #tickLater(): void {
    const { world, faults } = this.#targets;
    if (!faults.areOn) return;
    world.at(world.nowMs + TICK_MS, () => {
      this.#tick();
      this.#tickLater();
    });
  }

  /** All goes well from now on. */
  heal(): void {
    const { faults, server, hosts } = this.#targets;
    faults.areOn = false;
    server.isUp = true;
    if (this.#scenario.storage === "register") {
      for (const host of hosts) host.setWall(this.#someOffsetMs());
    }
  }

  #tick(): void {
    const { processes, names } = this.#targets;
    for (const process of processes()) if (process.isRunning) this.#trouble(process);
    this.#troubleServer();
    for (const name of names) this.#troubleRecord(name);
  }

  #trouble(process: Process): void {
    const { faults } = this.#targets;
    const { storage, ttlMs } = this.#scenario;
    const longMs = (): number => this.#random.next() * this.#random.next() * 3 * ttlMs;
    if (faults.strike("freeze", process.id)) process.freeze(longMs(), "freeze");
    if (faults.strike("crash", process.id)) process.crash();
    if (storage === "machine") return;
    if (faults.strike("suspend", process.id)) process.freeze(longMs(), "suspend");
    if (storage === "register") {
      if (faults.strike("wild-wall-step", process.id)) this.#goWild(process);
    } else if (faults.strike("wall-step", process.id)) {
      this.#step(process.id, process.host);
    }
  }

  #goWild(process: Process): void {
    this.wildSinceMs = Math.min(this.wildSinceMs, this.#targets.world.nowMs);
    this.#targets.ledger.clockWasSetBack();
    this.#step(process.id, process.host);
  }

  /** Seconds to hours, either way. */
  #step(who: string, host: Host): void {
    const ms = this.#random.pick([1000, 10_000, 600_000, 7_200_000]) * this.#random.between(-1, 1);
    this.#targets.world.log(who, `wall clock steps by ${ms.toFixed(3)} ms`);
    host.setWall(host.offsetMs() + ms);
    if (this.#scenario.storage === "machine" && ms < 0) this.#targets.ledger.clockWasSetBack();
  }

  #troubleServer(): void {
    const { faults, server, processes, hosts } = this.#targets;
    const { storage, ttlMs } = this.#scenario;
    if (faults.strike("storage-down", "server")) {
      server.down(this.#random.next() * this.#random.next() * 2 * ttlMs);
    }
    if (faults.strike("storage-loses-data", "server")) server.loseData();
    if (storage === "script" || storage === "clocked") {
      if (faults.strike("server-clock-step", "server")) {
        server.stepClock(this.#random.between(-1, 1) * ttlMs);
      }
    }
    if (storage !== "machine") return;
    if (faults.strike("wall-step", "machine")) this.#step("machine", hosts[0]!);
    if (faults.strike("suspend", "machine")) {
      const ms = this.#random.next() * 3 * ttlMs;
      for (const process of processes()) process.freeze(ms, "suspend");
    }
  }

  #troubleRecord(name: string): void {
    const { faults, server } = this.#targets;
    if (faults.strike("record-evicted", name)) server.evict(name);
    if (faults.strike("future-line", name)) server.extend(name, `x ${this.#random.hex()}`);
    if (faults.strike("foreign-record", name)) {
      const text = this.#random.pick([
        "",
        "holdfast 2 17\n",
        "holdfast 1 5\n",
        "holdfast 1 5\nh junk\n.\n",
      ]);
      server.plant(name, text, this.#random.between(0, 20_000));
    }
  }

  /** A time service corrects drift before it is too much, also backwards. */
  keepTime(): void {
    if (this.#scenario.storage !== "register") return;
    const { world, hosts } = this.#targets;
    for (const host of hosts) host.setWall(this.#someOffsetMs());
    const everyMs = Math.min(20_000, this.#scenario.maxClockSkewMs * 20) *
      this.#random.between(0.5, 1);
    world.at(world.nowMs + everyMs, () => this.keepTime());
  }

  /** Drift between two corrections is at most another tenth of the bound. */
  #someOffsetMs(): number {
    return this.#random.between(-WALL_SHARE, WALL_SHARE) * this.#scenario.maxClockSkewMs;
  }
}
