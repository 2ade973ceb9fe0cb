/**
 * Leases in a DynamoDB table, by the aggregated `DynamoDB` client of `@aws-sdk/client-dynamodb`.
 *
 * An uncontended acquire, renewal and release are one conditional put each. DynamoDB has no clock that a
 * condition could read, so the clients' wall clocks say the time and `maxClockSkewMs` bounds how far any
 * two of them are apart; a holder is also taken for dead once it was seen unchanged for longer than its
 * lease. DynamoDB's own expiry (`ttl`) only collects what is long over.
 *
 * What is *not* guaranteed: a lock holds in one Region. In a global table with eventual consistency a
 * condition sees the local replica only; in one with strong consistency there are no transactions, and
 * so no {@linkcode fenceCheck}, and no time to live.
 *
 * @example
 * ```ts ignore
 * import { DynamoDB } from "@aws-sdk/client-dynamodb";
 * import { Lock } from "@holdfast/lock";
 * import { DynamoDbStorage, fenceCheck } from "@holdfast/lock/dynamodb";
 *
 * const client = new DynamoDB({ region: "eu-central-1" });
 * const storage = new DynamoDbStorage(client, { table: "leases" });
 * await using lease = await new Lock({ storage, name: "invoices" }).acquire();
 * await client.transactWriteItems({
 *   TransactItems: [
 *     fenceCheck(storage, lease),
 *     { Put: { TableName: "invoices", Item: { id: { S: "42" } } } },
 *   ],
 * });
 * ```
 *
 * @module
 */
import { systemEntropy } from "../core/entropy.ts";
import { StaleFenceError } from "../core/errors.ts";
import type { Fenced } from "../core/lease.ts";
import { RegisterStorage, type RegisterStorageOptions } from "../core/register.ts";
import { checkText } from "../core/validate.ts";
import { type DynamoDbClient, type FenceCheckItem, isNamed } from "./_dynamodb_client.ts";
import { DynamoDbRegister } from "./_dynamodb_register.ts";
import { ATTRIBUTES } from "./_dynamodb_table.ts";

export type {
  AttributeValue,
  Conditional,
  DynamoDbClient,
  DynamoDbTableClient,
  FenceCheckItem,
  NewItem,
  RequestOptions,
  StoredItem,
  TableDescription,
} from "./_dynamodb_client.ts";
export {
  checkTable,
  type CheckTableOptions,
  createTable,
  type CreateTableOptions,
} from "./_dynamodb_table.ts";

/** Options of a {@linkcode DynamoDbStorage}. */
export interface DynamoDbStorageOptions extends RegisterStorageOptions {
  /** The table, made by `createTable` or with a string hash key `key` and time to live on `ttl`. */
  readonly table: string;
  /**
   * What the keys of locks begin with.
   *
   * @default {"holdfast"}
   */
  readonly prefix?: string | undefined;
}

/**
 * Keeps leases in a DynamoDB table. The client is not configured and not closed; its retries are harmless.
 *
 * @example
 * ```ts ignore
 * import { DynamoDB } from "@aws-sdk/client-dynamodb";
 * import { DynamoDbStorage } from "@holdfast/lock/dynamodb";
 *
 * const storage = new DynamoDbStorage(new DynamoDB({}), { table: "leases", maxClockSkewMs: 500 });
 * ```
 */
export class DynamoDbStorage extends RegisterStorage<unknown> {
  /** The table. */
  readonly table: string;
  readonly #register: DynamoDbRegister;

  /**
   * Sends nothing: call `checkTable` where a wrong table should be found at the start.
   *
   * @param client the SDK's `DynamoDB`
   * @param options `table`, `prefix`, `maxClockSkewMs`, `retentionMs`, `pollMs`
   * @throws {RangeError} if an option is out of range
   */
  constructor(client: DynamoDbClient, options: DynamoDbStorageOptions) {
    const { entropy = systemEntropy, pollMs = { min: 250, max: 5000 } } = options;
    const table = checkText("table", options.table, 1, 1024);
    const prefix = checkText("prefix", options.prefix ?? "holdfast", 1, 64);
    const register = new DynamoDbRegister(client, table, prefix, entropy);
    super(register, { serverTime: false }, { ...options, pollMs });
    this.table = table;
    this.#register = register;
  }

  /**
   * The key of a lock's item in the table.
   *
   * @param name the lock
   * @returns the value of the attribute `key`
   */
  key(name: string): string {
    return this.#register.key(name);
  }
}

/**
 * Makes the element of your own `transactWriteItems` call under which its writes are applied only while
 * the lease is in the record: not released, evicted, handed over or taken over. If it is not, DynamoDB
 * rejects the call with `TransactionCanceledException`, whose `CancellationReasons` has
 * `ConditionalCheckFailed` at this element's place, and nothing is written; {@linkcode fenced} makes a
 * `StaleFenceError` of that.
 *
 * DynamoDB has no clock: a lease that expired and that nobody took over passes. A renewal that meets the
 * transaction is tried again; a transaction that meets a renewal is cancelled with the reason
 * `TransactionConflict`, and is for you to try again. It needs the right `dynamodb:ConditionCheckItem`.
 *
 * @example
 * ```ts ignore
 * await client.transactWriteItems({
 *   TransactItems: [
 *     fenceCheck(storage, lease),
 *     { Put: { TableName: "invoices", Item: { id: { S: "42" } } } },
 *   ],
 * });
 * ```
 *
 * @param storage where the lease is
 * @param lease the lease, or its name, token and fencing token
 * @returns an element for `TransactItems`; it contains the token, which is a credential
 */
export function fenceCheck(
  storage: Pick<DynamoDbStorage, "table" | "key">,
  lease: Fenced,
): FenceCheckItem {
  return {
    ConditionCheck: {
      TableName: storage.table,
      Key: { [ATTRIBUTES.key]: { S: storage.key(lease.name) } },
      ConditionExpression: "#holdings.#fence = :token",
      ExpressionAttributeNames: {
        "#holdings": ATTRIBUTES.holdings,
        "#fence": String(lease.fencingToken),
      },
      ExpressionAttributeValues: { ":token": { S: lease.token } },
    },
  };
}

/**
 * Runs a transaction of yours that contains the given check, and says in one way that it came too late.
 *
 * @example
 * ```ts ignore
 * await fenced(storage, lease, (check) =>
 *   client.transactWriteItems({
 *     TransactItems: [check, { Put: { TableName: "invoices", Item: { id: { S: "42" } } } }],
 *   }));
 * ```
 *
 * @param storage where the lease is
 * @param lease the lease, or its name, token and fencing token
 * @param work sends a transaction with the check in it
 * @returns what `work` returned
 * @throws {StaleFenceError} if the lease is not held any more; nothing was written
 * @throws {StorageError} if that cannot be found out
 * @throws whatever else `work` rejected with, a failed condition of your own for one
 */
export async function fenced<T>(
  storage: DynamoDbStorage,
  lease: Fenced,
  work: (check: FenceCheckItem) => PromiseLike<T>,
): Promise<T> {
  try {
    return await work(fenceCheck(storage, lease));
  } catch (error) {
    const isRefused = isNamed(error, "TransactionCanceledException") &&
      error.CancellationReasons?.some(({ Code }) => Code === "ConditionalCheckFailed");
    const { name, fencingToken: fence } = lease;
    if (!isRefused) throw error;
    const { holders } = await storage.execute(name, { type: "inspect" });
    if (holders.some((holder) => holder.fence === fence)) throw error;
    throw new StaleFenceError(
      `Cannot write under lock "${name}" as fence ${fence} is not held any more`,
      { fence, cause: error },
    );
  }
}
