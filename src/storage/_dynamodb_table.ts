/**
 * The table: making it, and saying what is wrong with it.
 *
 * @module
 */
import { type Clock, sleep, systemClock } from "../core/clock.ts";
import { StorageError } from "../core/errors.ts";
import {
  type DynamoDbTableClient,
  isNamed,
  requestOptions,
  type TableDescription,
  toStorageError,
} from "./_dynamodb_client.ts";

/** The attributes of an item. */
export const ATTRIBUTES = {
  /** String; the hash key: prefix and name of the lock. */
  key: "key",
  /** String; the record, as one text. */
  record: "record",
  /** String; never the same twice. */
  version: "version",
  /** Number; the last fencing token granted. */
  fence: "fence",
  /** Map; each holding's token under its fence, for `fenceCheck`. */
  holdings: "holdings",
  /** Number; from when on DynamoDB may delete the item, in seconds since the epoch. */
  ttl: "ttl",
} as const;

const CHECK_RIGHTS = "dynamodb:DescribeTable, DescribeTimeToLive";

const POLL_MS = 500;

/** A table is there within half a minute; this is to end a wait for one that never comes. */
const ACTIVE_WITHIN_MS = 300_000;

/** Options of {@linkcode createTable}. */
export interface CreateTableOptions {
  /** Ends the wait; the table may be created all the same. */
  readonly signal?: AbortSignal | undefined;
  /** Whose timers. */
  readonly clock?: Clock | undefined;
}

/** Options of {@linkcode checkTable}. */
export interface CheckTableOptions {
  /** Ends the requests. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Creates the table for locks, billed per request and with time to live, and waits, at most 5 minutes,
 * until it is active. A table that is there already is completed and checked, so this may run at every
 * deployment. It needs the rights `dynamodb:CreateTable`, `DescribeTable`, `DescribeTimeToLive` and
 * `UpdateTimeToLive`.
 *
 * @example
 * ```ts ignore
 * import { DynamoDB } from "@aws-sdk/client-dynamodb";
 * import { createTable } from "@holdfast/lock/dynamodb";
 *
 * await createTable(new DynamoDB({ region: "eu-central-1" }), "leases");
 * ```
 *
 * @param client the SDK's `DynamoDB`
 * @param table the table's name
 * @param options `signal`: ends the wait
 * @throws {StorageError} if DynamoDB refuses or fails, or a table of that name has another shape
 */
export async function createTable(
  client: DynamoDbTableClient,
  table: string,
  options: CreateTableOptions = {},
): Promise<void> {
  const { signal, clock = systemClock } = options;
  const request = requestOptions(signal);
  const named = { TableName: table };
  try {
    await client.createTable({
      ...named,
      BillingMode: "PAY_PER_REQUEST",
      AttributeDefinitions: [{ AttributeName: ATTRIBUTES.key, AttributeType: "S" }],
      KeySchema: [{ AttributeName: ATTRIBUTES.key, KeyType: "HASH" }],
    }, request);
  } catch (error) {
    if (!isNamed(error, "ResourceInUseException")) throw fault(error, "create", table, signal);
  }
  for (let waitedMs = 0;; waitedMs += POLL_MS) {
    const { TableStatus } = await describe(client, table, "create", signal);
    if (TableStatus === "ACTIVE") break;
    if (waitedMs >= ACTIVE_WITHIN_MS) {
      throw new StorageError(
        `Cannot create table "${table}" as it must be active within ${ACTIVE_WITHIN_MS} ms: ` +
          `current value is ${TableStatus}`,
        { transient: true },
      );
    }
    await sleep(clock, POLL_MS, { keepAlive: true, signal });
  }
  try {
    const { TimeToLiveDescription: before } = await client.describeTimeToLive(named, request);
    if (before?.TimeToLiveStatus === "DISABLED") {
      await client.updateTimeToLive({
        ...named,
        TimeToLiveSpecification: { AttributeName: ATTRIBUTES.ttl, Enabled: true },
      }, request);
    }
  } catch (error) {
    throw fault(error, "create", table, signal);
  }
  await checkTable(client, table, { signal });
}

/**
 * Checks that a table is made for locks, so that a wrong one is found at the start and not with the
 * first lock. It needs the rights `dynamodb:DescribeTable` and `DescribeTimeToLive`.
 *
 * @example
 * ```ts ignore
 * import { DynamoDB } from "@aws-sdk/client-dynamodb";
 * import { checkTable } from "@holdfast/lock/dynamodb";
 *
 * await checkTable(new DynamoDB({ region: "eu-central-1" }), "leases");
 * ```
 *
 * @param client the SDK's `DynamoDB`
 * @param table the table's name
 * @param options `signal`: ends the requests
 * @throws {StorageError} that says what is wrong: the table is missing or not active, its key has
 *   another name or type, time to live is off or on another attribute
 */
export async function checkTable(
  client: DynamoDbTableClient,
  table: string,
  options: CheckTableOptions = {},
): Promise<void> {
  const { signal } = options;
  const described = await describe(client, table, "use", signal);
  const { TableStatus: status, KeySchema: keys = [], AttributeDefinitions: types = [] } = described;
  if (status !== "ACTIVE" && status !== "UPDATING") {
    throw wrong(table, "it must be active", status);
  }
  const names = keys.map((k) => k.AttributeName).join(", ");
  if (names !== ATTRIBUTES.key) {
    throw wrong(table, `its only key must be the hash key "${ATTRIBUTES.key}"`, names);
  }
  const type = types.find((t) => t.AttributeName === ATTRIBUTES.key)?.AttributeType;
  if (type !== "S") throw wrong(table, `its key "${ATTRIBUTES.key}" must be of type S`, type);
  try {
    const answer = await client.describeTimeToLive({ TableName: table }, requestOptions(signal));
    const { TimeToLiveStatus, AttributeName } = answer.TimeToLiveDescription ?? {};
    const isOn = TimeToLiveStatus === "ENABLED" || TimeToLiveStatus === "ENABLING";
    if (isOn && AttributeName === ATTRIBUTES.ttl) return;
    const value = isOn ? `"${AttributeName}"` : TimeToLiveStatus;
    throw wrong(table, `time to live must be on for attribute "${ATTRIBUTES.ttl}"`, value);
  } catch (error) {
    throw error instanceof StorageError ? error : fault(error, "use", table, signal);
  }
}

async function describe(
  client: DynamoDbTableClient,
  table: string,
  verb: string,
  signal: AbortSignal | undefined,
): Promise<TableDescription> {
  try {
    const { Table } = await client.describeTable({ TableName: table }, requestOptions(signal));
    return Table ?? {};
  } catch (error) {
    throw fault(error, verb, table, signal);
  }
}

function fault(
  error: unknown,
  verb: string,
  table: string,
  signal: AbortSignal | undefined,
): unknown {
  return toStorageError(error, {
    what: `Cannot ${verb} table "${table}"`,
    table: "it",
    rights: verb === "use"
      ? CHECK_RIGHTS
      : `dynamodb:CreateTable, UpdateTimeToLive, ${CHECK_RIGHTS}`,
    invalid: "its name must be one that DynamoDB takes",
    signal,
  });
}

function wrong(table: string, constraint: string, value: string | undefined): StorageError {
  return new StorageError(
    `Cannot use table "${table}" as ${constraint}: current value is ${value}`,
    { transient: false },
  );
}
