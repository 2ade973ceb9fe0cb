/**
 * What is tried on every product: a crowd that wants one lock, a reply that gets lost, a record that is damaged.
 *
 * @module
 */
import { assert, assertEquals, assertObjectMatch, assertRejects } from "@std/assert";
import { StorageError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import type { AcquireCommand, Command, Granted } from "../../src/core/record.ts";
import type { LeaseStorage } from "../../src/core/storage.ts";
import {
  acquire,
  adopt,
  evict,
  grant,
  inspect,
  release,
  renew,
  token,
  TTL_MS,
  uniqueName,
} from "./commands.ts";

/**
 * Lets 20 clients acquire one lock at once, and fails unless one is granted and 19 are told that it is held.
 *
 * @param name the lock
 * @param storageOf the storage of each client
 * @param more what each asks for
 * @returns the grant
 */
export async function contend(
  name: string,
  storageOf: (client: number) => LeaseStorage,
  more: Partial<AcquireCommand> = {},
): Promise<Granted> {
  const outcomes = await Promise.all(
    Array.from({ length: 20 }, (_, i) => storageOf(i).execute(name, acquire(token(), more))),
  );
  assertEquals(outcomes.map(({ type }) => type).sort(), ["granted", ...Array(19).fill("held")]);
  return outcomes.find((outcome): outcome is Granted => outcome.type === "granted")!;
}

/** A command whose reply gets lost, and the answer that it must have all the same. */
interface Loss {
  readonly command: (held: Fenced) => Command;
  readonly outcome: Record<PropertyKey, unknown>;
  /** How many hold after it. */
  readonly holders: 0 | 1;
}

/** Commands whose reply gets lost. */
export const losses: Readonly<Record<string, Loss>> = {
  "a first acquire": {
    command: () => acquire(token()),
    outcome: { type: "granted" },
    holders: 1,
  },
  "a repeated acquire": {
    command: (held) => acquire(held.token),
    outcome: { type: "granted" },
    holders: 1,
  },
  "a renewal": {
    command: (held) => renew(held.token, held.fencingToken, 2 * TTL_MS),
    outcome: { type: "renewed" },
    holders: 1,
  },
  "a hand-over": {
    command: (held) => adopt(held.token, held.fencingToken, token()),
    outcome: { type: "granted" },
    holders: 1,
  },
  "a release": {
    command: (held) => release(held.token),
    outcome: { type: "released", freed: true },
    holders: 0,
  },
  "an eviction": {
    command: () => evict(),
    outcome: { type: "evicted", count: 1 },
    holders: 0,
  },
};

/**
 * Runs a command whose reply gets lost, and fails unless it is answered right.
 *
 * @param storage a storage
 * @param what one of {@linkcode losses}
 * @param between `lose`: called with the lease before the command; `heal`: called after its answer
 * @returns the name of the lock
 */
export async function checkLoss(
  storage: LeaseStorage,
  what: string,
  { lose, heal }: { lose: (lease: Fenced) => unknown; heal: () => unknown },
): Promise<string> {
  const { command, outcome, holders: expected } = losses[what]!;
  const name = uniqueName("lost");
  const lease = what === "a first acquire"
    ? { name, token: "", fencingToken: 0 }
    : await grant(storage, name);
  await lose(lease);
  assertObjectMatch(await storage.execute<Command>(name, command(lease)), outcome);
  await heal();
  const { holders } = await storage.execute(name, inspect);
  assertEquals(holders.length, expected);
  if (what === "a renewal") assert(holders[0]!.remainingMs > TTL_MS * 1.5);
  return name;
}

/** Texts that are no record, by what has become of one. */
export const damagedTexts: Readonly<Record<string, string>> = {
  "truncated": "holdfast 1 17950000000",
  "cut in the middle of a line": "holdfast 1 5\nh token 5 1\n.\n",
  "of another major version": "holdfast 2 5\n",
  "empty": "",
};

/**
 * Fails unless every command on a damaged record is an error that says so.
 *
 * @param holder the storage of the holder, which may remember the record
 * @param stranger another storage, or the same
 * @param lease what the holder holds
 * @param key the key of the record
 */
export async function checkDamaged(
  holder: LeaseStorage,
  stranger: LeaseStorage,
  lease: Fenced,
  key: string,
): Promise<void> {
  const { name } = lease;
  const works: readonly (() => Promise<unknown>)[] = [
    () => holder.execute(name, renew(lease.token, lease.fencingToken)),
    () => holder.execute(name, release(lease.token)),
    () => stranger.execute(name, acquire(token())),
    () => stranger.execute(name, inspect),
    () => stranger.execute(name, evict()),
  ];
  for (const work of works) {
    const error = await assertRejects(work, StorageError);
    assertEquals(error.message, `Cannot use key "${key}" as its value is not a Holdfast record`);
    assertEquals(error.transient, false);
  }
}

/**
 * Loses the requests of a renewal, and fails if it is confirmed without having been applied.
 *
 * @param storage a storage
 * @param lose loses what the next write sends
 */
export async function checkLostRequest(storage: LeaseStorage, lose: () => void): Promise<void> {
  const lease = await grant(storage, uniqueName("request"));
  lose();
  const command = renew(lease.token, lease.fencingToken, 3 * TTL_MS);
  assertEquals(await storage.execute(lease.name, command), { type: "renewed" });
  const { holders } = await storage.execute(lease.name, inspect);
  assert(holders[0]!.remainingMs > TTL_MS * 2.5, `${holders[0]!.remainingMs} ms remain`);
}

/** A server that can be killed. */
interface Mortal {
  kill(): unknown;
  restart(): Promise<unknown>;
}

/**
 * Kills the server under a lease, and fails unless that is an error that may pass, after which nothing is lost.
 *
 * @param server the server
 * @param holder the storage of the holder
 * @param other the storage of another
 */
export async function checkRestart(
  server: Mortal,
  holder: LeaseStorage,
  other: LeaseStorage,
): Promise<void> {
  const lease = await grant(holder, "job");
  const renewal = renew(lease.token, lease.fencingToken);
  server.kill();
  const error = await assertRejects(() => holder.execute("job", renewal), StorageError);
  assertEquals(error.transient, true);
  await server.restart();
  assertEquals((await other.execute("job", acquire(token()))).type, "held");
  assertEquals(await holder.execute("job", renewal), { type: "renewed" });
  const released = await holder.execute("job", release(lease.token));
  assertEquals(released, { type: "released", freed: true });
  assert((await grant(other, "job")).fencingToken > lease.fencingToken, "fences rise");
}
