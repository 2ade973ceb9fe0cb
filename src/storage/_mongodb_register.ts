/**
 * The record of a lock is one document. Once a lock has been used for fenced transactions (`fenced`), a
 * holding that ends is also written to a document of its own, its guard, which `fenceCheck` writes within
 * the user's transaction: so whoever ends a holding waits for the transactions that it fenced. Renewals
 * touch no guard.
 *
 * Two documents cannot be written at once without a transaction, so the record says which guards are still
 * to be written (`pending`), and whoever changes the record next does it before anything is granted. The
 * truth about who holds is in the record alone: a guard is only something to meet at.
 *
 * ```text
 * { _id: "PREFIX:NAME", record, version, clock, expireAt, fenced?, pending?: { by, guards: [id, ...] } }
 * { _id: "PREFIX:NAME#FENCE", expireAt }
 * ```
 *
 * @module
 */
import type { Entropy } from "../core/entropy.ts";
import type { Fenced } from "../core/lease.ts";
import type { Change, Register, Versioned, Write, Written } from "../core/register.ts";
import {
  isDuplicateKey,
  MAJORITY,
  type MongoCollection,
  type MongoDocument,
  type MongoSession,
  type MongoUpdate,
  toStorageError,
} from "./_mongodb_client.ts";

/** The version of a record, and what is known of its guards. */
export interface MongoVersion {
  /** Never the same twice. */
  readonly id: string;
  /** What is stored under it: a record that was edited by hand under its old version is not written over. */
  readonly text: string | null;
  /** Whether the lock has been used for fenced transactions; a write is conditional on this, too. */
  readonly fenced: boolean;
  /** Ids of guards. */
  readonly pending: readonly string[];
}

/** A record as it was read, and who left its guards pending. */
export interface Seen extends Versioned<MongoVersion> {
  /** The server's clock. */
  readonly nowUs: number;
  /** Which client. */
  readonly by: unknown;
}

/** How often a first read is tried that meets another client's first read. */
const READ_TRIES = 3;

/** The record of a lock that nobody ever took; an absent one would look like a damaged document. */
const NONE = false;

/** From when on a document that nobody needs may be deleted. */
const AT_ONCE = new Date(0);

/** Any document that is not a record of ours reads as a text that is none. */
const FOREIGN: Seen = {
  value: "",
  version: { id: "", text: "", fenced: false, pending: [] },
  nowUs: 0,
  by: undefined,
};

/** Records as documents of a collection. */
export class MongoRegister implements Register<MongoVersion> {
  readonly #collection: MongoCollection;
  readonly #prefix: string;
  readonly #entropy: Entropy;
  /** Tells the writes of this client from those of others. */
  readonly #self: string;

  /** Checks nothing and sends nothing. */
  constructor(collection: MongoCollection, prefix: string, entropy: Entropy) {
    this.#collection = collection;
    this.#prefix = prefix;
    this.#entropy = entropy;
    this.#self = entropy.uuid();
  }

  key(name: string): string {
    return `${this.#prefix}:${encodeURIComponent(name)}`;
  }

  async read(name: string): Promise<Versioned<MongoVersion>> {
    const { by, ...seen } = await this.#look(name, {});
    const { version } = seen;
    // A write of ours whose reply was lost may have been cut short after the record.
    if (version.pending.length === 0 || by !== this.#self) return seen;
    try {
      await this.#bulk([...version.pending.map(meet), this.#settled(name, version.id)]);
    } catch (error) {
      throw this.#fault("read", name, error);
    }
    return { ...seen, version: { ...version, pending: [] } };
  }

  /**
   * A read that is no write: what the primary has, also what the majority has not yet, so that a grant of our
   * own is seen (MongoDB manual, "Read concern local"). What is rolled back later has refused somebody at worst.
   */
  async glance(name: string): Promise<string | null> {
    try {
      const document = await this.#collection.findOne({ _id: this.key(name) }, {
        readPreference: "primary",
        readConcern: { level: "local" },
      });
      return document === null ? null : versioned(document).value;
    } catch (error) {
      throw this.#fault("read", name, error);
    }
  }

  /**
   * Reads a record with the server's clock, which takes a write: `$currentDate` says the time to every
   * server, and a write to the primary with majority is a read of what is true (MongoDB manual,
   * "Linearizable reads via findAndModify"). It touches neither record nor version.
   */
  async #look(name: string, more: { $set?: { fenced: true } }): Promise<Seen> {
    for (let tries = 1;; tries++) {
      try {
        const document = await this.#collection.findOneAndUpdate(
          { _id: this.key(name), version: { $type: "string" } },
          {
            $currentDate: { clock: true },
            ...more,
            $setOnInsert: { version: this.#entropy.uuid(), record: NONE, expireAt: AT_ONCE },
          },
          {
            upsert: true,
            returnDocument: "after",
            includeResultMetadata: false,
            writeConcern: MAJORITY,
          },
        );
        return versioned(document);
      } catch (error) {
        if (!isDuplicateKey(error)) throw this.#fault("read", name, error);
        // There is a document of this key: another client's, just made, or one that is not ours.
        if (tries === READ_TRIES) return FOREIGN;
      }
    }
  }

  async write(
    name: string,
    next: Write,
    version: MongoVersion,
    change: Change,
  ): Promise<Written<MongoVersion>> {
    const id = this.#entropy.uuid();
    const { fenced } = version;
    // No filter but `null` fits a field that is not there.
    const before = { version: version.id, record: version.text ?? NONE, fenced: fenced || null };
    const filter = { _id: this.key(name), ...before };
    const record = { record: next.value, version: id, expireAt: new Date(next.retainUntilMs) };
    const ended = fenced ? change.ended.map(({ fence }) => this.#guard(name, fence)) : [];
    const guards = [...version.pending, ...ended];
    try {
      if (guards.length === 0) {
        const update = { $set: record };
        const options = { writeConcern: MAJORITY };
        const { matchedCount } = await this.#collection.updateOne(filter, update, options);
        if (matchedCount === 0) return { ok: false };
      } else {
        const pending = { by: this.#self, guards };
        const update = { $set: { ...record, pending } };
        // With `upsert` another version is a duplicate key, an error, so that nothing after it is done.
        const replace = { updateOne: { filter, update, upsert: true } };
        await this.#bulk([replace, ...guards.map(meet), this.#settled(name, id)]);
      }
      return { ok: true, version: { id, text: next.value, fenced, pending: [] } };
    } catch (error) {
      if (guards.length > 0 && isDuplicateKey(error)) return { ok: false };
      throw this.#fault("write", name, error);
    }
  }

  /**
   * Writes a holding's guard within a transaction, and then reads the record outside of it. In this order:
   * who ends the holding after the read meets the guard, and who did before is seen. The driver's errors of
   * the transaction are for its retries.
   */
  async enter({ name, fencingToken }: Fenced, session: MongoSession): Promise<Seen> {
    const { filter, update } = meet(this.#guard(name, fencingToken)).updateOne;
    await this.#collection.updateOne(filter, update, { upsert: true, session });
    return await this.#look(name, { $set: { fenced: true } });
  }

  #guard(name: string, fence: number): string {
    return `${this.key(name)}#${fence}`;
  }

  /** All guards that a version had left pending are written. */
  #settled(name: string, id: string): MongoUpdate {
    const filter = { _id: this.key(name), version: id };
    return { updateOne: { filter, update: { $unset: { pending: "" } } } };
  }

  /** One request: statements of one kind go out together. */
  async #bulk(statements: MongoUpdate[]): Promise<void> {
    await this.#collection.bulkWrite(statements, { ordered: true, writeConcern: MAJORITY });
  }

  #fault(verb: string, name: string, error: unknown): unknown {
    const { namespace } = this.#collection;
    return toStorageError(error, `Cannot ${verb} key "${this.key(name)}"`, namespace);
  }
}

/**
 * The write on which a transaction and the end of its holding meet: the later one waits for the earlier
 * one, or fails and is tried again (MongoDB manual, "In-progress transactions and write conflicts"). The
 * document may be deleted at any time when nobody has it.
 */
function meet(guard: string): Required<MongoUpdate> & { updateOne: { upsert: true } } {
  const update = { $currentDate: { expireAt: true } };
  return { updateOne: { filter: { _id: guard }, update, upsert: true } };
}

function versioned(document: MongoDocument | null): Seen {
  const { record, version, clock, fenced, pending } = document ?? {};
  if (typeof version !== "string" || !(clock instanceof Date)) return FOREIGN;
  if (record !== NONE && typeof record !== "string") return FOREIGN;
  const { by, guards = [] } = (pending ?? {}) as { by?: unknown; guards?: unknown };
  if (!Array.isArray(guards) || !guards.every((id) => typeof id === "string")) return FOREIGN;
  const text = record === NONE ? null : record;
  return {
    value: text,
    version: { id: version, text, fenced: fenced === true, pending: guards },
    nowUs: clock.getTime() * 1000,
    by,
  };
}
