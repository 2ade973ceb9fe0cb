/**
 * The simulator: the real library, unchanged, in many simulated processes over a simulated network to a
 * simulated storage, on one virtual clock, from one seed. After every step the guarantees G1 to G12 are
 * checked, by accounts of what happened that are independent of the library's own; when the faults are
 * over, that everyone gets the lock.
 *
 * @module
 */
import type { Baton } from "../core/lease.ts";
import type { LockOptions } from "../core/settings.ts";
import type { LeaseStorage } from "../core/storage.ts";
import { Actor, type Stage } from "./simulator/actor.ts";
import { Faults } from "./simulator/faults.ts";
import { Host } from "./simulator/host.ts";
import { isLive, Ledger } from "./simulator/ledger.ts";
import { Liveness } from "./simulator/liveness.ts";
import { Nemesis } from "./simulator/nemesis.ts";
import { Network } from "./simulator/network.ts";
import { Process } from "./simulator/process.ts";
import { Random } from "./simulator/random.ts";
import { Resources } from "./simulator/resources.ts";
import { isClean, type Scenario, scenarioOf } from "./simulator/scenario.ts";
import { Server } from "./simulator/server.ts";
import { overheard, registerStorage, scriptStorage, type Site } from "./simulator/storages.ts";
import { Trusts } from "./simulator/trust.ts";
import { type Violation, World } from "./simulator/world.ts";

export { type FaultRates, type SimulatedFault } from "./simulator/faults.ts";
export { type Deed } from "./simulator/scenario.ts";
export { type Failure, type Outcome as RunOutcome, shrink } from "./simulator/shrink.ts";
export { type Scenario, scenarioOf, type Violation };

/** Options of {@linkcode simulate}. */
export interface SimulateOptions {
  /** Whether to keep the lines of the trace. */
  readonly trace?: boolean | undefined;
}

/** What a run came to. */
export interface SimulationResult {
  /** The first guarantee that did not hold. */
  readonly violation: Violation | undefined;
  /** The hash of the trace: the same for the same scenario, on every engine. */
  readonly traceHash: string;
  /** The lines of the trace, if they were kept. */
  readonly trace: readonly string[] | undefined;
  /** How much time passed for the processes together, in milliseconds. */
  readonly processMs: number;
  /** How many events there were. */
  readonly events: number;
  /** How often what happened. */
  readonly counts: ReadonlyMap<string, number>;
}

/**
 * Runs one scenario to its end, or to the first guarantee that does not hold.
 *
 * @example
 * ```ts
 * import { scenarioOf, simulate } from "@holdfast/lock/testing";
 * import { assertEquals } from "@std/assert";
 *
 * const { violation } = await simulate(scenarioOf(1));
 * assertEquals(violation, undefined);
 * ```
 *
 * @param scenario what to run; {@linkcode scenarioOf} draws one from a seed
 * @param options `trace`
 * @returns what it came to
 */
export async function simulate(
  scenario: Scenario,
  options: SimulateOptions = {},
): Promise<SimulationResult> {
  return await new Simulation(scenario, options.trace ?? false).run();
}

/** A process that crashed is followed by another after this long, in milliseconds. */
const RESTART_MS = 3000;

/** What a few round trips add to a bound, in milliseconds. */
const SLACK_MS = 500;

/** One run. */
class Simulation {
  readonly #scenario: Scenario;
  readonly #random: Random;
  readonly #world: World;
  readonly #hosts: Host[];
  readonly #processes: Process[] = [];
  readonly #storages = new Map<Process, LeaseStorage>();
  readonly #actors: { readonly actor: Actor; readonly process: Process }[] = [];
  readonly #background = new Map<Process, number>();
  readonly #faults: Faults;
  readonly #ledger: Ledger;
  readonly #liveness: Liveness;
  readonly #site: Site;
  readonly #stage: Stage;
  readonly #nemesis: Nemesis;
  /** Whether nothing goes wrong, and nobody takes a lock away: then nothing strange may be seen. */
  readonly #isStrict: boolean;
  #isOver = false;
  /** Batons on their way. */
  #batons = 0;

  constructor(scenario: Scenario, trace: boolean) {
    const { seed, storage, maxClockSkewMs } = scenario;
    const random = this.#random = new Random(`run ${seed}`);
    const world = this.#world = new World({ trace });
    this.#scenario = scenario;
    this.#isStrict = isStrict(scenario);
    this.#hosts = this.#makeHosts(random.fork("hosts"));
    const faults = this.#faults = new Faults(world, scenario.faults, random.fork("faults"));
    const ledger = this.#ledger = new Ledger(world, {
      toleranceMs: { script: 0, clocked: 1, machine: 1, register: maxClockSkewMs + 1 }[storage],
      marginMs: maxClockSkewMs,
      presumes: storage === "register" || storage === "machine",
    });
    const trusts = new Trusts(world, ledger, {
      maxHoldMs: scenario.maxHoldMs,
      requestTimeoutMs: scenario.requestTimeoutMs,
      latestUs: () => this.#clocksUs(Math.max),
      isOutside: (process, sinceMs) => this.#isOutside(process, sinceMs),
      onAcquire: (token) => this.#liveness.asks(token),
      onLoss: (what) => this.#strange(what),
    });
    const liveness = this.#liveness = new Liveness(world, ledger, {
      latestUs: () => this.#clocksUs(Math.max),
      earliestUs: () => this.#clocksUs(Math.min),
      boundMs: () => this.#boundMs(),
      queueMs: storage === "script" ? scenario.queueMs : undefined,
      marginMs: maxClockSkewMs,
    });
    const network = new Network(world, faults, random.fork("network"), scenario);
    const server = new Server(world, ledger, network, random.fork("server"), {
      clockMs: () => storage === "machine" ? this.#hosts[0]!.wallMs() : world.wallMs(),
      says: this.#hasServerTime() ? "time" : "nothing",
      retentionMs: scenario.retentionMs,
      absent: scenario.absent,
      hints: scenario.watch === "changes" ? "changes" : "tickets",
    });
    const names = Array.from({ length: scenario.names }, (_, i) => `lock-${i}`);
    this.#site = { world, network, server, trusts };
    this.#stage = {
      ...this.#site,
      scenario,
      liveness,
      names,
      resources: new Resources(world, ledger),
      handOver: (from, baton, lock) => this.#handOver(from, baton, lock),
      background: (process, work) => this.#inBackground(process, work),
      strange: (what) => this.#strange(what),
      isOver: () => this.#isOver,
    };
    const processes = (): Process[] => this.#processes.filter((p) => !p.isDead);
    this.#nemesis = new Nemesis(
      { world, faults, ledger, server, processes, hosts: this.#hosts, names },
      scenario,
    );
  }

  /** Faults for a while, then none, until everyone had what it wanted. */
  async run(): Promise<SimulationResult> {
    const { forMs, lateMs, processes } = this.#scenario;
    for (let i = 0; i < processes; i++) this.#start(i, 0);
    this.#nemesis.keepTime();
    if (isClean(this.#scenario)) this.#liveness.calm();
    else this.#nemesis.start();
    await this.#run(forMs);
    this.#nemesis.heal();
    // What is on its way may still arrive.
    await this.#run(2 * lateMs);
    this.#liveness.calm();
    this.#isOver = true;
    await this.#finish();
    const { violation, traceHash, trace, events, counts, nowMs } = this.#world;
    return { violation, traceHash, trace, events, counts, processMs: nowMs * processes };
  }

  /** Everyone takes each lock once more, and nothing is left behind. */
  async #finish(): Promise<void> {
    const { holdMs, queueMs, minHoldMs, maxClockSkewMs } = this.#scenario;
    const isDone = (): boolean =>
      this.#batons === 0 && this.#actors.every((a) => a.actor.isDone || a.process.isDead);
    const turnMs = holdMs + this.#boundMs() + queueMs + minHoldMs;
    await this.#run(turnMs * (2 * this.#actors.length + 2), isDone);
    const { world } = this;
    if (!isDone()) {
      if (this.#keepsDeadTickets()) return world.count("outside G8");
      const { actor, process } = this.#actors.find((a) => !a.actor.isDone && !a.process.isDead)!;
      world.fail("G8", `${process.id} is not done with ${actor.doing}`);
    }
    await this.#run(this.#boundMs() + queueMs + minHoldMs + 2 * maxClockSkewMs);
    this.#site.trusts.checkSignals();
    this.#checkNothingIsLeft();
  }

  get world(): World {
    return this.#world;
  }

  async #run(ms: number, isOver?: () => boolean): Promise<void> {
    const check = (): void => {
      this.#site.trusts.check();
      this.#liveness.check();
    };
    await this.#world.run(this.#world.nowMs + ms, check, isOver);
  }

  #makeHosts(random: Random): Host[] {
    const { storage, processes } = this.#scenario;
    const isOne = storage === "machine";
    return Array.from({ length: isOne ? 1 : processes }, () => {
      const rate = random.pick([0.995, 1, 1.005, random.between(0.995, 1.005)]);
      const isFree = this.#hasServerTime() || isOne;
      return new Host(this.#world, rate, isFree ? random.between(-3_600_000, 3_600_000) : 0);
    });
  }

  /** A process of a slot; the next one when it crashes. */
  #start(slot: number, generation: number): void {
    const { scenario } = this.#stage;
    const host = this.#hosts[slot] ?? this.#hosts[0]!;
    const id = generation === 0 ? `p${slot}` : `p${slot}-${generation}`;
    const startLater = (next: number): void => {
      this.#world.at(this.#world.nowMs + RESTART_MS, () => this.#start(slot, next));
    };
    if (host.isSuspended) return startLater(generation);
    const crashed = (): void => startLater(generation + 1);
    const process = new Process(this.#world, host, id, this.#random.fork(id), crashed);
    this.#processes.push(process);
    this.#storages.set(process, overheard(this.#site, process, this.#storage(process)));
    for (let i = 0; i < scenario.actors; i++) this.#actor(process, `actor ${i}`).run();
  }

  #storage(process: Process): LeaseStorage {
    const { scenario } = this.#stage;
    if (scenario.storage === "script") return scriptStorage(this.#site, process, scenario);
    const serverTime = scenario.storage === "clocked";
    return registerStorage(this.#site, process, { ...scenario, serverTime });
  }

  #actor(process: Process, label: string): Actor {
    const actor = new Actor(this.#stage, process, this.#storages.get(process)!, label);
    this.#actors.push({ actor, process });
    return actor;
  }

  /** A queue delivers at least once, to anybody. */
  #handOver(from: Process, baton: Baton, options: LockOptions): void {
    const { random } = from;
    this.#world.count("batons");
    for (let i = random.int(1, 3); i > 0; i--) {
      const atMs = this.#world.nowMs + random.next() * random.next() * this.#scenario.ttlMs;
      const place = random.next();
      this.#batons++;
      this.#world.at(atMs, () => {
        this.#batons--;
        const living = this.#processes.filter((p) => !p.isDead);
        const to = living[Math.floor(place * living.length)];
        to?.deliver(() => void this.#actor(to, `baton ${i}`).resume(baton, options));
      });
    }
  }

  #inBackground(process: Process, work: Promise<unknown>): void {
    const add = (n: number): void => {
      this.#background.set(process, (this.#background.get(process) ?? 0) + n);
    };
    add(1);
    work.then(() => add(-1), () => this.#world.fail("G7", "work in the background rejects"));
  }

  /** G7, G9: no timer, subscription, holding or ticket. */
  #checkNothingIsLeft(): void {
    const { world } = this;
    for (const process of this.#processes) {
      if (process.isDead) continue;
      if (process.pendingTimers > 0) world.fail("G7", `${process.id} has timers left`);
      if (this.#background.get(process)) world.fail("G7", `${process.id} has work left`);
    }
    if (this.#site.server.watchers(isAlive) > 0) world.fail("G7", "subscriptions are left");
    if (this.#keepsDeadTickets()) return world.count("outside G9");
    for (const name of this.#stage.names) {
      const { holders, tickets } = this.#ledger.record(name);
      const live = [...holders, ...tickets].filter((e) => isLive(e, this.#clocksUs(Math.max)));
      if (live.length > 0) world.fail("G9", `${name} is not left as if nobody were there`);
    }
  }

  #strange(what: string): void {
    if (this.#isStrict) this.#world.fail("calm", what);
  }

  #hasServerTime(): boolean {
    return this.#scenario.storage === "script" || this.#scenario.storage === "clocked";
  }

  /** The instant by whoever says the time: all clients, if there is no other clock. */
  #clocksUs(choose: (...us: number[]) => number): number {
    if (this.#scenario.storage !== "register") return this.#site.server.nowUs();
    return Math.floor(choose(...this.#hosts.map((h) => h.wallMs())) * 1000);
  }

  /** Whether a run is out of the bounds of G5. */
  #isOutside({ host }: Process, sinceMs: number): boolean {
    if (!this.#hasServerTime()) return this.#nemesis.wildSinceMs <= this.#world.nowMs;
    return this.#site.server.steppedForwardAtMs >= sinceMs || !host.isTrueSince(sinceMs);
  }

  /** Whether a dead waiter's ticket, written by a clock that was far ahead, may outlive the run. */
  #keepsDeadTickets(): boolean {
    return this.#nemesis.wildSinceMs < Infinity || this.#hosts[0]!.setBackAtMs > -Infinity;
  }

  /** G8. */
  #boundMs(): number {
    const { pollMs, maxClockSkewMs, ttlMs } = this.#scenario;
    const longestMs = Math.max(this.#site.trusts.longestMs, ttlMs);
    return longestMs + 2 * maxClockSkewMs + pollMs.max + SLACK_MS;
  }
}

/** Whether in a run nothing goes wrong, and nobody loses its lease by its own or another's doing. */
function isStrict(scenario: Scenario): boolean {
  const { storage, lock, deeds, autoRenew, maxHoldMs, maxClockSkewMs, ttlMs } = scenario;
  const isRough = deeds.includes("force-release") || deeds.includes("other-capacity");
  // Setting the wall clock ends leases early.
  const isSteady = maxClockSkewMs * 10 <= ttlMs;
  // Many who renew in one register are in each other's way.
  const isCrowded = storage !== "script" && lock === "readers-writer";
  return isClean(scenario) && isSteady && !isRough && !isCrowded && autoRenew !== false &&
    maxHoldMs === 0;
}

function isAlive(process: Process): boolean {
  return !process.isDead;
}
