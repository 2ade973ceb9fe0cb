/**
 * Wakes waiters by `LISTEN` and `NOTIFY`: one subscription for all locks of a storage, while anybody waits.
 *
 * @module
 */
import { backoffMs } from "../core/backoff.ts";
import type { Clock } from "../core/clock.ts";
import { dispose } from "../core/disposable.ts";
import type { Entropy } from "../core/entropy.ts";
import { type PollMs, waiterMark, type Watch } from "../core/storage.ts";
import type { PostgresClient } from "./_postgres_clients.ts";

type Wake = (next?: string) => void;

const AGAIN_MS: PollMs = { min: 250, max: 10_000 };

/** The subscription of one storage. */
export class PostgresWaker {
  readonly #channel: string;
  readonly #listen: NonNullable<PostgresClient["listen"]>;
  readonly #notify: (payload: string) => Promise<unknown>;
  readonly #clock: Clock;
  readonly #entropy: Entropy;
  readonly #waiters = new Map<string, Set<Wake>>();
  #isLive = false;
  #failures = 0;
  /** Tells the present subscription from those before it. */
  #turn = 0;
  #subscription: Disposable | undefined;
  #pause: Disposable | undefined;

  /**
   * Does nothing until somebody watches.
   *
   * @param channel the channel's name; needs no quotes
   * @param port `listen` subscribes; `notify` sends a payload by the way that writes take
   * @param sources time and jitter
   */
  constructor(
    channel: string,
    port: {
      readonly listen: NonNullable<PostgresClient["listen"]>;
      readonly notify: (channel: string, payload: string) => Promise<unknown>;
    },
    sources: { readonly clock: Clock; readonly entropy: Entropy },
  ) {
    this.#channel = channel;
    this.#listen = port.listen;
    this.#notify = (payload) => port.notify(channel, payload);
    this.#clock = sources.clock;
    this.#entropy = sources.entropy;
  }

  /** As `LeaseStorage.watch`. */
  watch(name: string, wake: (next?: string) => void): Watch {
    const key = hash(name);
    let waiters = this.#waiters.get(key);
    if (!waiters) this.#waiters.set(key, waiters = new Set());
    waiters.add(wake);
    if (this.#isLive) queueMicrotask(wake);
    else if (!this.#subscription && !this.#pause) this.#subscribe();
    const isLive = (): boolean => this.#isLive;
    return {
      get live() {
        return isLive();
      },
      [dispose]: () => {
        waiters.delete(wake);
        if (waiters.size === 0 && this.#waiters.get(key) === waiters) this.#waiters.delete(key);
        if (this.#waiters.size === 0) this.#unsubscribe();
      },
    };
  }

  /**
   * A subscription counts once a notification of our own came through: a transaction pooler accepts
   * `LISTEN` and delivers nothing (PgBouncer, "Features", SQL feature map for pooling modes).
   */
  #subscribe(): void {
    const probe = `probe ${this.#entropy.uuid()}`;
    const turn = ++this.#turn;
    const isCurrent = (): boolean => this.#turn === turn;
    const again = (): void => {
      if (isCurrent()) this.#subscribeLater();
    };
    this.#subscription = this.#listen(this.#channel, {
      begun: () => {
        if (!isCurrent()) return;
        this.#isLive = false;
        this.#notify(probe).catch(again);
      },
      lost: again,
      notified: (payload) => {
        if (!isCurrent()) return;
        if (payload === probe) {
          this.#isLive = true;
          this.#failures = 0;
          for (const waiters of this.#waiters.values()) wakeAll(waiters);
        } else {
          const [key = "", next] = payload.split(" ");
          wakeAll(this.#waiters.get(key), next);
        }
      },
    });
  }

  #subscribeLater(): void {
    this.#end();
    const ms = backoffMs(this.#failures++, AGAIN_MS, this.#entropy.random());
    this.#pause = this.#clock.setTimer(ms, () => {
      this.#pause = undefined;
      this.#subscribe();
    }, { keepAlive: false });
  }

  #unsubscribe(): void {
    this.#end();
    this.#pause?.[dispose]();
    this.#pause = undefined;
  }

  #end(): void {
    this.#turn++;
    this.#isLive = false;
    this.#subscription?.[dispose]();
    this.#subscription = undefined;
  }
}

/**
 * Where all clients of a storage are told that locks may be free.
 *
 * @param table the record table, quoted
 * @returns the channel's name; needs no quotes
 */
export function channelOf(table: string): string {
  return `holdfast_${hash(table)}`;
}

/**
 * What is told when a lock may be free.
 *
 * @param name the lock
 * @param token of the waiter that is meant
 * @returns the payload
 */
export function wakeUp(name: string, token: string): string {
  return `${hash(name)} ${waiterMark(token)}`;
}

function wakeAll(waiters: Iterable<Wake> = [], next?: string): void {
  for (const wake of [...waiters]) wake(next);
}

/**
 * Names what is notified without naming the lock to every role of the database, within the 63 bytes of a
 * channel's name: FNV-1a with 64 bits (Fowler, Noll, Vo). Two locks with the same hash wake each other's
 * waiters in vain, which is allowed.
 */
function hash(text: string): string {
  let h = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(text)) {
    h = BigInt.asUintN(64, (h ^ BigInt(byte)) * 0x100000001b3n);
  }
  return h.toString(16).padStart(16, "0");
}
