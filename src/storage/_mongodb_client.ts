/**
 * What is called of the package `mongodb`, and what its errors mean.
 *
 * @module
 */
import { StorageError } from "../core/errors.ts";

/** A document, a filter or an update. */
export type MongoDocument = Record<string, unknown>;

/** The majority has it, whatever the collection's own default is. */
export const MAJORITY = { w: "majority" } as const;

/** One statement of a bulk write. */
export interface MongoUpdate {
  /** Changes at most one document. */
  updateOne: { filter: MongoDocument; update: MongoDocument; upsert?: boolean };
}

/** A session of your client; a transaction of it is begun and ended by you. */
export interface MongoSession {
  /** Whether a transaction is open. */
  inTransaction(): boolean;
}

/** The part of a `Collection` of `mongodb` that a storage calls. */
export interface MongoCollection {
  /** Database and collection, for messages. */
  readonly namespace: string;
  /** Reads one document. */
  findOne(filter: MongoDocument, options: {
    readPreference: "primary";
    readConcern: { level: "local" };
  }): Promise<MongoDocument | null>;
  /** Changes one document, and returns it. */
  findOneAndUpdate(filter: MongoDocument, update: MongoDocument, options: {
    upsert: true;
    returnDocument: "after";
    includeResultMetadata: false;
    writeConcern: { w: "majority" };
  }): Promise<MongoDocument | null>;
  /** Changes one document. */
  updateOne(filter: MongoDocument, update: MongoDocument, options?: {
    upsert?: boolean | undefined;
    session?: MongoSession | undefined;
    writeConcern?: object | undefined;
  }): Promise<{ readonly matchedCount: number }>;
  /** Changes documents one after the other, and stops at the first error. */
  bulkWrite(statements: MongoUpdate[], options: {
    ordered: true;
    writeConcern: { w: "majority" };
  }): Promise<unknown>;
  /** Creates an index unless it is there. */
  createIndex(
    keys: Record<string, 1>,
    options: { expireAfterSeconds: number },
  ): Promise<unknown>;
}

/** What is used of an error of the driver. */
interface DriverError extends Error {
  readonly code?: unknown;
  readonly codeName?: unknown;
}

const DUPLICATE_KEY = 11000;
const UNAUTHORIZED = 13;
const DOCUMENT_VALIDATION_FAILURE = 121;

/** Codes of a login that failed; 8000 is how Atlas says it. */
const LOGIN = [11, 18, 8000];

/**
 * Codes that asking again cannot repair (MongoDB manual, "Error codes"): a request or an option that
 * the server does not take, a collection or a value of the wrong kind.
 */
const REFUSALS = [2, 9, 14, 20, 26, 59, 67, 72, 73, 79, 85, 86, 100, 115, 166, 238, 10334, 17280];

/** Errors of the driver that never reached a server: wrong arguments, options, or a closed client. */
const CLIENT_ERRORS = [
  "MongoAPIError",
  "MongoClientClosedError",
  "MongoCompatibilityError",
  "MongoInvalidArgumentError",
  "MongoMissingCredentialsError",
  "MongoMissingDependencyError",
  "MongoNotConnectedError",
  "MongoParseError",
  "MongoTopologyClosedError",
];

/** Whether an upsert met a document of the same key and another version: contention, and nothing else is. */
export function isDuplicateKey(error: unknown): boolean {
  return error instanceof Error && (error as DriverError).code === DUPLICATE_KEY;
}

/**
 * Makes the error that users see.
 *
 * @param error what the driver threw
 * @param what what could not be done: `Cannot read key "x"`
 * @param namespace the collection
 * @returns the error with the driver's as its cause
 */
export function toStorageError(error: unknown, what: string, namespace: string): unknown {
  if (!(error instanceof Error)) return error;
  const { code, codeName, name }: DriverError = error;
  const value = typeof codeName === "string" ? codeName : name;
  const refuse = (constraint: string): StorageError =>
    new StorageError(`${what} as ${constraint}`, { transient: false, cause: error });
  if (code === UNAUTHORIZED) {
    return refuse(`the user must have the role readWrite for collection "${namespace}"`);
  }
  if (LOGIN.includes(code as number)) {
    return refuse(`the client must have valid credentials: current value is ${value}`);
  }
  if (code === DOCUMENT_VALIDATION_FAILURE) {
    return refuse(`collection "${namespace}" must have no validator that refuses it`);
  }
  if (REFUSALS.includes(code as number) || CLIENT_ERRORS.includes(name)) {
    return refuse(`MongoDB or its client refuses: current value is ${value}`);
  }
  return new StorageError(`${what} as MongoDB must answer: current value is ${value}`, {
    transient: true,
    cause: error,
  });
}
