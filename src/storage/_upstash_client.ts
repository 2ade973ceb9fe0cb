/**
 * Scripts over Upstash's REST client.
 *
 * @module
 */
import { errorText } from "./_redis_errors.ts";
import {
  checkClient,
  type Script,
  type ScriptCall,
  scriptOf,
  type SendCalls,
} from "./_redis_run.ts";

/** The part of a `Redis` of `@upstash/redis` that is used. */
export interface UpstashRedis {
  /** Runs a script by its hash. */
  evalsha(sha1: string, keys: string[], args: string[]): Promise<unknown>;
  /** Runs a script by its text. */
  eval(script: string, keys: string[], args: string[]): Promise<unknown>;
  /** Begins a pipeline. */
  pipeline(): UpstashPipeline;
  /** Subscribes to a channel. */
  subscribe(channel: string): UpstashSubscriber;
}

/** The part of a pipeline that is used. */
export interface UpstashPipeline {
  /** Adds a script by its hash. */
  evalsha(sha1: string, keys: string[], args: string[]): unknown;
  /** Adds a script by its text. */
  eval(script: string, keys: string[], args: string[]): unknown;
  /** Sends it. */
  exec(options: { keepErrors: true }): Promise<{ result: unknown; error?: string | undefined }[]>;
}

/** The part of a subscription that is used. */
export interface UpstashSubscriber {
  /** Adds a listener. */
  on(type: "message", listener: (data: { message: unknown }) => void): void;
  /** Adds a listener. */
  on(type: "subscribe" | "error", listener: () => void): void;
  /** Ends the subscription. */
  unsubscribe(): Promise<void>;
}

/**
 * Upstash locks the whole database while a script runs, unless it says that it touches only its keys
 * (https://upstash.com/docs/redis/features/key-locking). Redis itself refuses that line.
 */
const KEY_LOCKING = "#!lua flags=allow-key-locking\n";

/** How a server refuses it: Redis 7 names the flag, older ones and emulators stumble over the line. */
const REFUSED = /^ERR .*(shebang|allow-key-locking|near '#')/s;

/** The size of a request is limited (10 MB); the client's own pipelines end here, too. */
const MAX_PIPELINE = 1000;

/** Clients whose server refused the line. */
const plainClients = new WeakSet<UpstashRedis>();

const keyLocking = new WeakMap<Script, Script>();

/**
 * Sends scripts through a client; a single one the way that the client sends any command, several in one
 * pipeline.
 *
 * @param client the client
 * @returns how to send
 * @throws {TypeError} if it is another kind of client
 */
export function upstashSend(client: UpstashRedis): SendCalls {
  checkClient("UpstashStorage", client, ["evalsha", "eval", "pipeline"]);
  return async (calls) => {
    const results: PromiseSettledResult<unknown>[] = [];
    for (let i = 0; i < calls.length; i += MAX_PIPELINE) {
      results.push(...await sendSome(client, calls.slice(i, i + MAX_PIPELINE)));
    }
    return results;
  };
}

async function sendSome(
  client: UpstashRedis,
  calls: readonly ScriptCall[],
): Promise<PromiseSettledResult<unknown>[]> {
  if (plainClients.has(client)) return await sendThese(client, calls);
  const locking = calls.map((call) => ({ ...call, script: withKeyLocking(call.script) }));
  const results = await sendThese(client, locking);
  const refused = calls.filter((_, i) => isRefused(results[i]!));
  if (refused.length === 0) return results;
  plainClients.add(client);
  const plain = await sendThese(client, refused);
  return results.map((result) => isRefused(result) ? plain.shift()! : result);
}

async function sendThese(
  client: UpstashRedis,
  calls: readonly ScriptCall[],
): Promise<PromiseSettledResult<unknown>[]> {
  if (calls.length === 1) {
    return await Promise.allSettled(
      calls.map(({ script, keys, args, asText }) =>
        asText
          ? client.eval(script.text, [...keys], [...args])
          : client.evalsha(script.sha1, [...keys], [...args])
      ),
    );
  }
  const pipeline = client.pipeline();
  for (const { script, keys, args, asText } of calls) {
    if (asText) pipeline.eval(script.text, [...keys], [...args]);
    else pipeline.evalsha(script.sha1, [...keys], [...args]);
  }
  try {
    const results = await pipeline.exec({ keepErrors: true });
    return calls.map((_, i) => {
      const { result: value, error } = results[i]!;
      return error
        ? { status: "rejected", reason: new Error(error) }
        : { status: "fulfilled", value };
    });
  } catch (reason) {
    return calls.map(() => ({ status: "rejected", reason }));
  }
}

function withKeyLocking(script: Script): Script {
  let locking = keyLocking.get(script);
  if (!locking) keyLocking.set(script, locking = scriptOf(KEY_LOCKING + script.text));
  return locking;
}

function isRefused(result: PromiseSettledResult<unknown>): boolean {
  return result.status === "rejected" && REFUSED.test(errorText(result.reason));
}
