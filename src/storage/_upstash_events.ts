/**
 * Hints over Upstash's server-sent events.
 *
 * @module
 */
import { backoffMs } from "../core/backoff.ts";
import type { Clock } from "../core/clock.ts";
import { dispose } from "../core/disposable.ts";
import { systemEntropy } from "../core/entropy.ts";
import type { PollMs } from "../core/storage.ts";
import { Channels, type OpenChannel } from "./_redis_watch.ts";
import type { UpstashRedis, UpstashSubscriber } from "./_upstash_client.ts";

/** Each subscription is a request that stays open, of which browsers allow six to one host. */
const MAX_SUBSCRIPTIONS = 2;

/**
 * After this time a subscription is replaced by a new one: the client does not tell when the stream of one
 * has ended. What was missed meanwhile is made good by the wake-up that follows.
 */
const MAX_AGE_MS = 30_000;

const RETRY_MS: PollMs = { min: 1000, max: 60_000 };

const channelsOf = new WeakMap<UpstashRedis, Channels>();

/**
 * The subscriptions of a client, which all storages on it share.
 *
 * @param client the client
 * @param clock sets the timers, if the client has no subscriptions yet
 * @returns its channels
 */
export function upstashChannels(client: UpstashRedis, clock: Clock): Channels {
  let channels = channelsOf.get(client);
  if (!channels) {
    channels = new Channels(eventsOver(client, clock), MAX_SUBSCRIPTIONS);
    channelsOf.set(client, channels);
  }
  return channels;
}

function eventsOver(client: UpstashRedis, clock: Clock): OpenChannel {
  return (channel, events) => {
    let current: UpstashSubscriber | undefined;
    let timer: Disposable | undefined;
    let faults = 0;

    function connect(): void {
      const subscriber = current = client.subscribe(channel);
      // Also for a request that is never answered.
      connectAgainAfter(MAX_AGE_MS);
      const whileCurrent = (listener: () => void) => (): void => {
        if (subscriber === current) listener();
      };
      subscriber.on(
        "subscribe",
        whileCurrent(() => {
          faults = 0;
          events.up();
        }),
      );
      subscriber.on(
        "error",
        whileCurrent(() => {
          events.down();
          connectAgainAfter(backoffMs(faults++, RETRY_MS, systemEntropy.random()));
        }),
      );
      subscriber.on("message", ({ message }) => {
        // The client takes a text of digits for a number, some of them for infinity: then it is for all.
        if (subscriber === current) {
          events.message(typeof message === "string" ? message : undefined);
        }
      });
    }

    function connectAgainAfter(ms: number): void {
      timer?.[dispose]();
      timer = clock.setTimer(ms, () => {
        disconnect();
        connect();
      }, { keepAlive: false });
    }

    function disconnect(): void {
      timer?.[dispose]();
      events.down();
      // It only aborts a request.
      current?.unsubscribe().catch(() => {});
      current = undefined;
    }

    connect();
    return disconnect;
  };
}
