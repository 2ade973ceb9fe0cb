/**
 * Many channels over one subscribed connection.
 *
 * @module
 */
import type { ChannelEvents, OpenChannel } from "./_redis_watch.ts";

/** What happens to a subscribed connection. */
export interface SubscriberEvents {
  /** It can be used, again: channels have to be subscribed (again). */
  readonly up: () => void;
  /** It is lost. */
  readonly down: () => void;
  /** A message. */
  readonly message: (channel: string, text: string) => void;
}

/** A connection in use. */
export interface Subscription {
  /** Subscribes to a channel, which may be subscribed already; resolves when the server has confirmed it. */
  readonly subscribe: (channel: string) => Promise<unknown>;
  /** Takes that back. */
  readonly unsubscribe: (channel: string) => Promise<unknown>;
  /** Takes our listeners off, and closes the connection if we opened it. */
  readonly close: () => void;
}

/** How a client listens. */
export interface Subscriber {
  /** Starts to use the connection. */
  readonly open: (events: SubscriberEvents) => Subscription;
}

/** A channel that somebody listens to, and since which connection it is subscribed, or about to be. */
interface Subscribed {
  readonly events: ChannelEvents;
  since: number;
}

/**
 * Uses one connection for all channels, from the first to the last.
 *
 * @param subscriber how the client listens
 * @returns opens one channel
 */
export function channelsOver(subscriber: Subscriber): OpenChannel {
  const channels = new Map<string, Subscribed>();
  let connection: Subscription | undefined;
  /** Counts losses, so that a confirmation from before one is not taken for one after it. */
  let epoch = 0;

  function subscribe(channel: string, it: Subscribed): void {
    const since = it.since = epoch;
    connection?.subscribe(channel).then(
      () => epoch === since && channels.get(channel) === it && it.events.up(),
      // Without rights on the channel its waiters poll.
      () => {},
    );
  }

  function connect(): Subscription {
    return subscriber.open({
      up: () => channels.forEach((it, channel) => it.since < epoch && subscribe(channel, it)),
      down: () => {
        epoch += 1;
        channels.forEach((it) => it.events.down());
      },
      message: (channel, text) => channels.get(channel)?.events.message(text),
    });
  }

  return (channel, events) => {
    const it = { events, since: epoch };
    channels.set(channel, it);
    connection ??= connect();
    subscribe(channel, it);
    return () => {
      channels.delete(channel);
      connection?.unsubscribe(channel).catch(() => {});
      if (channels.size > 0) return;
      connection?.close();
      connection = undefined;
      epoch += 1;
    };
  };
}
