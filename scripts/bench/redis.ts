/**
 * Holdfast over Redis and Upstash's protocol against its peers, all in one run on one machine; what is printed
 * are ratios, because times depend on the machine. `deno task bench:redis [--quick] [--out FILE]`
 *
 * @module
 */
import { Redis } from "ioredis";
import { parseArgs } from "node:util";
import { startUpstashProxy } from "../../tests/support/upstash_proxy.ts";
import { startRedis } from "../services.ts";
import { type Contestant, contestant, contestants, type Servers, type Subject } from "./peers.ts";
import { median, printTable, quantile } from "./report.ts";

const { values } = parseArgs({
  args: Deno.args,
  options: { quick: { type: "boolean", default: false }, out: { type: "string" } },
});
const TTL_MS = 10_000;

/** The peers are no dependencies: they stay out of the lock file and of `node_modules`. */
const FLAGS = ["-A", "--no-check", "--no-lock", "--node-modules-dir=none"];
const sizes = values.quick
  ? { rounds: 8, cycles: 40, handovers: 8, waitMs: 3000, contendMs: 1500, stallMs: 2500 }
  : { rounds: 30, cycles: 100, handovers: 30, waitMs: 10_000, contendMs: 4000, stallMs: 6000 };

await using redis = await startRedis();
await using proxy = await startUpstashProxy({ redisPort: redis.port });
const servers: Servers = { redisUrl: redis.url, restUrl: proxy.url, restToken: proxy.token };
const admin = new Redis(redis.url);
const results: Record<string, unknown> = {};
let keys = 0;
const freshKey = (): string => `bench:${keys++}`;

/** How many commands the server ran since the last call, by name; those inside scripts too. */
async function commandsSince(): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  const text = await admin.info("commandstats");
  for (const [, name, calls] of text.matchAll(/cmdstat_([^:]+):calls=(\d+)/g)) {
    if (!/^(info|config|hello|client|select|script|quit|command)/.test(name!)) {
      counts[name!] = Number(calls);
    }
  }
  await admin.config("RESETSTAT");
  return counts;
}

function sum(counts: Record<string, number>): number {
  return Object.values(counts).reduce((a, b) => a + b, 0);
}

async function cycle(subject: Subject): Promise<void> {
  await (await subject.acquire(freshKey(), TTL_MS))();
}

/** a, b. Time, requests and commands of an uncontended cycle. */
async function cycles(): Promise<void> {
  const subjects = new Map<Contestant, Subject>();
  for (const c of contestants) subjects.set(c, await c.open(servers));
  const timesMs = new Map<Contestant, number[][]>();
  for (const [c, subject] of subjects) {
    timesMs.set(c, []);
    for (let i = 0; i < 20; i++) await cycle(subject);
  }
  for (let round = 0; round < sizes.rounds; round++) {
    for (const [c, subject] of subjects) {
      const times: number[] = [];
      for (let i = 0; i < sizes.cycles; i++) {
        const startMs = performance.now();
        await cycle(subject);
        times.push(performance.now() - startMs);
      }
      timesMs.get(c)!.push(times);
    }
  }
  const rows: (string | number)[][] = [];
  for (const [c, subject] of subjects) {
    const bare = timesMs.get(
      contestant(c.client === "ioredis" ? "bare two EVAL" : "bare two EVAL (REST)"),
    )!;
    const rounds = timesMs.get(c)!;
    const ratio = median(rounds.map((times, i) => median(times) / median(bare[i]!)));
    await commandsSince();
    proxy.counters.reset();
    for (let i = 0; i < 50; i++) await cycle(subject);
    const counts = await commandsSince();
    const sent = (counts["eval"] ?? 0) + (counts["evalsha"] ?? 0);
    const inside = c.name.startsWith("bare") || c.name.startsWith("holdfast");
    const requests = c.client === "upstash" ? proxy.counters.requests : inside ? sent : NaN;
    const all = rounds.flat();
    rows.push([
      c.name,
      median(all).toFixed(3),
      quantile(all, 0.99).toFixed(2),
      ratio.toFixed(2),
      Number.isNaN(requests) ? "-" : requests / 50,
      sum(counts) / 50,
    ]);
  }
  results["cycle"] = rows;
  printTable("Uncontended cycle", [
    "library",
    "p50 ms",
    "p99 ms",
    "ratio to bare",
    "requests",
    "commands",
  ], rows);
  for (const subject of subjects.values()) await subject.close();
}

const peers = contestants.filter((c) => !c.name.startsWith("bare"));

/** c. From the start of a release to the next grant, on another connection. */
async function handovers(): Promise<void> {
  const rows: (string | number)[][] = [];
  for (const c of peers) {
    const [a, b] = [await c.open(servers), await c.open(servers)];
    const times: number[] = [];
    for (let i = 0; i < sizes.handovers; i++) {
      const key = freshKey();
      const release = await a.acquire(key, TTL_MS);
      const waiting = b.acquire(key, TTL_MS);
      await new Promise((resolve) => setTimeout(resolve, 150 + Math.random() * 150));
      const startMs = performance.now();
      const [, releaseB] = await Promise.all([release(), waiting]);
      times.push(performance.now() - startMs);
      await releaseB();
    }
    const bare = await contestant(c.client === "ioredis" ? "bare two EVAL" : "bare two EVAL (REST)")
      .open(servers);
    const trips: number[] = [];
    for (let i = 0; i < 50; i++) {
      const startMs = performance.now();
      await cycle(bare);
      trips.push((performance.now() - startMs) / 2);
    }
    rows.push([
      c.name,
      median(times).toFixed(2),
      quantile(times, 0.95).toFixed(1),
      (median(times) / median(trips)).toFixed(1),
    ]);
    await Promise.all([a.close(), b.close(), bare.close()]);
  }
  results["handover"] = rows;
  printTable("Hand-over", ["library", "median ms", "p95 ms", "round trips"], rows);
}

/** d. What one waiter costs during one hold. */
async function waiters(): Promise<void> {
  const rows: (string | number)[][] = [];
  for (const c of peers) {
    const [a, b] = [await c.open(servers), await c.open(servers)];
    const key = freshKey();
    const release = await a.acquire(key, 60_000);
    await commandsSince();
    proxy.counters.reset();
    const waiting = b.acquire(key, 60_000);
    await new Promise((resolve) => setTimeout(resolve, sizes.waitMs));
    const counts = await commandsSince();
    const requests = c.client === "upstash" ? proxy.counters.requests : counts["evalsha"] ?? 0;
    const perTenSeconds = 10_000 / sizes.waitMs;
    rows.push([
      c.name,
      c.name.startsWith("holdfast") || c.client === "upstash" ? requests : "-",
      Math.round(sum(counts) * perTenSeconds),
    ]);
    await release();
    await (await waiting)();
    await Promise.all([a.close(), b.close()]);
  }
  results["waiter"] = rows;
  printTable(
    `One waiter, ${sizes.waitMs / 1000} s`,
    ["library", "requests", "commands per 10 s"],
    rows,
  );
}

/** e. Eight processes on one key. */
async function contention(): Promise<void> {
  const rows: (string | number)[][] = [];
  for (const c of peers.filter((p) => p.client === "ioredis")) {
    const key = freshKey();
    const script = new URL("./contender.ts", import.meta.url).pathname;
    const children = Array.from({ length: 8 }, () =>
      new Deno.Command(Deno.execPath(), {
        args: [
          "run",
          ...FLAGS,
          script,
          c.name,
          JSON.stringify(servers),
          key,
          `${sizes.contendMs}`,
        ],
        stdin: "piped",
        stdout: "piped",
        stderr: "null",
      }).spawn());
    const readers = children.map((child) =>
      child.stdout.pipeThrough(new TextDecoderStream()).getReader()
    );
    for (const reader of readers) await reader.read();
    await commandsSince();
    for (const child of children) {
      const writer = child.stdin.getWriter();
      await writer.write(new Uint8Array([10]));
      await writer.close();
    }
    const outputs = await Promise.all(
      readers.map(async (reader) => (await reader.read()).value ?? "{}"),
    );
    await Promise.all(children.map((child) => child.status));
    const counts = await commandsSince();
    const served = outputs.map((o) =>
      JSON.parse(o) as { count: number; errors: number; maxWaitMs: number }
    );
    const total = served.reduce((n, s) => n + s.count, 0);
    const most = Math.max(...served.map((s) => s.count));
    const least = Math.min(...served.map((s) => s.count));
    // Each section has two scripts of its own data.
    const requests = ((counts["evalsha"] ?? 0) + (counts["eval"] ?? 0) - 2 * total) / total;
    rows.push([
      c.name,
      Math.round(total / sizes.contendMs * 1000),
      (most / Math.max(least, 1)).toFixed(1),
      `${most},${least}`,
      Math.max(...served.map((s) => s.maxWaitMs)),
      c.name.startsWith("holdfast") ? requests.toFixed(2) : "-",
      served.reduce((n, s) => n + s.errors, 0),
    ]);
  }
  results["contention"] = rows;
  printTable(
    "Eight processes on one key",
    [
      "library",
      "sections/s",
      "most/least",
      "served",
      "longest wait ms",
      "requests per grant",
      "errors",
    ],
    rows,
  );
}

/** f. When the holder is told that its lease is over, after the server stalled right after the grant. */
async function losses(): Promise<void> {
  const rows: (string | number)[][] = [];
  for (const c of peers) {
    await using server = await startRedis();
    await using restProxy = await startUpstashProxy({ redisPort: server.port });
    const subject = await c.open({
      redisUrl: server.url,
      restUrl: restProxy.url,
      restToken: restProxy.token,
    });
    if (!subject.hold) {
      rows.push([c.name, "never", "no signal in the API"]);
      await subject.close();
      continue;
    }
    let toldMs: number | undefined;
    const startMs = performance.now();
    await subject.hold(freshKey(), 1000, () => toldMs ??= performance.now() - startMs);
    server.freeze();
    await new Promise((resolve) => setTimeout(resolve, sizes.stallMs));
    const during = toldMs;
    server.thaw();
    rows.push([
      c.name,
      during === undefined ? `not within ${sizes.stallMs}` : Math.round(during),
      "ttl 1000 ms",
    ]);
    await Promise.race([
      subject.close().catch(() => {}),
      new Promise((resolve) => setTimeout(resolve, 1000)),
    ]);
  }
  results["loss"] = rows;
  printTable("Told of the loss, ms after asking", ["library", "ms", "note"], rows);
}

/** g. The script's cost with a full record, and beside many other locks. */
async function scripts(): Promise<void> {
  const { RedisStorage, ioredis } = await import("../../src/storage/redis.ts");
  const storage = new RedisStorage(ioredis(admin));
  const timeOf = async (run: () => Promise<unknown>): Promise<number> => {
    const times: number[] = [];
    for (let i = 0; i < 200; i++) {
      const startMs = performance.now();
      await run();
      times.push(performance.now() - startMs);
    }
    return median(times) * 1000;
  };
  const acquire = (name: string, token: string, more: object = {}) =>
    storage.execute(name, {
      type: "acquire",
      token,
      permits: 1,
      capacity: 1,
      ttlMs: 600_000,
      label: "",
      queueMs: 0,
      fair: false,
      presumedDead: [],
      ...more,
    });
  const token = crypto.randomUUID();
  await acquire("alone", token);
  const aloneUs = await timeOf(() => acquire("alone", token));
  for (let i = 0; i < 10_000; i += 500) {
    await Promise.all(
      Array.from({ length: 500 }, (_, j) => acquire(`other ${i + j}`, crypto.randomUUID())),
    );
  }
  const besideUs = await timeOf(() => acquire("alone", token));
  for (let i = 0; i < 256; i++) await acquire("full", crypto.randomUUID(), { capacity: 256 });
  for (let i = 0; i < 256; i++) {
    await acquire("full", crypto.randomUUID(), { capacity: 256, queueMs: 600_000 });
  }
  const fullUs = await timeOf(() => acquire("full", crypto.randomUUID(), { capacity: 256 }));
  const rows = [
    ["a mutex", aloneUs.toFixed(0)],
    ["a mutex beside 10,000 others", besideUs.toFixed(0)],
    ["256 holders and 256 tickets", fullUs.toFixed(0)],
  ];
  results["script"] = rows;
  printTable("The script, microseconds with the round trip", ["record", "us"], rows);
}

// The peers' clients reject what nobody waits for any more when their server goes.
globalThis.addEventListener("unhandledrejection", (event) => event.preventDefault());

try {
  await cycles();
  await handovers();
  await waiters();
  await contention();
  await losses();
  await scripts();
  if (values.out) await Deno.writeTextFile(values.out, JSON.stringify(results, null, 2));
} finally {
  admin.disconnect();
}
Deno.exit(0);
