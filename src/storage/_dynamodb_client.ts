/**
 * What is called of the AWS SDK, and what its errors mean.
 *
 * @module
 */
import { StorageError } from "../core/errors.ts";

/** An attribute value as it is written. */
export type AttributeValue =
  | { S: string }
  | { N: string }
  | { M: Record<string, AttributeValue> };

/** An item as it is read; what is not a string here is of no interest. */
export type StoredItem = Record<string, { S?: string | undefined }>;

/** An item as it is written, or a part of it. */
export type NewItem = Record<string, AttributeValue>;

/** A request that DynamoDB runs only under a condition. */
export interface Conditional {
  /** The table. */
  TableName: string;
  /** The condition. */
  ConditionExpression: string;
  /** What `#x` stands for in it. */
  ExpressionAttributeNames: Record<string, string>;
  /** What `:x` stands for in it. */
  ExpressionAttributeValues?: NewItem;
}

/** An element for the `TransactItems` of your own `transactWriteItems` call. */
export interface FenceCheckItem {
  /** Holds while the holding is in the record. */
  ConditionCheck: Conditional & { Key: NewItem; ExpressionAttributeValues: NewItem };
}

/** What is sent along with a request. */
export interface RequestOptions {
  /** Ends the request. */
  abortSignal?: AbortSignal;
}

/** The part of `DynamoDB` of `@aws-sdk/client-dynamodb` that a storage calls. */
export interface DynamoDbClient {
  /** Reads one item. */
  getItem(
    input: { TableName: string; Key: NewItem; ConsistentRead: true },
    options?: RequestOptions,
  ): Promise<{ Item?: StoredItem | undefined }>;
  /** Replaces one item under a condition. */
  putItem(
    input: Conditional & { Item: NewItem; ReturnValuesOnConditionCheckFailure: "ALL_OLD" },
    options?: RequestOptions,
  ): Promise<unknown>;
}

/** The part of `DynamoDB` that creating and checking a table takes. */
export interface DynamoDbTableClient {
  /** Starts to create a table. */
  createTable(input: {
    TableName: string;
    BillingMode: "PAY_PER_REQUEST";
    AttributeDefinitions: { AttributeName: string; AttributeType: "S" }[];
    KeySchema: { AttributeName: string; KeyType: "HASH" }[];
  }, options?: RequestOptions): Promise<unknown>;
  /** Says how a table is made, and whether it is ready. */
  describeTable(input: { TableName: string }, options?: RequestOptions): Promise<{
    Table?: TableDescription | undefined;
  }>;
  /** Says which attribute makes items expire. */
  describeTimeToLive(input: { TableName: string }, options?: RequestOptions): Promise<{
    TimeToLiveDescription?: {
      TimeToLiveStatus?: string | undefined;
      AttributeName?: string | undefined;
    } | undefined;
  }>;
  /** Says that items expire. */
  updateTimeToLive(input: {
    TableName: string;
    TimeToLiveSpecification: { AttributeName: string; Enabled: true };
  }, options?: RequestOptions): Promise<unknown>;
}

/** How a table is made. */
export interface TableDescription {
  /** `ACTIVE` when it can be used. */
  TableStatus?: string | undefined;
  /** Its keys. */
  KeySchema?: { AttributeName?: string | undefined; KeyType?: string | undefined }[] | undefined;
  /** The types of its keys. */
  AttributeDefinitions?:
    | { AttributeName?: string | undefined; AttributeType?: string | undefined }[]
    | undefined;
}

/**
 * Client errors that asking again may repair (Amazon DynamoDB developer guide, "Error handling with
 * DynamoDB"). `TransactionConflictException` is a fenced transaction that is being written.
 */
const TRANSIENT = [
  "LimitExceededException",
  "PriorRequestNotComplete",
  "ProvisionedThroughputExceededException",
  "ReplicatedWriteConflictException",
  "RequestLimitExceeded",
  "RequestTimeout",
  "RequestTimeoutException",
  "ThrottlingException",
  "TransactionConflictException",
  "TransactionInProgressException",
];

/** The SDK's errors of credentials that are absent, wrong or out of date. */
const CREDENTIALS = [
  "CredentialsProviderError",
  "ExpiredToken",
  "ExpiredTokenException",
  "IncompleteSignatureException",
  "InvalidClientTokenId",
  "InvalidSignatureException",
  "MissingAuthenticationTokenException",
  "SignatureDoesNotMatch",
  "TokenProviderError",
  "UnrecognizedClientException",
];

/** What is used of an error of the SDK. */
export interface SdkError {
  /** What the service calls it. */
  readonly name: string;
  /** For people. */
  readonly message: string;
  /** Who is to blame, where the service answered. */
  readonly $fault?: "client" | "server";
  /** About the requests, if there were any. */
  readonly $metadata?: unknown;
  /** What is there instead, where a condition did not hold. */
  readonly Item?: StoredItem;
  /** One for each element of a transaction that was cancelled. */
  readonly CancellationReasons?: readonly { readonly Code?: string | undefined }[];
}

/** What is sent along with a request that the caller may abort. */
export function requestOptions(signal: AbortSignal | undefined): RequestOptions {
  return signal ? { abortSignal: signal } : {};
}

/** Whether an error is the one that the SDK documents under `name`. */
export function isNamed(error: unknown, name: string): error is SdkError {
  return error instanceof Error && error.name === name;
}

/** What was tried, for the error's message. */
export interface Attempt {
  /** What could not be done: `Cannot read key "x"`. */
  readonly what: string;
  /** The table, as the message has to call it. */
  readonly table: string;
  /** The rights that it takes. */
  readonly rights: string;
  /** Why DynamoDB would find the request invalid. */
  readonly invalid: string;
  /** The caller's. */
  readonly signal: AbortSignal | undefined;
}

/**
 * Makes the error that users see.
 *
 * @param error what the SDK threw
 * @param attempt what was tried
 * @returns the error with the SDK's as its cause; the signal's reason if that has aborted
 */
export function toStorageError(error: unknown, attempt: Attempt): unknown {
  if (attempt.signal?.aborted) return attempt.signal.reason;
  if (!(error instanceof Error)) return error;
  const { name, $fault, $metadata }: SdkError = error;
  const { what } = attempt;
  const reason = adviceFor(name, attempt);
  if (reason) return fault(`${what} as ${reason}`, false, error);
  // Errors without a name of their own (a refused connection, no region) say it in their message.
  const value = name === "Error" ? error.message : name;
  // What has no metadata was never sent: no region, an input that cannot be written.
  const refused = $metadata === undefined || ($fault === "client" && !TRANSIENT.includes(name));
  return refused
    ? fault(`${what} as DynamoDB or its client refuses: current value is ${value}`, false, error)
    : fault(`${what} as DynamoDB must answer: current value is ${value}`, true, error);
}

/** What the user can do about an error that has a known reason. */
function adviceFor(name: string, { table, rights, invalid }: Attempt): string | undefined {
  if (name === "ResourceNotFoundException") {
    return `${table} is missing: create it with createTable()`;
  }
  if (name === "AccessDeniedException") return `the credentials must have the rights ${rights}`;
  if (name === "ValidationException") return invalid;
  if (CREDENTIALS.includes(name)) {
    return `the client must have valid credentials: current value is ${name}`;
  }
  return undefined;
}

function fault(message: string, transient: boolean, cause: Error): StorageError {
  return new StorageError(message, { transient, cause });
}
