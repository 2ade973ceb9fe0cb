/**
 * The record of a lock is one item, and every write replaces all of it.
 *
 * @module
 */
import { decodeRecord } from "../core/codec.ts";
import type { Entropy } from "../core/entropy.ts";
import type { Change, Register, Versioned, Write, Written } from "../core/register.ts";
import type { ExecuteOptions } from "../core/storage.ts";
import {
  type Conditional,
  type DynamoDbClient,
  isNamed,
  type NewItem,
  requestOptions,
  type StoredItem,
  toStorageError,
} from "./_dynamodb_client.ts";
import { ATTRIBUTES } from "./_dynamodb_table.ts";

/**
 * A version that never repeats, and the text under it: a text that was edited by hand under its old
 * version must not be written over from memory either. `null` where there is no item.
 */
export type DynamoDbVersion = { readonly id: string; readonly text: string } | null;

/** Records as items of a table. */
export class DynamoDbRegister implements Register<DynamoDbVersion> {
  readonly absent = null;
  readonly #client: DynamoDbClient;
  readonly #table: string;
  readonly #prefix: string;
  readonly #entropy: Entropy;

  /** Checks nothing and sends nothing. */
  constructor(client: DynamoDbClient, table: string, prefix: string, entropy: Entropy) {
    this.#client = client;
    this.#table = table;
    this.#prefix = prefix;
    this.#entropy = entropy;
  }

  key(name: string): string {
    return `${this.#prefix}:${encodeURIComponent(name)}`;
  }

  async read(name: string, { signal }: ExecuteOptions): Promise<Versioned<DynamoDbVersion>> {
    try {
      const { Item } = await this.#client.getItem({
        TableName: this.#table,
        Key: { [ATTRIBUTES.key]: { S: this.key(name) } },
        ConsistentRead: true,
      }, requestOptions(signal));
      return Item ? versioned(Item) : { value: null, version: null };
    } catch (error) {
      throw this.#fault("read", name, error, signal);
    }
  }

  async write(
    name: string,
    next: Write,
    version: DynamoDbVersion,
    _change: Change,
    { signal }: ExecuteOptions,
  ): Promise<Written<DynamoDbVersion>> {
    const id = this.#entropy.uuid();
    try {
      await this.#client.putItem({
        TableName: this.#table,
        Item: {
          [ATTRIBUTES.key]: { S: this.key(name) },
          [ATTRIBUTES.record]: { S: next.value },
          [ATTRIBUTES.version]: { S: id },
          [ATTRIBUTES.fence]: { N: String(next.fence) },
          [ATTRIBUTES.holdings]: { M: holdings(next.value) },
          [ATTRIBUTES.ttl]: { N: String(Math.ceil(next.retainUntilMs / 1000)) },
        },
        ...unchangedSince(version),
        ReturnValuesOnConditionCheckFailure: "ALL_OLD",
      }, requestOptions(signal));
      return { ok: true, version: { id, text: next.value } };
    } catch (error) {
      if (isNamed(error, "ConditionalCheckFailedException")) {
        return { ok: false, current: error.Item && versioned(error.Item) };
      }
      throw this.#fault("write", name, error, signal);
    }
  }

  #fault(verb: string, name: string, error: unknown, signal: AbortSignal | undefined): unknown {
    return toStorageError(error, {
      what: `Cannot ${verb} key "${this.key(name)}"`,
      table: `table "${this.#table}"`,
      rights: "dynamodb:GetItem, PutItem",
      invalid: `table "${this.#table}" does not fit: call checkTable() to see why`,
      signal,
    });
  }
}

/** The condition of a write, as part of its request. */
function unchangedSince(version: DynamoDbVersion): Omit<Conditional, "TableName"> {
  if (version === null) {
    return {
      ConditionExpression: "attribute_not_exists(#key)",
      ExpressionAttributeNames: { "#key": ATTRIBUTES.key },
    };
  }
  return {
    ConditionExpression: "#version = :version AND #record = :record",
    ExpressionAttributeNames: { "#version": ATTRIBUTES.version, "#record": ATTRIBUTES.record },
    ExpressionAttributeValues: { ":version": { S: version.id }, ":record": { S: version.text } },
  };
}

/** An item that lacks what every item of ours has gets a text that is no record. */
function versioned(item: StoredItem): Versioned<DynamoDbVersion> {
  const id = item[ATTRIBUTES.version]?.S;
  const text = item[ATTRIBUTES.record]?.S;
  return id === undefined || text === undefined
    ? { value: "", version: { id: "", text: "" } }
    : { value: text, version: { id, text } };
}

/** The holdings that can write under their fence; the put replaces all of them. */
function holdings(text: string): NewItem {
  const { holders } = decodeRecord(text);
  return Object.fromEntries(
    holders.flatMap((h) => h.token === null ? [] : [[String(h.fence), { S: h.token }]]),
  );
}
