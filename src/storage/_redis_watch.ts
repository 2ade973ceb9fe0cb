/**
 * Who listens to which channel of this client: all who watch a channel share one subscription.
 *
 * @module
 */
import { dispose } from "../core/disposable.ts";
import type { Watch } from "../core/storage.ts";

/** What a subscription reports. */
export interface ChannelEvents {
  /** The subscription is live, or live again: hints may have been missed until now. */
  readonly up: () => void;
  /** The subscription is not live. */
  readonly down: () => void;
  /** A hint: the mark of the waiter that is meant, or none for all. */
  readonly message: (mark?: string) => void;
}

/** Subscribes to one channel; the result unsubscribes. Tries again by itself when it is cut off. */
export type OpenChannel = (channel: string, events: ChannelEvents) => () => void;

/** Those who watch one channel. */
interface Audience {
  readonly wakes: Set<(next?: string) => void>;
  isLive: boolean;
  close: (() => void) | undefined;
}

/** Ref-counted subscriptions, a limited number of them at a time. */
export class Channels {
  readonly #open: OpenChannel;
  readonly #limit: number;
  readonly #audiences = new Map<string, Audience>();
  #opened = 0;

  /**
   * @param open subscribes
   * @param limit how many channels may be open; those beyond wait, and their waiters poll
   */
  constructor(open: OpenChannel, limit = Infinity) {
    this.#open = open;
    this.#limit = limit;
  }

  /**
   * Listens until it is disposed.
   *
   * @param channel the channel
   * @param wake as in `LeaseStorage.watch`
   * @returns whether it is live, and how to end it
   */
  watch(channel: string, wake: (next?: string) => void): Watch {
    let audience = this.#audiences.get(channel);
    if (!audience) {
      audience = { wakes: new Set(), isLive: false, close: undefined };
      this.#audiences.set(channel, audience);
    } else if (audience.isLive) {
      // A hint may have come between our caller's look and this line.
      queueMicrotask(() => joined.has(own) && wake());
    }
    const joined = audience.wakes;
    // A function of our own: the same `wake` may be here twice.
    const own = (next?: string): void => wake(next);
    joined.add(own);
    this.#openNext();
    return {
      get live() {
        return joined.has(own) && audience.isLive;
      },
      [dispose]: () => {
        if (joined.delete(own) && joined.size === 0) this.#close(channel, audience);
      },
    };
  }

  #openNext(): void {
    for (const [channel, audience] of this.#audiences) {
      if (this.#opened >= this.#limit) return;
      if (audience.close) continue;
      this.#opened += 1;
      const tell = (next?: string): void => audience.wakes.forEach((wake) => wake(next));
      audience.close = this.#open(channel, {
        up: () => {
          audience.isLive = true;
          tell();
        },
        down: () => audience.isLive = false,
        message: tell,
      });
    }
  }

  #close(channel: string, audience: Audience): void {
    this.#audiences.delete(channel);
    audience.isLive = false;
    if (!audience.close) return;
    audience.close();
    this.#opened -= 1;
    this.#openNext();
  }
}
