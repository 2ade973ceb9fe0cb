/**
 * The clients of Redis that the storage works with, each by the few methods that are called of it.
 *
 * @module
 */
import type { Subscriber, SubscriberEvents, Subscription } from "./_redis_pubsub.ts";
import { checkClient, type ScriptCall, type SendCalls } from "./_redis_run.ts";

/** A client of Redis as `RedisStorage` takes it; {@linkcode ioredis} and the others make one. */
export interface RedisClient {
  /** Sends scripts. */
  readonly send: SendCalls;
  /** How it listens to channels; without it waiters poll. */
  readonly subscriber?: Subscriber | undefined;
}

/** How a client may listen. */
export interface ListenOptions<S> {
  /**
   * A second connection for subscriptions, which stays yours; or `"duplicate"`, to let the storage open one
   * while somebody waits, and close it after. Without it waiters poll.
   */
  readonly subscriber?: S | "duplicate" | undefined;
}

/** The part of a `Redis` or `Cluster` of `ioredis` (5 or later) that runs scripts. */
export interface IoredisClient {
  /** Whether it is a `Cluster`, whose pipelines must stay on one node. */
  readonly isCluster?: boolean | undefined;
  /** Sends a command. */
  call(command: string, ...args: string[]): Promise<unknown>;
  /** Sends commands in one write. */
  pipeline(commands: string[][]): {
    exec(): Promise<[error: Error | null, result: unknown][] | null>;
  };
  /** Makes a connection of the same kind. */
  duplicate(): IoredisSubscriber;
}

/** The part of it that listens. */
export interface IoredisSubscriber {
  /** Subscribes to a channel. */
  subscribe(channel: string): Promise<unknown>;
  /** Unsubscribes from a channel. */
  unsubscribe(channel: string): Promise<unknown>;
  /** Adds a listener. */
  on(event: string, listener: (...args: string[]) => void): unknown;
  /** Removes a listener. */
  off(event: string, listener: (...args: string[]) => void): unknown;
  /** Closes the connection. */
  disconnect(): void;
}

/** The part of a client or cluster of `redis` (node-redis, 5 or later) that runs scripts. */
export interface NodeRedisClient {
  /** Runs a script by its hash. */
  evalSha(sha1: string, options: { keys: string[]; arguments: string[] }): Promise<unknown>;
  /** Runs a script by its text. */
  eval(script: string, options: { keys: string[]; arguments: string[] }): Promise<unknown>;
  /** Makes a connection of the same kind. */
  duplicate(): NodeRedisSubscriber;
}

/** The part of it that listens. */
export interface NodeRedisSubscriber {
  /** Subscribes to a channel. */
  subscribe(
    channel: string,
    listener: (message: string, channel: string) => void,
  ): Promise<unknown>;
  /** Unsubscribes from a channel. */
  unsubscribe(
    channel: string,
    listener: (message: unknown, channel: unknown) => void,
  ): Promise<unknown>;
  /** Adds a listener. */
  on(event: string, listener: () => void): unknown;
  /** Removes a listener. */
  off(event: string, listener: () => void): unknown;
  /** Opens the connection. */
  connect(): Promise<unknown>;
  /** Closes the connection. */
  destroy(): void;
}

/** The part of Bun's `RedisClient` that runs scripts. */
export interface BunRedisClient {
  /** Sends a command. */
  send(command: string, args: string[]): Promise<unknown>;
  /** Makes a connection of the same kind. */
  duplicate(): Promise<BunRedisSubscriber>;
}

/** The part of it that listens. */
export interface BunRedisSubscriber {
  /** Whether it is connected. */
  readonly connected: boolean;
  /** Called when the connection is made, again. */
  onconnect: ((this: never) => void) | null;
  /** Subscribes to a channel. */
  subscribe(
    channel: string,
    listener: (message: string, channel: string) => void,
  ): Promise<unknown>;
  /** Unsubscribes from a channel. */
  unsubscribe(channel: string): Promise<unknown>;
  /** Closes the connection. */
  close(): void;
}

/**
 * Takes a client of `ioredis`.
 *
 * Recommended: `new Redis(url, { maxRetriesPerRequest: 0 })`, which rejects when the connection is lost
 * instead of sending again after it is back. Either is safe: what is sent twice is applied once.
 *
 * @param client a `Redis` or a `Cluster`
 * @param options how to listen
 * @returns the client, for `RedisStorage`
 * @throws {TypeError} if it is another kind of client
 */
export function ioredis(
  client: IoredisClient,
  options: ListenOptions<IoredisSubscriber> = {},
): RedisClient {
  checkClient("ioredis()", client, ["call", "pipeline"]);
  const send: SendCalls = async (calls) => {
    const commands = calls.map(words);
    if (commands.length === 1 || client.isCluster) {
      return await Promise.allSettled(
        commands.map(([name, ...args]) => client.call(name!, ...args)),
      );
    }
    try {
      const results = await client.pipeline(commands).exec();
      return commands.map((_, i) => {
        const [reason, value] = results?.[i] ?? [new Error("No reply"), undefined];
        return reason ? { status: "rejected", reason } : { status: "fulfilled", value };
      });
    } catch (reason) {
      return commands.map(() => ({ status: "rejected", reason }));
    }
  };
  return { send, subscriber: subscriberOf(options.subscriber, () => client.duplicate(), listen) };

  function listen(
    connection: IoredisSubscriber,
    isOurs: boolean,
    events: SubscriberEvents,
  ): Subscription {
    const listeners: [string, (...args: string[]) => void][] = [
      ["ready", () => events.up()],
      ["close", () => events.down()],
      ["message", (channel, text) => events.message(channel!, text!)],
    ];
    // An unheard error event is printed; ours says no more than "close" does.
    if (isOurs) listeners.push(["error", () => {}]);
    for (const [event, listener] of listeners) connection.on(event, listener);
    return {
      subscribe: (channel) => connection.subscribe(channel),
      unsubscribe: (channel) => connection.unsubscribe(channel),
      close: () => {
        if (isOurs) connection.disconnect();
        else for (const [event, listener] of listeners) connection.off(event, listener);
      },
    };
  }
}

/**
 * Takes a client of `redis` (node-redis).
 *
 * @param client a connected client, or a cluster
 * @param options how to listen; a connection that is handed in has to be connected
 * @returns the client, for `RedisStorage`
 * @throws {TypeError} if it is another kind of client
 */
export function nodeRedis(
  client: NodeRedisClient,
  options: ListenOptions<NodeRedisSubscriber> = {},
): RedisClient {
  checkClient("nodeRedis()", client, ["evalSha", "eval"]);
  const send: SendCalls = (calls) =>
    Promise.allSettled(calls.map(async ({ script, keys, args, asText }) => {
      const options = { keys: [...keys], arguments: [...args] };
      return await (asText
        ? client.eval(script.text, options)
        : client.evalSha(script.sha1, options));
    }));
  return { send, subscriber: subscriberOf(options.subscriber, () => client.duplicate(), listen) };

  function listen(
    connection: NodeRedisSubscriber,
    isOurs: boolean,
    events: SubscriberEvents,
  ): Subscription {
    const onMessage = (text: unknown, channel: unknown): void =>
      events.message(String(channel), String(text));
    const listeners: [string, () => void][] = [
      ["ready", events.up],
      ["reconnecting", events.down],
      ["end", events.down],
    ];
    // An unheard error event ends the process.
    if (isOurs) listeners.push(["error", () => {}]);
    for (const [event, listener] of listeners) connection.on(event, listener);
    const connected = isOurs ? connection.connect() : Promise.resolve();
    connected.catch(() => {});
    return {
      subscribe: (channel) => connected.then(() => connection.subscribe(channel, onMessage)),
      unsubscribe: (channel) => connected.then(() => connection.unsubscribe(channel, onMessage)),
      close: () => {
        if (isOurs) connected.then(() => connection.destroy()).catch(() => {});
        else for (const [event, listener] of listeners) connection.off(event, listener);
      },
    };
  }
}

/**
 * Takes Bun's own `RedisClient`.
 *
 * @param client a client
 * @param options how to listen
 * @returns the client, for `RedisStorage`
 * @throws {TypeError} if it is another kind of client
 */
export function bunRedis(
  client: BunRedisClient,
  options: ListenOptions<BunRedisSubscriber> = {},
): RedisClient {
  checkClient("bunRedis()", client, ["send"]);
  const send: SendCalls = (calls) =>
    Promise.allSettled(calls.map(async (call) => {
      const [name, ...args] = words(call);
      return await client.send(name!.toUpperCase(), args);
    }));
  return { send, subscriber: subscriberOf(options.subscriber, () => client.duplicate(), listen) };

  function listen(
    connection: BunRedisSubscriber | Promise<BunRedisSubscriber>,
    isOurs: boolean,
    events: SubscriberEvents,
  ): Subscription {
    const onMessage = (text: string, channel: string): void => events.message(channel, text);
    const subscribed = new Set<string>();
    let before: BunRedisSubscriber["onconnect"] = null;
    let isAgain = false;
    const connected = Promise.resolve(connection).then((it) => {
      before = it.onconnect ?? null;
      isAgain = it.connected;
      it.onconnect = onConnect;
      return it;
    });
    connected.catch(() => {});
    // Bun connects again by itself, says nothing of the loss, and does not subscribe again.
    function onConnect(this: BunRedisSubscriber): void {
      before?.call(this as never);
      if (isAgain) events.down();
      if (isAgain) events.up();
      isAgain = true;
    }
    return {
      subscribe: async (channel) => {
        const it = await connected;
        // Each further subscription to a channel would have each message delivered once more.
        if (subscribed.has(channel)) await it.unsubscribe(channel);
        subscribed.add(channel);
        await it.subscribe(channel, onMessage);
      },
      unsubscribe: async (channel) => {
        subscribed.delete(channel);
        await (await connected).unsubscribe(channel);
      },
      close: () => {
        connected.then((it) => {
          if (isOurs) it.close();
          else if (it.onconnect === onConnect) it.onconnect = before;
        }).catch(() => {});
      },
    };
  }
}

/** A connection that is handed in, or one that is made for as long as somebody waits. */
function subscriberOf<S, D>(
  given: S | "duplicate" | undefined,
  duplicate: () => D,
  listen: (connection: S | D, isOurs: boolean, events: SubscriberEvents) => Subscription,
): Subscriber | undefined {
  if (given === undefined) return undefined;
  return {
    open: (events) =>
      given === "duplicate" ? listen(duplicate(), true, events) : listen(given, false, events),
  };
}

/** A call as the words of a command; the name in lower case, as a pipeline of ioredis wants it. */
function words({ script, keys, args, asText }: ScriptCall): string[] {
  const [name, text] = asText ? ["eval", script.text] : ["evalsha", script.sha1];
  return [name, text, String(keys.length), ...keys, ...args];
}
