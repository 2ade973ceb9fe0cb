/**
 * One worker process of the demo: again and again it takes the lock, reads two balances, works a little, and
 * adds 1 to each, to one of them with `fencedCommit`. It never looks whether it still holds the lock, as a
 * program that was frozen after its last look could not: what protects the balance has to be the fence.
 *
 * Reports to its standard output in lines of JSON; obeys lines on its standard input (see `Instruction`), and
 * ends with it.
 *
 * Arguments: path of the Deno KV file, number of the worker, length of a lease, kind of sabotage.
 *
 * @module
 */
import { type Lease, Lock, StaleFenceError } from "../mod.ts";
import { DenoKvStorage, fencedCommit } from "../src/storage/deno_kv.ts";
import type { Account, DemoEvent, Sabotage } from "./demo_history.ts";
import { type Instruction, LINGER_MS, RENEW_EVERY } from "./demo_terms.ts";
import { linesOf } from "./lines.ts";
import { openKv } from "./open_kv.ts";

const [path = "", number = "", ttl = "", sabotage = ""] = Deno.args as [
  string?,
  string?,
  string?,
  (Sabotage | "")?,
];
const worker = Number(number);
const ttlMs = Number(ttl);

/** The keys of an account: its balance, and one entry for each update that was applied to it. */
function balanceKey(account: Account): Deno.KvKey {
  return ["balance", account];
}
function entryKey(account: Account): Deno.KvKey {
  return ["entry", account, crypto.randomUUID()];
}

type Report = DemoEvent extends infer E
  ? E extends DemoEvent ? Omit<E, "worker" | "at"> & { at?: number } : never
  : never;

function report(event: Report): void {
  const line = JSON.stringify({ worker, at: Date.now(), ...event }) + "\n";
  Deno.stdout.writeSync(new TextEncoder().encode(line));
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

const kv = await openKv(path);
const stop = new AbortController();
let lingers = false;

async function obey(): Promise<void> {
  for await (const line of linesOf(Deno.stdin.readable)) {
    const instruction = line as Instruction;
    if (instruction === "stop") break;
    lingers = instruction === "linger";
  }
  stop.abort();
}

/** Commits; a file that another process writes at this moment is tried again. */
async function commit(op: Deno.AtomicOperation): Promise<void> {
  for (;;) {
    try {
      await op.commit();
      return;
    } catch (error) {
      if (!(error instanceof Error && error.message.includes("locked"))) throw error;
      await pause(1 + 10 * Math.random());
    }
  }
}

/** Reads both balances, works a little, writes both back. */
async function section(lease: Lease | undefined): Promise<void> {
  const fence = lease?.fencingToken ?? 0;
  const read = async (account: Account): Promise<number> =>
    (await kv.get<number>(balanceKey(account))).value ?? 0;
  const unfenced = await read("unfenced") + 1;
  const fenced = await read("fenced") + 1;
  if (lingers) {
    lingers = false;
    report({ type: "lingering", fence });
    await pause(LINGER_MS);
  } else {
    await pause(60 + 80 * Math.random());
  }

  await commit(
    kv.atomic().set(balanceKey("unfenced"), unfenced).set(entryKey("unfenced"), fence),
  );
  report({ type: "wrote", fence, account: "unfenced", balance: unfenced });

  const add = (op: Deno.AtomicOperation): Deno.AtomicOperation =>
    op.set(balanceKey("fenced"), fenced).set(entryKey("fenced"), fence);
  if (!lease || sabotage === "no-fence") {
    await commit(add(kv.atomic()));
    report({ type: "wrote", fence, account: "fenced", balance: fenced });
    return;
  }
  try {
    await fencedCommit(kv, lease, add);
    report({ type: "wrote", fence, account: "fenced", balance: fenced });
  } catch (error) {
    if (!(error instanceof StaleFenceError)) throw error;
    report({ type: "refused", fence });
  }
}

let current: Lease | undefined;
const lock = new Lock({
  storage: new DenoKvStorage(kv, { maxClockSkewMs: 0 }),
  name: "accounts",
  ttlMs,
  renewEveryMs: Math.round(ttlMs * RENEW_EVERY),
  label: `worker ${worker}`,
  onEvent(event) {
    if (event.type === "renewed" && current) {
      report({ type: "renewed", fence: event.fence, deadlineAt: deadlineOf(current) });
    }
    if (event.type === "lost") report({ type: "lost", fence: event.fence, reason: event.reason });
  },
});

function deadlineOf(lease: Lease): number {
  return Math.floor(Date.now() + lease.remainingMs());
}

async function withLock(): Promise<void> {
  const lease = current = await lock.acquire({ signal: stop.signal });
  const { fencingToken: fence, waitedMs } = lease;
  report({ type: "granted", fence, waitedMs, deadlineAt: deadlineOf(lease) });
  try {
    await section(lease);
  } finally {
    report({ type: "releasing", fence });
    await lease.release();
  }
}

async function withoutLock(): Promise<void> {
  report({ type: "granted", fence: 0, waitedMs: 0 });
  await section(undefined);
  report({ type: "releasing", fence: 0 });
}

report({ type: "started", pid: Deno.pid });
obey();
while (!stop.signal.aborted) {
  try {
    await (sabotage === "no-lock" ? withoutLock() : withLock());
    // Everyone who waits asks at least every 50 ms.
    await pause(20 + 60 * Math.random());
  } catch (error) {
    if (stop.signal.aborted) break;
    report({ type: "failed", message: String(error) });
    await pause(100);
  }
}
kv.close();
Deno.exit(0);
