import { assertEquals, assertRejects } from "@std/assert";
import { startMongo, withService } from "../../scripts/services.ts";
import { StorageError } from "../../src/core/errors.ts";
import { type MongoCollection, MongoDbStorage } from "../../src/storage/mongodb.ts";
import { acquire, grant, inspect, token, uniqueName } from "../support/commands.ts";
import { nameOf, startMongoProxy } from "../support/mongo_proxy.ts";
import { connect, idOf, newLocks, useFenced, withMongo } from "../support/mongodb.ts";
import {
  checkDamaged,
  checkLoss,
  checkLostRequest,
  checkRestart,
  damagedTexts,
  losses,
} from "../support/storage_cases.ts";

await withService("mongo", ({ test, service }) => {
  const FENCED = " of a lease with fenced transactions";
  const cases = [
    ...Object.keys(losses),
    ...["a hand-over", "a release", "an eviction"].map((what) => what + FENCED),
  ];
  for (const what of cases) {
    // Once: the driver's own resend (retryable writes). Twice: it gives up, and the record is read back.
    for (const times of [1, 2]) {
      // covers: G4 G11
      test(`${what} is answered right when its reply is lost ${times === 1 ? "once" : "twice"}`, async () => {
        await withMongo(service(), async ([client], locksOf, proxy) => {
          const storage = new MongoDbStorage(locksOf(client));
          const isFenced = what.endsWith(FENCED);
          const name = await checkLoss(storage, what.replace(FENCED, ""), {
            async lose(lease) {
              if (isFenced) await useFenced(client, storage, lease);
              proxy.sent.splice(0);
              proxy.dropReplyIf((c) => nameOf(c) === "update", times);
            },
            heal() {
              const updates = proxy.sent.filter((c) => nameOf(c) === "update").length;
              // The holder does not know yet that its lock is used for fenced transactions.
              const expected = what === "a release" + FENCED ? 3 : 2;
              assertEquals(updates, expected, `sent: ${proxy.sent.map(nameOf)}`);
            },
          });
          assertEquals("pending" in (await locksOf(client).findOne(idOf(name)))!, false);
        });
      });
    }
  }

  // covers: G4 G11
  test("a renewal that never arrived is not confirmed, and is sent again", async () => {
    await withMongo(service(), async ([client], locksOf, proxy) => {
      const storage = new MongoDbStorage(locksOf(client));
      const lose = () => proxy.dropRequestIf((c) => nameOf(c) === "update", 2);
      await checkLostRequest(storage, lose);
    });
  });

  test("a server that was killed is an error while it is down, and nothing is lost after it", async () => {
    await using server = await startMongo({ persist: true });
    await using proxy = await startMongoProxy(server.port);
    const client = connect(proxy);
    try {
      const storage = new MongoDbStorage(newLocks()(client));
      await checkRestart(server, storage, storage);
    } finally {
      await client.close();
    }
  });

  const damages: Record<string, object> = {
    ...Object.fromEntries(
      Object.entries(damagedTexts).map(([how, record]) => [how, { $set: { record } }]),
    ),
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
        await checkDamaged(storage, storage, lease, idOf(lease.name)._id);
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
      findOne: refuse,
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
