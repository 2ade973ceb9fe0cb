/**
 * A collection in memory that keeps MongoDB's rules for transactions, which FerretDB does not have
 * (MongoDB manual, "Production considerations: in-progress transactions and write conflicts"):
 *
 * - A transaction sees the documents as they were when it began, and its own writes.
 * - A write in a transaction fails with a `WriteConflict` if another open transaction wrote the document,
 *   or if it was changed since the transaction began.
 * - A write outside of one waits for an open transaction that wrote the document to end.
 * - A bulk write is one write after the other, and may be cut short between any two.
 *
 * It is a model and not a server: it shows that the protocol is right if those rules hold.
 *
 * @module
 */
import type { MongoCollection, MongoDocument, MongoUpdate } from "../../src/storage/mongodb.ts";
import type { Clock } from "../../src/core/clock.ts";

/** What a driver throws. */
export class ModelError extends Error {
  constructor(readonly code: number, readonly codeName: string) {
    super(codeName);
    this.name = code === 0 ? "MongoNetworkError" : "MongoServerError";
  }
}

const DUPLICATE_KEY = () => new ModelError(11000, "DuplicateKey");
const WRITE_CONFLICT = () => new ModelError(112, "WriteConflict");

/** A transaction of the model. */
export class ModelSession {
  readonly writes = new Map<unknown, MongoDocument>();
  readonly ended: Promise<void>;
  open = true;
  /** The tick of the first operation, from which on the transaction sees a snapshot. */
  snapshot: number | undefined;
  #end!: () => void;

  constructor() {
    this.ended = new Promise((resolve) => this.#end = resolve);
  }

  inTransaction(): boolean {
    return this.open;
  }

  finish(): void {
    this.open = false;
    this.#end();
  }
}

interface Stored {
  readonly document: MongoDocument;
  readonly tick: number;
}

/** The collection. Every write takes a turn of the event loop, so that others come in between. */
export class ModelCollection implements MongoCollection {
  readonly namespace = "model.locks";
  readonly documents = new Map<unknown, Stored>();
  /** Called before each request, also of transactions: how long it takes to arrive. */
  delay: () => Promise<void> = turn;
  /** Called before each statement outside of transactions; what it throws ends the request there. */
  beforeStatement: (index: number) => void = () => {};
  /** Called after each request that was done; what it throws is what the client sees. */
  afterRequest: () => void = () => {};
  readonly #clock: Clock;
  readonly #sessions = new Set<ModelSession>();
  #tick = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  async findOne(filter: MongoDocument): Promise<MongoDocument | null> {
    await this.delay();
    return structuredClone(this.documents.get(filter["_id"])?.document ?? null);
  }

  async findOneAndUpdate(filter: MongoDocument, update: MongoDocument): Promise<MongoDocument> {
    this.beforeStatement(0);
    const { document } = await this.#write(filter, update, true, undefined);
    this.afterRequest();
    return structuredClone(document!);
  }

  async updateOne(
    filter: MongoDocument,
    update: MongoDocument,
    options: { upsert?: boolean | undefined; session?: unknown } = {},
  ): Promise<{ matchedCount: number }> {
    const session = options.session as ModelSession | undefined;
    if (!session) this.beforeStatement(0);
    const { matched } = await this.#write(filter, update, options.upsert ?? false, session);
    if (!session) this.afterRequest();
    return { matchedCount: matched ? 1 : 0 };
  }

  async bulkWrite(statements: MongoUpdate[]): Promise<void> {
    for (const [index, { updateOne: { filter, update, upsert } }] of statements.entries()) {
      this.beforeStatement(index);
      await this.#write(filter, update, upsert ?? false, undefined);
    }
    this.afterRequest();
  }

  createIndex(): Promise<void> {
    return Promise.resolve();
  }

  /** Runs work in a transaction, and again if it conflicts, as `withTransaction` of the driver does. */
  async withTransaction(work: (session: ModelSession) => Promise<void>): Promise<void> {
    while (true) {
      const session = new ModelSession();
      this.#sessions.add(session);
      try {
        await work(session);
        this.#commit(session);
        return;
      } catch (error) {
        if (!(error instanceof ModelError && error.code === 112)) throw error;
      } finally {
        this.#sessions.delete(session);
        session.finish();
      }
      await turn();
    }
  }

  #commit(session: ModelSession): void {
    this.#tick++;
    for (const [id, document] of session.writes) {
      this.documents.set(id, { document, tick: this.#tick });
    }
  }

  async #write(
    filter: MongoDocument,
    update: MongoDocument,
    upsert: boolean,
    session: ModelSession | undefined,
  ): Promise<{ matched: boolean; document?: MongoDocument }> {
    await this.delay();
    const id = filter["_id"];
    if (session) session.snapshot ??= this.#tick;
    let before: MongoDocument | undefined;
    let matched: boolean;
    while (true) {
      const stored = this.documents.get(id);
      if (session && (stored?.tick ?? 0) > session.snapshot!) throw WRITE_CONFLICT();
      before = session?.writes.get(id) ?? stored?.document;
      matched = before !== undefined && matches(before, filter);
      // What others have not committed is not seen, and without a write there is no conflict.
      if (!matched && !upsert) return { matched };
      if (!matched && before) throw DUPLICATE_KEY();
      const other = this.#writerOf(id, session);
      if (!other) break;
      if (session) throw WRITE_CONFLICT();
      await other.ended;
    }
    const document = this.#apply(before ?? equalities(filter), update, !before);
    if (session) session.writes.set(id, document);
    else this.documents.set(id, { document, tick: ++this.#tick });
    return { matched, document };
  }

  /** The open transaction, other than `session`, that has written a document. */
  #writerOf(id: unknown, session: ModelSession | undefined): ModelSession | undefined {
    return [...this.#sessions].find((one) => one !== session && one.writes.has(id));
  }

  #apply(before: MongoDocument, update: MongoDocument, inserts: boolean): MongoDocument {
    const { $set, $setOnInsert, $unset, $currentDate } = update as Record<string, MongoDocument>;
    const after = { ...before, ...$set, ...(inserts ? $setOnInsert : {}) };
    for (const field in $currentDate) after[field] = new Date(this.#clock.read().wallMs);
    for (const field in $unset) delete after[field];
    return after;
  }
}

function matches(document: MongoDocument, filter: MongoDocument): boolean {
  return Object.entries(filter).every(([field, wanted]) => {
    const type: string = typeof document[field];
    return isTypeOf(wanted) ? type === wanted.$type : (document[field] ?? null) === wanted;
  });
}

function isTypeOf(wanted: unknown): wanted is { $type: string } {
  return typeof wanted === "object" && wanted !== null && "$type" in wanted;
}

/** What an upsert puts into a new document. */
function equalities(filter: MongoDocument): MongoDocument {
  return Object.fromEntries(Object.entries(filter).filter(([, wanted]) => !isTypeOf(wanted)));
}

/** Lets everything else that can go on do so. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
