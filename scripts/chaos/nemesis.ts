/**
 * The trouble maker: kills, freezes, cuts off and slows down, for a bounded time, and notes what it did.
 *
 * @module
 */
import type { Lock } from "../../mod.ts";
import type { Random } from "../../src/testing/simulator/random.ts";
import type { TcpProxy } from "../../tests/support/tcp_proxy.ts";
import type { Crew } from "./crew.ts";
import type { Journal } from "./journal.ts";
import type { Site } from "./site.ts";
import { type Fault, type FaultKind, nowMs, pause, TTL_MS } from "./terms.ts";

/** What the nemesis can get at. */
export interface Targets {
  /** The workers. */
  readonly crew: Crew;
  /** The server and the connections. */
  readonly site: Site;
  /** Whether the data survive a crash of the server. */
  readonly persist: boolean;
  /** The lock, by a connection that is not disturbed. */
  readonly lock: Lock;
  /** For what it does to the lock. */
  readonly journal: Journal;
  /** Decides what to do next; not what comes of it. */
  readonly random: Random;
}

/** From one strike to the next, in milliseconds. */
const GAP_MS = { min: 60, max: 420 };

/** How long to wait for somebody to come to where it is to be struck, in milliseconds. */
const PATIENCE_MS = 2500;

/** What is done at least once, and then again by chance: freezes in the critical section above all. */
const TO_PROCESSES: readonly FaultKind[] = ["freeze", "kill", "freeze", "kill", "evict"];
const TO_CONNECTIONS: readonly FaultKind[] = [
  ...["cut", "refuse", "hang", "delay", "lose request", "lose reply"] as const,
];
const TO_SERVERS: readonly FaultKind[] = ["server kill", "server freeze"];

/** Makes trouble. */
export class Nemesis {
  /** What it did. */
  readonly faults: Fault[] = [];
  readonly #targets: Targets;
  /** The places and the server that suffer now, one fault at a time; and whether anybody is frozen. */
  readonly #busy = new Set<number | "server" | "freeze">();
  #deck: FaultKind[] = [];
  #endMs = 0;

  constructor(targets: Targets) {
    this.#targets = targets;
  }

  /**
   * Strikes again and again; afterwards nothing is broken any more.
   *
   * @param forMs how long, without the time that the server takes to start again
   * @param stop ends it early
   */
  async rage(forMs: number, stop: AbortSignal): Promise<void> {
    const { random, site } = this.#targets;
    this.#endMs = nowMs() + forMs;
    const work: Promise<void>[] = [];
    while (nowMs() < this.#endMs && !stop.aborted) {
      work.push(this.#strike(this.#draw()));
      await pause(random.between(GAP_MS.min, GAP_MS.max), stop);
    }
    await Promise.all(work);
    await Promise.all(site.proxies.map((proxy) => proxy.heal()));
  }

  #draw(): FaultKind {
    const { site, random } = this.#targets;
    if (this.#deck.length === 0) {
      const kinds = [...TO_PROCESSES, ...site.server ? [...TO_CONNECTIONS, ...TO_SERVERS] : []];
      this.#deck = kinds.map((kind) => ({ kind, at: random.next() }))
        .sort((a, b) => a.at - b.at).map(({ kind }) => kind);
    }
    return this.#deck.pop()!;
  }

  /** One fault, from its beginning to its end. */
  #strike(kind: FaultKind): Promise<void> {
    switch (kind) {
      case "server kill":
      case "server freeze":
        return this.#while("server", () => this.#strikeServer(kind));
      case "evict":
        return this.#evict();
      case "freeze":
        return this.#while("freeze", () => this.#freeze());
      case "kill":
        return this.#kill();
      default:
        return this.#withPlace(undefined, (place) => this.#strikeConnections(kind, place));
    }
  }

  /** Does something, unless the same suffers from something else. */
  async #while(what: number | "server" | "freeze", work: () => Promise<void>): Promise<void> {
    if (this.#busy.has(what)) return;
    this.#busy.add(what);
    try {
      await work();
    } finally {
      this.#busy.delete(what);
    }
  }

  /** Does something to a place, or to any other if that is busy. */
  async #withPlace(
    wanted: number | undefined,
    work: (place: number) => Promise<void>,
  ): Promise<void> {
    const { crew, random } = this.#targets;
    const able = crew.places.filter((place) => !this.#busy.has(place));
    if (able.length === 0) return;
    const place = able.find((one) => one === wanted) ?? random.pick(able);
    await this.#while(place, () => work(place));
  }

  /** Kills mostly whoever holds. */
  async #kill(): Promise<void> {
    const { crew, lock, random } = this.#targets;
    let holder: number | undefined;
    if (random.chance(0.7)) {
      // Where the server is down nobody knows who holds.
      const { holders } = await lock.inspect().catch(() => ({ holders: [] }));
      holder = crew.placeOf(holders[0]?.label ?? "");
    }
    await this.#withPlace(holder, async (place) => {
      const target = crew.nameOf(place);
      const fromMs = nowMs();
      await crew.kill(place);
      crew.start(place);
      this.#note({ kind: "kill", target, fromMs, toMs: nowMs() });
    });
  }

  /** Freezes whoever is between reading and writing, until its lease is over and, if need be, another works. */
  async #freeze(): Promise<void> {
    const { crew, random } = this.#targets;
    const wanted = await crew.nextInSection(PATIENCE_MS);
    if (wanted === undefined) return;
    await this.#withPlace(wanted, async (place) => {
      const target = crew.nameOf(place);
      const fromMs = nowMs();
      crew.freeze(place);
      const another = crew.nextInSection(PATIENCE_MS);
      await pause(TTL_MS * random.between(1.1, 1.6));
      await another;
      crew.thaw(place);
      this.#note({ kind: "freeze", target, fromMs, toMs: nowMs() });
    });
  }

  async #strikeConnections(kind: FaultKind, place: number): Promise<void> {
    const { crew, site, random } = this.#targets;
    const proxy = site.proxies[place]!;
    const target = crew.nameOf(place);
    const fromMs = nowMs();
    const forMs = TTL_MS * random.between(0.3, 1.4);
    await this.#disturb(kind, proxy, forMs);
    this.#note({ kind, target, fromMs, toMs: nowMs() });
  }

  async #disturb(kind: FaultKind, proxy: TcpProxy, forMs: number): Promise<void> {
    switch (kind) {
      case "cut":
        return proxy.cutAll();
      case "refuse":
        await proxy.refuse(true);
        proxy.cutAll();
        await pause(forMs / 2);
        return await proxy.refuse(false);
      case "hang":
        proxy.hang(true);
        await pause(forMs);
        return proxy.hang(false);
      case "delay":
        proxy.delayMs.toServer = proxy.delayMs.toClient = forMs / 10;
        await pause(forMs);
        proxy.delayMs.toServer = proxy.delayMs.toClient = 0;
        return;
      case "lose request":
        proxy.dropNextRequest();
        return await pause(forMs);
      case "lose reply":
        proxy.dropNextReply();
        return await pause(forMs);
    }
  }

  async #strikeServer(kind: "server kill" | "server freeze"): Promise<void> {
    const { site: { server }, random, persist, journal } = this.#targets;
    if (!server) return;
    const fromMs = nowMs();
    if (kind === "server freeze") {
      server.freeze();
      await pause(TTL_MS * random.between(0.3, 1.3));
      server.thaw();
    } else {
      const returned = persist ? undefined : journal.invoke({ type: "lose" });
      server.kill();
      await pause(TTL_MS * random.between(0.05, 0.5));
      const restartMs = nowMs();
      await server.restart();
      this.#endMs += nowMs() - restartMs;
      returned?.({ type: "lost" });
    }
    const losesData = kind === "server kill" && !persist;
    this.#note({ kind, target: "server", fromMs, toMs: nowMs(), losesData });
  }

  /** Takes the lock away from its holder, as an operator would. */
  async #evict(): Promise<void> {
    const { lock, journal } = this.#targets;
    const { holders: [holder] } = await lock.inspect().catch(() => ({ holders: [] }));
    if (!holder) return;
    const { fence, label: target } = holder;
    const fromMs = nowMs();
    const returned = journal.invoke({ type: "evict", fence });
    try {
      returned({ type: "evicted", count: await lock.forceRelease(fence) });
    } catch (error) {
      journal.note({ type: "fault", what: "evict", error: String(error) });
    }
    this.#note({ kind: "evict", target, fromMs, toMs: nowMs(), fence });
  }

  #note(fault: Fault): void {
    this.faults.push(fault);
  }
}
