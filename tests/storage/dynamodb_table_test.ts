import type { AttributeDefinition, KeySchemaElement } from "@aws-sdk/client-dynamodb";
import { assert, assertEquals, assertRejects } from "@std/assert";
import { withService } from "../../scripts/services.ts";
import { StorageError } from "../../src/core/errors.ts";
import { systemClock } from "../../src/core/clock.ts";
import {
  checkTable,
  createTable,
  type DynamoDbClient,
  DynamoDbStorage,
  type DynamoDbTableClient,
} from "../../src/storage/dynamodb.ts";
import { acquire, inspect, token } from "../support/commands.ts";
import { connect } from "../support/dynamodb.ts";

await withService("dynamodb", ({ test, service }) => {
  // covers: S1.22
  test("createTable() makes a table that checkTable() accepts, and may run again", async () => {
    using client = connect(service().url);
    await createTable(client, "made");
    await createTable(client, "made");
    await checkTable(client, "made");
    const { Table } = await client.describeTable({ TableName: "made" });
    assertEquals(Table?.BillingModeSummary?.BillingMode, "PAY_PER_REQUEST");
  });

  const wrong: Record<
    string,
    { keys?: KeySchemaElement[]; types?: AttributeDefinition[]; ttl?: string; message: string }
  > = {
    "whose key has another name": {
      keys: [{ AttributeName: "id", KeyType: "HASH" }],
      types: [{ AttributeName: "id", AttributeType: "S" }],
      message: `as its only key must be the hash key "key": current value is id`,
    },
    "that has a range key, too": {
      keys: [{ AttributeName: "key", KeyType: "HASH" }, { AttributeName: "at", KeyType: "RANGE" }],
      types: [
        { AttributeName: "key", AttributeType: "S" },
        { AttributeName: "at", AttributeType: "N" },
      ],
      message: `as its only key must be the hash key "key": current value is key, at`,
    },
    "whose key is a number": {
      types: [{ AttributeName: "key", AttributeType: "N" }],
      message: `as its key "key" must be of type S: current value is N`,
    },
    "without time to live": {
      message: `as time to live must be on for attribute "ttl": current value is DISABLED`,
    },
    "with time to live on another attribute": {
      ttl: "lease_expiry",
      message: `as time to live must be on for attribute "ttl": current value is "lease_expiry"`,
    },
  };
  for (const [how, { keys, types, ttl, message }] of Object.entries(wrong)) {
    // covers: S1.22
    test(`checkTable() says what is wrong with a table ${how}`, async () => {
      using client = connect(service().url);
      const TableName = `wrong-${crypto.randomUUID().slice(0, 8)}`;
      await client.createTable({
        TableName,
        BillingMode: "PAY_PER_REQUEST",
        KeySchema: keys ?? [{ AttributeName: "key", KeyType: "HASH" }],
        AttributeDefinitions: types ?? [{ AttributeName: "key", AttributeType: "S" }],
      });
      if (ttl) {
        const TimeToLiveSpecification = { AttributeName: ttl, Enabled: true };
        await client.updateTimeToLive({ TableName, TimeToLiveSpecification });
      }
      const error = await assertRejects(() => checkTable(client, TableName), StorageError);
      assertEquals(error.message, `Cannot use table "${TableName}" ${message}`);
      assertEquals(error.transient, false);
    });
  }

  // covers: S1.22
  test("checkTable() says that a table is missing", async () => {
    using client = connect(service().url);
    const error = await assertRejects(() => checkTable(client, "nowhere"), StorageError);
    assertEquals(
      error.message,
      `Cannot use table "nowhere" as it is missing: create it with createTable()`,
    );
    assertEquals((error.cause as Error).name, "ResourceNotFoundException");
  });

  // covers: S1.22
  test("createTable() refuses a table of that name with another shape", async () => {
    using client = connect(service().url);
    await client.createTable({
      TableName: "taken",
      BillingMode: "PAY_PER_REQUEST",
      KeySchema: [{ AttributeName: "id", KeyType: "HASH" }],
      AttributeDefinitions: [{ AttributeName: "id", AttributeType: "S" }],
    });
    const error = await assertRejects(() => createTable(client, "taken"), StorageError);
    assertEquals(
      error.message,
      `Cannot use table "taken" as its only key must be the hash key "key": current value is id`,
    );
  });

  test("createTable() says that a name does not do", async () => {
    using client = connect(service().url);
    const error = await assertRejects(() => createTable(client, "a b"), StorageError);
    assertEquals(
      error.message,
      `Cannot create table "a b" as its name must be one that DynamoDB takes`,
    );
  });

  // covers: S1.22 S1.23
  test("a lock on a missing table is an error that says what to do", async () => {
    using client = connect(service().url);
    const storage = new DynamoDbStorage(client, { table: "nowhere" });
    const constraint = `table "nowhere" is missing: create it with createTable()`;
    const write = await assertRejects(() => storage.execute("job", acquire(token())), StorageError);
    assertEquals(write.message, `Cannot write key "holdfast:job" as ${constraint}`);
    assertEquals(write.transient, false);
    const read = await assertRejects(() => storage.execute("job", inspect), StorageError);
    assertEquals(read.message, `Cannot read key "holdfast:job" as ${constraint}`);
  });

  // covers: S1.22
  test("a lock on a table with another key type is an error that says what to do", async () => {
    using client = connect(service().url);
    await client.createTable({
      TableName: "numbers",
      BillingMode: "PAY_PER_REQUEST",
      KeySchema: [{ AttributeName: "key", KeyType: "HASH" }],
      AttributeDefinitions: [{ AttributeName: "key", AttributeType: "N" }],
    });
    const storage = new DynamoDbStorage(client, { table: "numbers" });
    const error = await assertRejects(() => storage.execute("job", acquire(token())), StorageError);
    assertEquals(
      error.message,
      `Cannot write key "holdfast:job" as table "numbers" does not fit: call checkTable() to see why`,
    );
    assertEquals(error.transient, false);
  });
});

/** A table that takes its time. */
function slowTable(statuses: (string | undefined)[]): DynamoDbTableClient & { asked: number } {
  return {
    asked: 0,
    createTable: () => Promise.resolve({}),
    describeTable() {
      const TableStatus = statuses[Math.min(this.asked++, statuses.length - 1)];
      return Promise.resolve({
        Table: {
          TableStatus,
          KeySchema: [{ AttributeName: "key", KeyType: "HASH" }],
          AttributeDefinitions: [{ AttributeName: "key", AttributeType: "S" }],
        },
      });
    },
    describeTimeToLive: () =>
      Promise.resolve({
        TimeToLiveDescription: { TimeToLiveStatus: "ENABLING", AttributeName: "ttl" },
      }),
    updateTimeToLive: () => Promise.reject(new Error("It is on already")),
  };
}

/** Timers that are over at once. */
const hasty = {
  read: systemClock.read,
  setTimer: (_ms: number, callback: () => void) =>
    systemClock.setTimer(0, callback, { keepAlive: true }),
};

Deno.test("createTable() waits until the table is active", async () => {
  const client = slowTable(["CREATING", "CREATING", "ACTIVE"]);
  await createTable(client, "slow", { clock: hasty });
  assertEquals(client.asked, 4);
});

Deno.test("createTable() does not wait for ever", async () => {
  const client = slowTable(["CREATING"]);
  const error = await assertRejects(
    () => createTable(client, "slow", { clock: hasty }),
    StorageError,
  );
  assertEquals(
    error.message,
    `Cannot create table "slow" as it must be active within 300000 ms: current value is CREATING`,
  );
});

Deno.test("createTable() ends its wait with the signal", async () => {
  const stop = new AbortController();
  const work = createTable(slowTable(["CREATING"]), "slow", { signal: stop.signal });
  stop.abort(new Error("enough"));
  assertEquals((await assertRejects(() => work) as Error).message, "enough");
});

Deno.test("checkTable() says that a table is not active", async () => {
  const error = await assertRejects(() => checkTable(slowTable(["DELETING"]), "t"), StorageError);
  assertEquals(
    error.message,
    `Cannot use table "t" as it must be active: current value is DELETING`,
  );
});

/** What the service says (developer guide, "Error handling with DynamoDB"), and what becomes of it. */
const refusals: readonly [status: number, name: string, transient: boolean, constraint: string][] =
  [
    [
      400,
      "AccessDeniedException",
      false,
      "the credentials must have the rights dynamodb:GetItem, PutItem",
    ],
    [
      400,
      "UnrecognizedClientException",
      false,
      "the client must have valid credentials: current value is UnrecognizedClientException",
    ],
    [
      400,
      "ExpiredTokenException",
      false,
      "the client must have valid credentials: current value is ExpiredTokenException",
    ],
    [
      400,
      "SomethingNewException",
      false,
      "DynamoDB or its client refuses: current value is SomethingNewException",
    ],
    [
      400,
      "ThrottlingException",
      true,
      "DynamoDB must answer: current value is ThrottlingException",
    ],
    [
      400,
      "ProvisionedThroughputExceededException",
      true,
      "DynamoDB must answer: current value is ProvisionedThroughputExceededException",
    ],
    [
      400,
      "TransactionConflictException",
      true,
      "DynamoDB must answer: current value is TransactionConflictException",
    ],
    [
      500,
      "InternalServerError",
      true,
      "DynamoDB must answer: current value is InternalServerError",
    ],
  ];
for (const [status, name, transient, constraint] of refusals) {
  Deno.test(`${name} is ${transient ? "worth asking again" : "final"}, and says what to do`, async () => {
    const body = { __type: `com.amazonaws.dynamodb.v20120810#${name}`, message: "No" };
    const headers = { "content-type": "application/x-amz-json-1.0" };
    const server = Deno.serve(
      { port: 0, hostname: "127.0.0.1", onListen: () => {} },
      () => Response.json(body, { status, headers }),
    );
    try {
      using client = connect(`http://127.0.0.1:${server.addr.port}`, { maxAttempts: 1 });
      const storage = new DynamoDbStorage(client, { table: "leases" });
      const error = await assertRejects(() => storage.execute("job", inspect), StorageError);
      assertEquals(error.message, `Cannot read key "holdfast:job" as ${constraint}`);
      assertEquals(error.transient, transient);
      assertEquals((error.cause as Error).name, name);
    } finally {
      await server.shutdown();
    }
  });
}

Deno.test("a client without credentials, or that cannot connect, says so", async () => {
  using lost = connect("http://127.0.0.1:1", { maxAttempts: 1 });
  const down = await assertRejects(
    () => new DynamoDbStorage(lost, { table: "leases" }).execute("job", inspect),
    StorageError,
  );
  assertEquals(
    down.message,
    `Cannot read key "holdfast:job" as DynamoDB must answer: ` +
      `current value is connect ECONNREFUSED 127.0.0.1:1`,
  );
  assertEquals(down.transient, true);
  using nowhere = connect("http://127.0.0.1:1", {
    credentials: () => Promise.reject(new Error("No profile found")),
  });
  const error = await assertRejects(
    () => new DynamoDbStorage(nowhere, { table: "leases" }).execute("job", inspect),
    StorageError,
  );
  assertEquals(
    error.message,
    `Cannot read key "holdfast:job" as DynamoDB or its client refuses: current value is No profile found`,
  );
  assertEquals(error.transient, false);
});

Deno.test("options are checked when the storage is made", () => {
  const client = {} as DynamoDbClient;
  for (
    const options of [{ table: "" }, { table: "t", prefix: "" }, { table: "t", maxClockSkewMs: -1 }]
  ) {
    let error: unknown;
    try {
      new DynamoDbStorage(client, options);
    } catch (thrown) {
      error = thrown;
    }
    assert(error instanceof RangeError, JSON.stringify(options));
  }
});
