import { assert, assertEquals, assertRejects } from "@std/assert";
import { startMongo, withService } from "../../scripts/services.ts";
import { StorageError } from "../../src/core/errors.ts";
import type { Fenced } from "../../src/core/lease.ts";
import type { Command } from "../../src/core/record.ts";
import { type MongoCollection, MongoDbStorage } from "../../src/storage/mongodb.ts";
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
} from "../support/commands.ts";
import { nameOf, startMongoProxy } from "../support/mongo_proxy.ts";
import { connect, idOf, newLocks, useFenced, withMongo } from "../support/mongodb.ts";

await withService("mongo", ({ test, service }) => {
  const commands: Record<string, { command: (lease: Fenced) => Command; outcome: object }> = {
    "a first acquire": { command: () => acquire(token()), outcome: { type: "granted" } },
    "a repeated acquire": { command: (l) => acquire(l.token), outcome: { type: "granted" } },
    "a renewal": {
      command: (l) => renew(l.token, l.fencingToken, 2 * TTL_MS),
      outcome: { type: "renewed" },
    },
    "a hand-over": {
      command: (l) => adopt(l.token, l.fencingToken, token()),
      outcome: { type: "granted" },
    },
    "a release": { command: (l) => release(l.token), outcome: { type: "released", freed: true } },
    "an eviction": { command: () => evict(), outcome: { type: "evicted", count: 1 } },
  };
  for (const what of ["a hand-over", "a release", "an eviction"]) {
    commands[`${what} of a lease with fenced transactions`] = commands[what]!;
  }
  for (const [what, { command, outcome }] of Object.entries(commands)) {
    // Once: the driver's own resend (retryable writes). Twice: it gives up, and the record is read back.
    for (const times of [1, 2]) {
      // covers: G4 G11
      test(`${what} is answered right when its reply is lost ${times === 1 ? "once" : "twice"}`, async () => {
        await withMongo(service(), async ([client], locksOf, proxy) => {
          const storage = new MongoDbStorage(locksOf(client));
          const name = uniqueName("lost");
          const lease = what === "a first acquire"
            ? { name, token: "", fencingToken: 0 }
            : await grant(storage, name);
          if (what.endsWith("fenced transactions")) await useFenced(client, storage, lease);
          proxy.sent.splice(0);
          proxy.dropReplyIf((c) => nameOf(c) === "update", times);
          const answer = await storage.execute(name, command(lease));
          const { type, freed, count } = answer as {
            type: string;
            freed?: boolean;
            count?: number;
          };
          const seen = { type, ...(freed !== undefined && { freed }), ...(count && { count }) };
          assertEquals(seen, outcome as typeof seen);
          const updates = proxy.sent.filter((c) => nameOf(c) === "update").length;
          assertEquals(updates, 2, `sent: ${proxy.sent.map(nameOf)}`);
          const { holders } = await storage.execute(name, inspect);
          const isOver = what.startsWith("a release") || what.startsWith("an eviction");
          assertEquals(holders.length, isOver ? 0 : 1);
          if (what === "a renewal") assert(holders[0]!.remainingMs > TTL_MS * 1.5);
          assertEquals("pending" in (await locksOf(client).findOne(idOf(name)))!, false);
        });
      });
    }
  }

  // covers: G4 G11
  test("a renewal that never arrived is not confirmed, and is sent again", async () => {
    await withMongo(service(), async ([client], locksOf, proxy) => {
      const storage = new MongoDbStorage(locksOf(client));
      const lease = await grant(storage, uniqueName("request"));
      proxy.dropRequestIf((c) => nameOf(c) === "update", 2);
      const command = renew(lease.token, lease.fencingToken, 3 * TTL_MS);
      assertEquals(await storage.execute(lease.name, command), { type: "renewed" });
      const { holders } = await storage.execute(lease.name, inspect);
      assert(holders[0]!.remainingMs > TTL_MS * 2.5, `${holders[0]!.remainingMs} ms remain`);
    });
  });

  test("a server that was killed is an error while it is down, and nothing is lost after it", async () => {
    await using server = await startMongo({ persist: true });
    await using proxy = await startMongoProxy(server.port);
    const client = connect(proxy);
    try {
      const storage = new MongoDbStorage(newLocks()(client));
      const lease = await grant(storage, "job");
      server.kill();
      const error = await assertRejects(
        () => storage.execute("job", renew(lease.token, lease.fencingToken)),
        StorageError,
      );
      assertEquals(error.transient, true);
      await server.restart();
      assertEquals((await storage.execute("job", acquire(token()))).type, "held");
      const renewed = await storage.execute("job", renew(lease.token, lease.fencingToken));
      assertEquals(renewed, { type: "renewed" });
      await storage.execute("job", release(lease.token));
      assert((await grant(storage, "job")).fencingToken > lease.fencingToken);
    } finally {
      await client.close();
    }
  });

  const damages: Record<string, object> = {
    "truncated": { $set: { record: "holdfast 1 17950000000" } },
    "cut in the middle of a line": { $set: { record: "holdfast 1 5\nh token 5 1\n.\n" } },
    "of another major version": { $set: { record: "holdfast 2 5\n" } },
    "empty": { $set: { record: "" } },
    "not a string": { $set: { record: 5 } },
    "gone from its document": { $unset: { record: "" } },
    "without a version": { $unset: { version: "" } },
  };
  for (const [how, damage] of Object.entries(damages)) {
    // covers: G12
    test(`a record that is ${how} is an error for everyone, and stays as it is`, async () => {
      await withMongo(service(), async ([client], locksOf) => {
        const storage = new MongoDbStorage(locksOf(client));
        const lease = await grant(storage, uniqueName("damaged"));
        await locksOf(client).updateOne(idOf(lease.name), damage);
        const { clock: _, ...before } = (await locksOf(client).findOne(idOf(lease.name)))!;
        for (
          const command of [
            renew(lease.token, lease.fencingToken),
            release(lease.token),
            acquire(token()),
            inspect,
            evict(),
          ]
        ) {
          const error = await assertRejects(
            () => storage.execute<Command>(lease.name, command),
            StorageError,
          );
          assertEquals(
            error.message,
            `Cannot use key "${idOf(lease.name)._id}" as its value is not a Holdfast record`,
          );
          assertEquals(error.transient, false);
        }
        const { clock: __, ...after } = (await locksOf(client).findOne(idOf(lease.name)))!;
        assertEquals(after, before);
      });
    });
  }

  // covers: G12
  test("a document of somebody else under the key of a lock is not touched at all", async () => {
    await withMongo(service(), async ([client], locksOf) => {
      const name = uniqueName("foreign");
      const document = { ...idOf(name), title: "The Castle" };
      await locksOf(client).insertOne(document);
      const storage = new MongoDbStorage(locksOf(client));
      await assertRejects(() => storage.execute(name, acquire(token())), StorageError);
      assertEquals(await locksOf(client).findOne(idOf(name)), document);
    });
  });
});

/** What a server says (MongoDB manual, "Error codes"), and what becomes of it. */
const refusals: readonly [error: object, transient: boolean, constraint: string][] = [
  [
    { name: "MongoServerError", code: 13, codeName: "Unauthorized" },
    false,
    `the user must have the role readWrite for collection "app.locks"`,
  ],
  [
    { name: "MongoServerError", code: 18, codeName: "AuthenticationFailed" },
    false,
    "the client must have valid credentials: current value is AuthenticationFailed",
  ],
  [
    { name: "MongoServerError", code: 121, codeName: "DocumentValidationFailure" },
    false,
    `collection "app.locks" must have no validator that refuses it`,
  ],
  [
    { name: "MongoServerError", code: 59, codeName: "CommandNotFound" },
    false,
    "MongoDB or its client refuses: current value is CommandNotFound",
  ],
  [
    { name: "MongoClientClosedError" },
    false,
    "MongoDB or its client refuses: current value is MongoClientClosedError",
  ],
  [
    { name: "MongoServerError", code: 10107, codeName: "NotWritablePrimary" },
    true,
    "MongoDB must answer: current value is NotWritablePrimary",
  ],
  [
    { name: "MongoWriteConcernError", code: 64, codeName: "WriteConcernTimeout" },
    true,
    "MongoDB must answer: current value is WriteConcernTimeout",
  ],
  [
    { name: "MongoServerSelectionError" },
    true,
    "MongoDB must answer: current value is MongoServerSelectionError",
  ],
];
for (const [details, transient, constraint] of refusals) {
  const { name, codeName = name } = details as { name: string; codeName?: string };
  Deno.test(`${codeName} is ${transient ? "worth asking again" : "final"}, and says what to do`, async () => {
    const cause = Object.assign(new Error("No"), details);
    const refuse = () => Promise.reject(cause);
    const collection: MongoCollection = {
      namespace: "app.locks",
      findOneAndUpdate: refuse,
      updateOne: refuse,
      bulkWrite: refuse,
      createIndex: refuse,
    };
    const storage = new MongoDbStorage(collection);
    const error = await assertRejects(() => storage.execute("job", inspect), StorageError);
    assertEquals(error.message, `Cannot read key "holdfast:job" as ${constraint}`);
    assertEquals(error.transient, transient);
    assertEquals(error.cause, cause);
  });
}
