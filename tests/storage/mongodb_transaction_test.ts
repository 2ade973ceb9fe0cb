/**
 * Fenced transactions against whoever ends their holding. FerretDB has no transactions and a `mongod` is
 * not to be had everywhere, so these run on a model of MongoDB's rules.
 */
import { assert, assertEquals, assertRejects } from "@std/assert";
import { StaleFenceError, StorageError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import type { Command, Granted } from "../../src/core/record.ts";
import { fenceCheck, MongoDbStorage } from "../../src/storage/mongodb.ts";
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
} from "../support/commands.ts";
import { ModelCollection, ModelError, ModelSession, turn } from "../support/mongo_model.ts";
import { ShiftedClock } from "../support/shifted_clock.ts";

const NAME = "job";
const RESOURCE = "resource";

function setUp() {
  const clock = new ShiftedClock();
  const collection = new ModelCollection(clock);
  const [mine, theirs] = [new MongoDbStorage(collection), new MongoDbStorage(collection)];
  const write = (lease: Fenced, value: string, before?: Promise<unknown>) =>
    collection.withTransaction(async (session) => {
      await fenceCheck(mine, lease, session);
      await before;
      await collection.updateOne({ _id: RESOURCE }, { $set: { value } }, { upsert: true, session });
    });
  const resource = () => collection.documents.get(RESOURCE)?.document["value"];
  return { clock, collection, mine, theirs, write, resource };
}

/** A promise, and what settles it. */
function gate(): { passed: Promise<void>; open: () => void } {
  let open!: () => void;
  return { passed: new Promise((resolve) => open = resolve), open };
}

async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await turn();
}

const ends: Record<string, { command: (lease: Fenced) => Command; expired?: true }> = {
  "a release": { command: (l) => release(l.token) },
  "an eviction": { command: () => evict() },
  "a hand-over": { command: (l) => adopt(l.token, l.fencingToken, token()) },
  "a takeover": { command: () => acquire(token()), expired: true },
};
for (const [what, { command, expired }] of Object.entries(ends)) {
  // covers: G3
  Deno.test(`${what} is not answered before the fenced transaction that is open has ended`, async () => {
    const { clock, mine, theirs, write, resource } = setUp();
    const lease = await grant(mine, NAME);
    const { passed, open } = gate();
    const order: string[] = [];
    const writing = write(lease, "written", passed).then(() => order.push("transaction"));
    await turns(20);
    if (expired) clock.pass(TTL_MS);
    const ending = theirs.execute(NAME, command(lease)).then(() => order.push(what));
    await turns(50);
    assertEquals(order, []);
    open();
    await Promise.all([writing, ending]);
    assertEquals(order, ["transaction", what]);
    assertEquals(resource(), "written");
  });

  // covers: G3
  Deno.test(`a transaction that began before ${what} and is fenced after it changes nothing`, async () => {
    const { clock, collection, mine, theirs, write, resource } = setUp();
    const lease = await grant(mine, NAME);
    await write(lease, "before");
    let tries = 0;
    await assertRejects(
      () =>
        collection.withTransaction(async (session) => {
          tries++;
          await collection.updateOne({ _id: "other" }, { $set: {} }, { upsert: true, session });
          if (tries === 1) {
            if (expired) clock.pass(TTL_MS);
            await theirs.execute(NAME, command(lease));
          }
          await fenceCheck(mine, lease, session);
          await collection.updateOne({ _id: RESOURCE }, { $set: {} }, { upsert: true, session });
        }),
      StaleFenceError,
      `Cannot write under lock "job" as fence ${lease.fencingToken} is not held`,
    );
    assertEquals(tries, 2, "the first try has a write conflict");
    assertEquals(resource(), "before");
  });
}

// covers: G3
Deno.test("renewals go on while a fenced transaction is open, and contenders are refused", async () => {
  const { mine, theirs, write } = setUp();
  const lease = await grant(mine, NAME);
  const { passed, open } = gate();
  const writing = write(lease, "written", passed);
  await turns(20);
  const renewal = renew(lease.token, lease.fencingToken);
  assertEquals(await mine.execute(NAME, renewal), { type: "renewed" });
  assertEquals((await theirs.execute(NAME, acquire(token()))).type, "held");
  open();
  await writing;
});

// covers: G3
Deno.test("the holders of a semaphore do not wait for each other's transactions", async () => {
  const { mine, theirs, write } = setUp();
  const [first, second] = [token(), token()];
  const { fence } = await mine.execute(NAME, acquire(first, { capacity: 2 })) as Granted;
  await theirs.execute(NAME, acquire(second, { capacity: 2 }));
  const { passed, open } = gate();
  const writing = write({ name: NAME, token: first, fencingToken: fence }, "first", passed);
  await turns(20);
  assertEquals((await theirs.execute(NAME, release(second))).freed, true);
  open();
  await writing;
});

// covers: G3
Deno.test("a contender behind a takeover that waits is refused, and does not wait", async () => {
  const { clock, collection, mine, theirs, write } = setUp();
  const lease = await grant(mine, NAME);
  const { passed, open } = gate();
  const writing = write(lease, "written", passed);
  await turns(20);
  clock.pass(TTL_MS);
  const taking = theirs.execute(NAME, acquire(token()));
  await turns(50);
  const third = new MongoDbStorage(collection);
  assertEquals((await third.execute(NAME, acquire(token()))).type, "held");
  open();
  await writing;
  assertEquals((await taking).type, "granted");
});

for (const cutAt of [1, 2]) {
  // covers: G3 G11
  Deno.test(`a takeover that was cut short before its statement ${cutAt} grants nothing before it is whole`, async () => {
    const { clock, collection, mine, theirs, write, resource } = setUp();
    const lease = await grant(mine, NAME);
    const { passed, open } = gate();
    const order: string[] = [];
    const writing = write(lease, "written", passed).then(() => order.push("transaction"));
    await turns(20);
    clock.pass(TTL_MS);
    let cuts = 1;
    collection.beforeStatement = (index) => {
      if (index === cutAt && cuts-- > 0) throw new ModelError(0, "HostUnreachable");
    };
    const taking = theirs.execute(NAME, acquire(token())).then(({ type }) => order.push(type));
    await turns(50);
    assertEquals(order, []);
    open();
    await Promise.all([writing, taking]);
    assertEquals(order, ["transaction", "granted"]);
    assertEquals(resource(), "written");
  });
}

// covers: G3
Deno.test("whoever comes after a takeover that nobody finished finishes it", async () => {
  const { clock, collection, mine, write } = setUp();
  const lease = await grant(mine, NAME);
  const { passed, open } = gate();
  const order: string[] = [];
  const writing = write(lease, "written", passed).then(() => order.push("transaction"));
  await turns(20);
  clock.pass(TTL_MS);
  // A process that takes over, and dies when the record is written and the guard is not.
  const doomed = new MongoDbStorage({
    namespace: collection.namespace,
    findOne: (filter) => collection.findOne(filter),
    findOneAndUpdate: (filter, update) =>
      collection.documents.get(filter["_id"])?.document["pending"]
        ? Promise.reject(new ModelError(0, "HostUnreachable"))
        : collection.findOneAndUpdate(filter, update),
    updateOne: () => Promise.reject(new ModelError(0, "HostUnreachable")),
    bulkWrite: async ([first]) => {
      await collection.bulkWrite([first!]);
      throw new ModelError(0, "HostUnreachable");
    },
    createIndex: () => Promise.resolve(),
  });
  await assertRejects(() => doomed.execute(NAME, acquire(token())), StorageError);
  clock.pass(TTL_MS);
  const third = new MongoDbStorage(collection);
  const taking = third.execute(NAME, acquire(token())).then(({ type }) => order.push(type));
  await turns(50);
  assertEquals(order, []);
  open();
  await Promise.all([writing, taking]);
  assertEquals(order, ["transaction", "granted"]);
  assertEquals(collection.documents.has(`holdfast:job#${lease.fencingToken}`), true);
});

// covers: G3
Deno.test("in random schedules with cut requests no transaction commits after another holder was told", async () => {
  let [commits, stale, grants, cuts] = [0, 0, 0, 0];
  for (let seed = 1; seed <= 400; seed++) {
    const random = randomOf(seed);
    const { clock, collection, mine, theirs } = setUp();
    const third = new MongoDbStorage(collection);
    /** The largest fence that anyone was told to hold. */
    let told = 0;
    collection.delay = () => turns(1 + Math.floor(random() ** 3 * 12));
    collection.beforeStatement = () => {
      if (random() < 0.08) {
        cuts++;
        throw new ModelError(0, "HostUnreachable");
      }
    };
    collection.afterRequest = () => {
      if (random() < 0.05) {
        cuts++;
        throw new ModelError(0, "HostUnreachable");
      }
    };
    const actor = async (storage: MongoDbStorage): Promise<void> => {
      for (let i = 0; i < 4; i++) {
        const mine = token();
        const outcome = await storage.execute(NAME, acquire(mine, { ttlMs: 10 })).catch(() => {});
        if (outcome?.type !== "granted") {
          await turns(5);
          continue;
        }
        const lease = { name: NAME, token: mine, fencingToken: outcome.fence };
        grants++;
        const { record } = collection.documents.get("holdfast:job")!.document;
        const [, fence] = String(record).split(/[ \n]/).slice(1);
        assert(
          String(record).includes(`h ${mine} ${outcome.fence} `) || Number(fence) > outcome.fence,
          `seed ${seed}: a grant that is not in the record`,
        );
        told = Math.max(told, lease.fencingToken);
        const working = collection.withTransaction(async (session) => {
          await fenceCheck(storage, lease, session);
          await turns(Math.floor(random() * 12));
          // The last moment before the commit, which follows at once.
          assert(told <= lease.fencingToken, `seed ${seed}: a commit under an old fence`);
        }).then(() => commits++, (error) => {
          if (!(error instanceof Error) || error.message.startsWith("seed")) throw error;
          stale++;
        });
        if (random() < 0.3) await storage.execute(NAME, release(mine)).catch(() => {});
        await working;
      }
    };
    const passing = setInterval(() => clock.pass(Math.floor(random() * 8)), 0);
    try {
      await Promise.all([actor(mine), actor(theirs), actor(third)]);
    } finally {
      clearInterval(passing);
    }
  }
  const counts = JSON.stringify({ commits, stale, grants, cuts });
  assert(commits > 200 && stale > 40 && grants > 400 && cuts > 400, counts);
});

// covers: G3
Deno.test("the right token with another fence is refused", async () => {
  const { mine, write, resource } = setUp();
  const lease = await grant(mine, NAME);
  const other = { ...lease, fencingToken: lease.fencingToken - 1 };
  await assertRejects(() => write(other, "late"), StaleFenceError);
  assertEquals(resource(), undefined);
});

// covers: G3
Deno.test("an expired lease is refused although nobody took it over", async () => {
  const { clock, mine, write, resource } = setUp();
  const lease = await grant(mine, NAME);
  clock.pass(TTL_MS);
  const error = await assertRejects(() => write(lease, "late"), StaleFenceError);
  assertEquals(
    error.message,
    `Cannot write under lock "job" as fence ${lease.fencingToken} is not held any more`,
  );
  assertEquals(error.fence, lease.fencingToken);
  assertEquals(resource(), undefined);
});

Deno.test("fenceCheck() refuses a session without a transaction", async () => {
  const { mine } = setUp();
  const lease = await grant(mine, NAME);
  const session = new ModelSession();
  session.finish();
  await assertRejects(
    () => fenceCheck(mine, lease, session),
    TypeError,
    `Cannot check lock "job" as the session must be in a transaction`,
  );
});

// covers: S4.13
Deno.test("a duplicate key is contention: whoever loses many races in a row is no fault", async () => {
  const { clock, collection, mine, theirs, write } = setUp();
  await write(await grant(mine, NAME), "written");
  clock.pass(TTL_MS);
  let races = 5;
  collection.beforeStatement = (index) => {
    const { document, tick } = collection.documents.get("holdfast:job")!;
    if (index > 0 || "pending" in document || races-- <= 0) return;
    const version = token();
    collection.documents.set("holdfast:job", { document: { ...document, version }, tick });
  };
  await grant(theirs, NAME);
  assert(races < 0, `${races} races are left`);
});

// covers: G3
Deno.test("an eviction that read the record before the lock's first fenced transaction waits for it, too", async () => {
  const { collection, mine, theirs, write } = setUp();
  const lease = await grant(mine, NAME);
  const { passed, open } = gate();
  const { passed: late, open: arrive } = gate();
  const order: string[] = [];
  let writes = 0;
  collection.delay = async () => {
    await turn();
    if (++writes === 2) await late;
  };
  // Its read is the first write to the collection from now on, its own write the second.
  const evicting = theirs.execute(NAME, evict()).then(() => order.push("eviction"));
  await turns(20);
  const writing = write(lease, "written", passed).then(() => order.push("transaction"));
  await turns(20);
  arrive();
  await turns(50);
  assertEquals(order, []);
  open();
  await Promise.all([evicting, writing]);
  assertEquals(order, ["transaction", "eviction"]);
});

Deno.test("a lock that is never used for fenced transactions has one document and no guards", async () => {
  const { collection, mine } = setUp();
  for (let i = 0; i < 3; i++) {
    const lease = await grant(mine, NAME);
    await mine.execute(NAME, release(lease.token));
  }
  assertEquals([...collection.documents.keys()], ["holdfast:job"]);
});

Deno.test("a pending guard is written once, and then forgotten", async () => {
  const { collection, mine, write } = setUp();
  const lease = await grant(mine, NAME);
  await write(lease, "written");
  await mine.execute(NAME, release(lease.token));
  const record = collection.documents.get("holdfast:job")!.document;
  assertEquals("pending" in record, false);
  assert(collection.documents.has(`holdfast:job#${lease.fencingToken}`));
  assertEquals((await mine.execute(NAME, inspect)).holders, []);
});

/** A small generator of numbers that a seed repeats (mulberry32). */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
