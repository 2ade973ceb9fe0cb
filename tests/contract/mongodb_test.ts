import { withService } from "../../scripts/services.ts";
import { fenceCheck, MongoDbStorage } from "../../src/storage/mongodb.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { connect, idOf, inTransaction, newLocks } from "../support/mongodb.ts";
import { startMongoProxy } from "../support/mongo_proxy.ts";

await withService("mongo", async ({ test, service }) => {
  await testLeaseStorage({
    name: "mongodb",
    test,
    setup: async () => {
      const proxy = await startMongoProxy(service().port);
      const [one, two] = [connect(proxy), connect(proxy)];
      const locksOf = newLocks();
      const [storage, other] = [one, two].map((client) => new MongoDbStorage(locksOf(client)));
      const resources = two.db("test").collection("resources");
      return {
        clients: [storage!, other!],
        fencedWrite: (lease, resource, value) =>
          inTransaction(two, async (session) => {
            await fenceCheck(other!, lease, session);
            const filter = { _id: resource as never };
            await resources.updateOne(filter, { $set: { value } }, { upsert: true, session });
          }),
        readResource: async (resource) => {
          const found = await resources.findOne({ _id: resource as never });
          return found?.["value"] as string | undefined;
        },
        writeRaw: async (name, text) => {
          const $set = { record: text, version: crypto.randomUUID() };
          await locksOf(one).updateOne(idOf(name), { $set }, { upsert: true });
        },
        readRaw: async (name) => {
          const found = await locksOf(one).findOne(idOf(name));
          return found?.["record"] as string | undefined;
        },
        forget: async (name) => void await locksOf(one).deleteOne(idOf(name)),
        close: async () => {
          await Promise.all([one.close(), two.close()]);
          await proxy[Symbol.asyncDispose]();
        },
      };
    },
  });
});
