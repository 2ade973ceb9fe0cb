import { withService } from "../../scripts/services.ts";
import { createTable, DynamoDbStorage, fenced } from "../../src/storage/dynamodb.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { connect, TABLE } from "../support/dynamodb.ts";

await withService("dynamodb", async ({ test, service }) => {
  await testLeaseStorage({
    name: "dynamodb",
    test,
    setup: async () => {
      const [one, two] = [connect(service().url), connect(service().url)];
      await createTable(one, TABLE);
      // All clients are on this machine; there is no bill for asking often.
      const options = { table: TABLE, maxClockSkewMs: 0, pollMs: { min: 20, max: 500 } };
      const storage = new DynamoDbStorage(one, options);
      const keyOf = (name: string) => ({ key: { S: storage.key(name) } });
      const read = async (key: string, attribute: string) => {
        const { Item } = await one.getItem({ TableName: TABLE, Key: { key: { S: key } } });
        return Item?.[attribute]?.S;
      };
      return {
        clients: [storage, new DynamoDbStorage(two, options)],
        fencedWrite: (lease, resource, value) => {
          const Item = { key: { S: resource }, value: { S: value } };
          return fenced(storage, lease, async (check) => {
            const TransactItems = [check, { Put: { TableName: TABLE, Item } }];
            await two.transactWriteItems({ TransactItems });
          });
        },
        readResource: (resource) => read(resource, "value"),
        writeRaw: async (name, text) => {
          const version = { S: crypto.randomUUID() };
          const Item = { ...keyOf(name), record: { S: text }, version };
          await one.putItem({ TableName: TABLE, Item });
        },
        readRaw: (name) => read(storage.key(name), "record"),
        forget: async (name) => void await one.deleteItem({ TableName: TABLE, Key: keyOf(name) }),
        close: () => Promise.resolve([one, two].forEach((client) => client.destroy())),
      };
    },
  });
});
