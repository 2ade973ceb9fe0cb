/**
 * The stored form of a {@linkcode LeaseRecord}: one string, the same in every product. It is one value
 * because a product that heals a partition field by field would mix two holders.
 *
 * ```text
 * holdfast 1 FENCE
 * h TOKEN FENCE PERMITS CAPACITY TTL_MS BEATS EXPIRES_AT_MS LABEL     a holder; TOKEN - if none
 * t TOKEN PERMITS FAIR EXPIRES_AT_MS                                  a ticket; FAIR 0 or 1
 * s TOKEN END EXPIRES_AT_MS                                           a spent token
 * .
 * ```
 *
 * Every line ends with a line feed; holders come first, then tickets, then spent tokens, then lines of
 * other kinds, which a later minor version may have written: they are kept. The dot is the end, so that no
 * part of a record reads as a record. Another major version, and text that is not ours, is an error and
 * never "free".
 *
 * @module
 */
import { StorageError } from "./errors.ts";
import { EMPTY_RECORD, type Holder, type LeaseRecord, type Spent, type Ticket } from "./record.ts";

const INTEGER = "(0|[1-9]\\d{0,15})";
const TOKEN = "([A-Za-z0-9-]{2,36})";
const HEADER = new RegExp(`^holdfast 1 ${INTEGER}$`);
const HOLDER = new RegExp(
  `^h (-|[A-Za-z0-9-]{2,36}) ${Array(6).fill(INTEGER).join(" ")} (\\P{Cc}*)$`,
  "u",
);
const TICKET = new RegExp(`^t ${TOKEN} ${INTEGER} ([01]) ${INTEGER}$`);
const SPENT = new RegExp(`^s ${TOKEN} (released|unheld|evicted|adopted) ${INTEGER}$`);
const OTHER = /^[a-z] \P{Cc}*$/u;

/** What every record ends with. */
const END = "\n.\n";

/** The most bytes of lines of unknown kinds that a record may carry, so that it stays below 64 KiB. */
const MAX_EXTRA_BYTES = 2048;

const utf8 = new TextEncoder();

/**
 * Writes a record as text.
 *
 * @param record the record
 * @returns its text, below 64 KiB
 * @throws {RangeError} if the text could not be read back
 */
export function encodeRecord(record: LeaseRecord): string {
  const lines = [`holdfast 1 ${record.fence}`];
  for (const h of record.holders) {
    lines.push(
      `h ${h.token ?? "-"} ${h.fence} ${h.permits} ${h.capacity} ${h.ttlMs} ${h.beats} ` +
        `${h.expiresAtMs} ${h.label}`,
    );
  }
  for (const t of record.tickets) {
    lines.push(`t ${t.token} ${t.permits} ${t.fair ? 1 : 0} ${t.expiresAtMs}`);
  }
  for (const s of record.spent) lines.push(`s ${s.token} ${s.end} ${s.expiresAtMs}`);
  lines.push(...record.extra);
  const text = lines.join("\n") + END;
  decodeRecord(text);
  if (text.split("\n").length > lines.length + 2) {
    throw new RangeError("Cannot write record as one of its texts has a line feed");
  }
  return text;
}

/**
 * Reads a record from its text.
 *
 * @param text what the storage has
 * @returns the record
 * @throws {RangeError} if it is not a record of this major version
 */
export function decodeRecord(text: string): LeaseRecord {
  const isWhole = text.endsWith(END);
  const lines = text.slice(0, isWhole ? -END.length : undefined).split("\n");
  const header = HEADER.exec(lines[0]!);
  if (!header) {
    // No more of it is shown: what we cannot read may be a credential.
    const start = /^holdfast \d{1,9}/.exec(text)?.[0];
    throw new RangeError(
      start
        ? `Cannot read record as its version or shape is unknown: current value is "${start}"`
        : `Cannot read record as it does not start with "holdfast 1"`,
    );
  }
  if (!isWhole) throw new RangeError("Cannot read record as its end is missing");
  const holders: Holder[] = [];
  const tickets: Ticket[] = [];
  const spent: Spent[] = [];
  const extra: string[] = [];
  let extraBytes = 0;
  for (let i = 1; i < lines.length; i++) {
    const line = lines[i]!;
    let m: RegExpExecArray | null;
    if ((m = HOLDER.exec(line))) {
      holders.push({
        token: m[1] === "-" ? null : m[1]!,
        fence: integer(m[2]),
        permits: integer(m[3]),
        capacity: integer(m[4]),
        ttlMs: integer(m[5]),
        beats: integer(m[6]),
        expiresAtMs: integer(m[7]),
        label: m[8]!,
      });
    } else if ((m = TICKET.exec(line))) {
      tickets.push({
        token: m[1]!,
        permits: integer(m[2]),
        fair: m[3] === "1",
        expiresAtMs: integer(m[4]),
      });
    } else if ((m = SPENT.exec(line))) {
      spent.push({ token: m[1]!, end: m[2] as Spent["end"], expiresAtMs: integer(m[3]) });
    } else if (OTHER.test(line) && !/^[hts]/.test(line)) {
      extra.push(line);
      extraBytes += utf8.encode(line).length + 1;
    } else {
      throw new RangeError(`Cannot read record as its line ${i + 1} is malformed`);
    }
  }
  if (extraBytes > MAX_EXTRA_BYTES) {
    throw new RangeError(
      `Cannot read record as its unknown lines exceed ${MAX_EXTRA_BYTES} bytes: ` +
        `current value is ${extraBytes}`,
    );
  }
  return { fence: integer(header[1]), holders, tickets, spent, extra };
}

/**
 * Reads what a product stores under a key.
 *
 * @param key the key, for the message
 * @param value the stored text, `null` where there is none
 * @returns the record
 * @throws {StorageError} if it is not a record of ours, which is then neither free nor to be overwritten
 */
export function decodeStored(key: string, value: string | null): LeaseRecord {
  if (value === null) return EMPTY_RECORD;
  try {
    return decodeRecord(value);
  } catch (cause) {
    throw new StorageError(`Cannot use key "${key}" as its value is not a Holdfast record`, {
      transient: false,
      cause,
    });
  }
}

/**
 * The instant from which a storage may forget a record, were it not for its retention.
 *
 * @param record the record
 * @returns the last expiry in it, or the instant in its fence, in milliseconds since the epoch
 */
export function lastExpiryMs(record: LeaseRecord): number {
  let last = Math.ceil(record.fence / 1000);
  for (const list of [record.holders, record.tickets, record.spent]) {
    for (const entry of list) last = Math.max(last, entry.expiresAtMs);
  }
  return last;
}

function integer(text: string | undefined): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) {
    throw new RangeError(
      `Cannot read record as a number is out of range: current value is ${text}`,
    );
  }
  return value;
}
