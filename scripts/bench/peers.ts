/**
 * Holdfast and its peers behind one small interface, for the benchmarks. The peers and the client that all of
 * them share are npm packages, fetched once into the cache folder.
 *
 * @module
 */
import { Lock } from "../../mod.ts";
import { ioredis, type IoredisClient, RedisStorage } from "../../src/storage/redis.ts";
import { type UpstashRedis, UpstashStorage } from "../../src/storage/upstash.ts";

/** The exact versions; Deno fetches them at run time, so that nobody else has to. */
const VERSIONS: Readonly<Record<string, string>> = {
  "@upstash/lock": "0.2.1",
  "redlock": "5.0.0-beta.2",
  "@sesamecare-oss/redlock": "1.4.0",
  "redis-semaphore": "5.8.0",
  "redlock-universal": "0.8.5",
  "@verrou/core": "0.5.2",
  "ioredis": "5.11.1",
  "@upstash/redis": "1.39.0",
};

/** Where the servers are. */
export interface Servers {
  readonly redisUrl: string;
  readonly restUrl: string;
  readonly restToken: string;
}

/** One library, connected. */
export interface Subject {
  /** Acquires, waiting as long as the library can; resolves to what releases. */
  acquire(key: string, ttlMs: number): Promise<() => Promise<unknown>>;
  /** Acquires, and calls `lost` when the library says that the lease was lost; absent where it cannot. */
  hold?(key: string, ttlMs: number, lost: () => void): Promise<unknown>;
  /** Closes the connections. */
  close(): Promise<unknown>;
}

/** A library, and which client it runs on. */
export interface Contestant {
  readonly name: string;
  readonly client: "ioredis" | "upstash";
  readonly open: (servers: Servers) => Promise<Subject>;
}

// deno-lint-ignore no-explicit-any -- the peers' types are not ours
type Untyped = any;

async function load(name: string, entry = ""): Promise<Untyped> {
  const module: Untyped = await import(`npm:${name}@${VERSIONS[name]}${entry}`);
  return module.default && typeof module.default === "object"
    ? { ...module.default, ...module }
    : module;
}

async function connect(url: string): Promise<Untyped> {
  const { Redis, default: fallback } = await load("ioredis");
  return new (Redis ?? fallback)(url);
}

async function rest({ restUrl: url, restToken: token }: Servers, plain: boolean): Promise<Untyped> {
  const { Redis } = await load("@upstash/redis");
  return new Redis({ url, token, ...plain ? { automaticDeserialization: false } : {} });
}

function script(command: (...args: string[]) => Promise<unknown>): Subject["acquire"] {
  return async (key) => {
    await command("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 10000)", key);
    return () =>
      command(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
        key,
      );
  };
}

function holdfast(storage: RedisStorage | UpstashStorage, fair: boolean): Omit<Subject, "close"> {
  const lockOf = (name: string, ttlMs: number) => new Lock({ storage, name, ttlMs, fair });
  return {
    async acquire(name, ttlMs) {
      const lease = await lockOf(name, ttlMs).acquire();
      return () => lease.release();
    },
    async hold(name, ttlMs, lost) {
      const lease = await lockOf(name, ttlMs).acquire();
      lease.hold();
      lease.signal.addEventListener("abort", lost, { once: true });
    },
  };
}

async function openHoldfast({ redisUrl }: Servers, fair: boolean): Promise<Subject> {
  const [client, subscriber] = [await connect(redisUrl), await connect(redisUrl)];
  const storage = new RedisStorage(ioredis(client as IoredisClient, { subscriber }));
  return {
    ...holdfast(storage, fair),
    close: () => Promise.all([client.quit(), subscriber.quit()]),
  };
}

async function openRedlock(name: string, { redisUrl }: Servers): Promise<Subject> {
  const module = await load(name);
  const Redlock = module.Redlock ?? module.default?.default ?? module.default;
  const client = await connect(redisUrl);
  const redlock = new Redlock([client], { retryCount: 100_000 });
  redlock.on?.("error", () => {});
  return {
    async acquire(key, ttlMs) {
      const lock = await redlock.acquire([key], ttlMs);
      return () => lock.release();
    },
    hold(key, ttlMs, lost) {
      return new Promise((granted) => {
        redlock.using([key], ttlMs, async (signal: AbortSignal) => {
          granted(undefined);
          await new Promise<void>((resolve) => {
            signal.addEventListener("abort", () => (lost(), resolve()), { once: true });
          });
        }).catch(() => {});
      });
    },
    close: () => client.quit(),
  };
}

/** The libraries, the hand-written lock that they are measured against, and ours. */
export const contestants: readonly Contestant[] = [
  {
    name: "bare two EVAL",
    client: "ioredis",
    async open({ redisUrl }) {
      const client = await connect(redisUrl);
      const acquire = script((text, key) => client.eval(text!, 1, key, "token"));
      return { acquire, close: () => client.quit() };
    },
  },
  {
    name: "bare two EVAL (REST)",
    client: "upstash",
    async open(servers) {
      const client = await rest(servers, false);
      const acquire = script((text, key) => client.eval(text, [key], ["token"]));
      return { acquire, close: () => Promise.resolve() };
    },
  },
  { name: "holdfast", client: "ioredis", open: (servers) => openHoldfast(servers, false) },
  { name: "holdfast, fair", client: "ioredis", open: (servers) => openHoldfast(servers, true) },
  {
    name: "holdfast (REST)",
    client: "upstash",
    async open(servers) {
      const storage = new UpstashStorage(await rest(servers, true) as UpstashRedis);
      return { ...holdfast(storage, false), close: () => Promise.resolve() };
    },
  },
  {
    name: "@upstash/lock",
    client: "upstash",
    async open(servers) {
      const { Lock: UpstashLock } = await load("@upstash/lock");
      const redis = await rest(servers, false);
      return {
        async acquire(id, lease) {
          const lock = new UpstashLock({
            id,
            redis,
            lease,
            retry: { attempts: 100_000, delay: 100 },
          });
          await lock.acquire();
          return () => lock.release();
        },
        close: () => Promise.resolve(),
      };
    },
  },
  { name: "redlock 5 beta", client: "ioredis", open: (servers) => openRedlock("redlock", servers) },
  {
    name: "@sesamecare-oss/redlock",
    client: "ioredis",
    open: (servers) => openRedlock("@sesamecare-oss/redlock", servers),
  },
  {
    name: "redis-semaphore",
    client: "ioredis",
    async open({ redisUrl }) {
      const { Mutex } = await load("redis-semaphore");
      const client = await connect(redisUrl);
      const make = (key: string, lockTimeout: number, onLockLost: () => void) =>
        new Mutex(client, key, { lockTimeout, acquireTimeout: 1e9, onLockLost });
      return {
        async acquire(key, ttlMs) {
          const mutex = make(key, ttlMs, () => {});
          await mutex.acquire();
          return () => mutex.release();
        },
        hold: (key, ttlMs, lost) => make(key, ttlMs, lost).acquire(),
        close: () => client.quit(),
      };
    },
  },
  {
    name: "redlock-universal",
    client: "ioredis",
    async open({ redisUrl }) {
      const { createLock, IoredisAdapter } = await load("redlock-universal");
      const client = await connect(redisUrl);
      const adapter = new IoredisAdapter(client);
      const make = (key: string, ttl: number) =>
        createLock({ adapter, key, ttl, retryAttempts: 100_000, performance: "lean" });
      return {
        async acquire(key, ttlMs) {
          const lock = make(key, ttlMs);
          const handle = await lock.acquire();
          return () => lock.release(handle);
        },
        hold(key, ttlMs, lost) {
          return new Promise((granted) => {
            make(key, ttlMs).using(async (signal: AbortSignal) => {
              granted(undefined);
              await new Promise<void>((resolve) => {
                signal.addEventListener("abort", () => (lost(), resolve()), { once: true });
              });
            }).catch(() => {});
          });
        },
        close: () => client.quit(),
      };
    },
  },
  {
    name: "@verrou/core",
    client: "ioredis",
    async open({ redisUrl }) {
      const { Verrou } = await load("@verrou/core");
      const { redisStore } = await load("@verrou/core", "/drivers/redis");
      const client = await connect(redisUrl);
      const verrou = new Verrou({
        default: "redis",
        stores: { redis: { driver: redisStore({ connection: client }) } },
      });
      return {
        async acquire(key, ttlMs) {
          const lock = verrou.createLock(key, ttlMs);
          await lock.acquire();
          return () => lock.release();
        },
        close: () => client.quit(),
      };
    },
  },
];

/** Finds a contestant. */
export function contestant(name: string): Contestant {
  return contestants.find((c) => c.name === name)!;
}
