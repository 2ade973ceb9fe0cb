/**
 * One worker process: again and again it takes the lock, reads two resources, works a little, and writes both,
 * one of them under its fence, the other one without another look at its lease, as a program that was frozen
 * after its last look could not take one. All that it does is in its journal before it does the next thing.
 *
 * Its one argument is its orders as JSON. It says on its standard output when it is between its reads and its
 * writes; `finish` on its standard input sends it through everything once more, and then home; so does the end
 * of the input, at once.
 *
 * @module
 */
import { type Lease, Lock, LockTimeoutError, MemoryStorage, StaleFenceError } from "../../mod.ts";
import { linesOf } from "../lines.ts";
import { type ChaosClient, patiently } from "./client.ts";
import { Journal } from "./journal.ts";
import { observed } from "./observed.ts";
import { readPlain, writePlain } from "./plain.ts";
import { PRODUCTS } from "./products.ts";
import {
  FINISH,
  IN_SECTION,
  LOCK,
  nowMs,
  pause,
  type Resource,
  TTL_MS,
  UNSERVED,
  type WorkerOrders,
} from "./terms.ts";

/** What has to be left of a lease for the section on the unguarded resource, in milliseconds. */
const ENOUGH_MS = 200;

/** How often the event loop is looked at, and what it may be late, in milliseconds. */
const TICK_MS = 15;
const LATE_MS = 45;

/** The work of one process. */
class Worker {
  readonly #orders: WorkerOrders;
  readonly #journal: Journal;
  readonly #client: ChaosClient;
  readonly #lock: Lock;
  #lease: Lease | undefined;
  /** When the storage last confirmed the lease. */
  #confirmedAtMs = 0;
  #writes = 0;

  constructor(orders: WorkerOrders, journal: Journal, client: ChaosClient) {
    this.#orders = orders;
    this.#journal = journal;
    this.#client = client;
    const storage = orders.sabotage === "no-lock" ? new MemoryStorage() : client.storage;
    this.#lock = new Lock({
      // A request of unknown outcome is an operation that does not return.
      storage: observed(storage, (call, atMs) => void journal.invoke(call, atMs)),
      name: LOCK,
      ttlMs: TTL_MS,
      queueMs: TTL_MS,
      label: orders.process,
      onEvent: (event) => {
        if (event.type === "renewed") this.#renewed(event.fence, event.tookMs);
        if (event.type === "lost") this.#lost(event.fence);
        if ("error" in event) this.#fault(event.type, event.error);
      },
    });
  }

  /**
   * Goes once through everything.
   *
   * @param isLast waits for the lock as long as it takes
   * @returns whether it had the lock
   */
  async cycle(isLast: boolean): Promise<boolean> {
    const lease = await this.#acquire(isLast ? 1 : Math.random());
    if (!lease) return false;
    this.#hold(lease);
    try {
      await this.#section(lease);
      if (isLast) return true;
      const dice = Math.random();
      if (dice < 0.15) await pause(TTL_MS * (0.4 + 0.5 * Math.random()));
      else if (dice < 0.3) await this.#handOver();
    } catch (error) {
      this.#fault("section", error);
    } finally {
      await this.#release();
    }
    return true;
  }

  async #acquire(dice: number): Promise<Lease | undefined> {
    const returned = this.#journal.invoke({ type: "acquire" });
    try {
      const lease = dice < 0.2
        ? await this.#lock.tryAcquire()
        : await this.#lock.acquire(dice < 0.3 ? { timeoutMs: TTL_MS * Math.random() + 1 } : {});
      if (lease) returned({ type: "granted", fence: lease.fencingToken, ...valid(lease) });
      else returned({ type: "refused" });
      return lease ?? undefined;
    } catch (error) {
      // What it asked may have been granted, which nobody learns.
      if (!(error instanceof LockTimeoutError)) this.#fault("acquire", error);
    }
  }

  #hold(lease: Lease): void {
    this.#lease = lease;
    this.#confirmedAtMs = nowMs();
  }

  /** Reads both resources, works, and writes both. */
  async #section(lease: Lease): Promise<void> {
    const { plain, sabotage } = this.#orders;
    const fence = lease.fencingToken;
    await patiently("enter", this.#client.enter?.(lease) ?? Promise.resolve());
    const from = await patiently("read", this.#client.read());
    // The last look.
    const isSafe = lease.isHeld(ENOUGH_MS);
    const plainFrom = readPlain(plain);
    if (isSafe) this.#journal.note({ type: "enter", fence });
    Deno.stdout.writeSync(new TextEncoder().encode(`${IN_SECTION}\n`));
    await pause(5 + 35 * Math.random());
    if (isSafe) {
      await this.#write("plain", plainFrom, fence, (id) => Promise.resolve(writePlain(plain, id)));
    }
    const shown = sabotage === "no-fence" ? undefined : lease;
    await this.#write("guarded", from, fence, (id) => this.#client.write(id, shown));
  }

  async #write(
    resource: Resource,
    from: string | null,
    fence: number,
    write: (id: string) => Promise<void>,
  ): Promise<void> {
    const id = `${this.#orders.process}.${++this.#writes}`;
    this.#journal.note({ type: "write", resource, id, from, fence });
    let how: "applied" | "stale" = "applied";
    try {
      await patiently("write", write(id));
    } catch (error) {
      if (!(error instanceof StaleFenceError)) throw error;
      how = "stale";
    }
    this.#journal.note({ type: "wrote", resource, id, how });
  }

  /** Gives the lease to itself, as another process would take it. */
  async #handOver(): Promise<void> {
    const { fencingToken: fence, status } = this.#lease!;
    if (status !== "held") return;
    const baton = JSON.parse(JSON.stringify(this.#lease!.detach()));
    this.#lease = undefined;
    const returned = this.#journal.invoke({ type: "adopt", fence });
    const taken = await this.#lock.resume(baton);
    if (!taken) return returned({ type: "refused" });
    returned({ type: "granted", fence: taken.fencingToken, ...valid(taken) });
    this.#hold(taken);
  }

  async #release(): Promise<void> {
    const lease = this.#lease;
    if (!lease) return;
    const returned = this.#journal.invoke({ type: "release", fence: lease.fencingToken });
    try {
      const freed = await lease.release();
      this.#lease = undefined;
      returned(freed ? { type: "released" } : { type: "refused" });
    } catch (error) {
      this.#lease = undefined;
      this.#fault("release", error);
    }
  }

  #renewed(fence: number, tookMs: number): void {
    if (this.#lease?.fencingToken !== fence) return;
    const renewed = this.#journal.invoke({ type: "renew", fence }, nowMs() - tookMs);
    renewed({ type: "renewed", ...valid(this.#lease) });
    this.#confirmedAtMs = nowMs();
  }

  /** Whether the deadline passed or a renewal was refused: nobody has the lock any more under this fence. */
  #lost(fence: number): void {
    if (this.#lease?.fencingToken !== fence) return;
    this.#journal.invoke({ type: "renew", fence }, this.#confirmedAtMs)({ type: "refused" });
  }

  #fault(what: string, error: unknown): void {
    this.#journal.note({ type: "fault", what, error: String(error) });
  }
}

/** Until when a holder trusts its lease. In this order a freeze in between makes it no later than it is. */
function valid(lease: Lease): { validUntilMs: number } {
  const atMs = nowMs();
  return { validUntilMs: atMs + lease.remainingMs() };
}

/** Notes when the event loop stood still, for whatever reason. */
function watchLoop(journal: Journal): void {
  let lastMs = nowMs();
  const tick = (): void => {
    const atMs = nowMs();
    if (atMs - lastMs > TICK_MS + LATE_MS) journal.note({ type: "stall", fromMs: lastMs }, atMs);
    lastMs = atMs;
  };
  Deno.unrefTimer(setInterval(tick, TICK_MS));
}

/** How far the wall clock is from the clock of the journals; what comes between two looks only adds to it. */
function driftMs(): number {
  const samples = Array.from({ length: 9 }, () => Date.now() - nowMs());
  return samples.reduce((a, b) => Math.abs(a) < Math.abs(b) ? a : b);
}

async function main(orders: WorkerOrders): Promise<void> {
  const { process, storage, at } = orders;
  const journal = new Journal(process, orders.journal);
  const startDriftMs = driftMs();
  journal.note({ type: "started", pid: Deno.pid });
  watchLoop(journal);
  let isFinishing = false;
  (async () => {
    for await (const line of linesOf(Deno.stdin.readable)) if (line === FINISH) isFinishing = true;
    if (!isFinishing) Deno.exit(1);
  })();

  const connect = await PRODUCTS[storage]!.load();
  const client = await reconnecting(journal, () => connect(at, Number(/\d+/.exec(process))));
  const worker = new Worker(orders, journal, client);
  while (!isFinishing) {
    await worker.cycle(false);
    await pause(30 * Math.random());
  }
  const isServed = await worker.cycle(true);
  await client.close();
  journal.note({ type: "ended", driftMs: driftMs() - startDriftMs });
  journal.close();
  Deno.exit(isServed ? 0 : UNSERVED);
}

/** A worker that starts while the product is down tries again. */
async function reconnecting<T>(journal: Journal, connect: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await connect();
    } catch (error) {
      journal.note({ type: "fault", what: "connect", error: String(error) });
      await pause(100);
    }
  }
}

await main(JSON.parse(Deno.args[0]!));
