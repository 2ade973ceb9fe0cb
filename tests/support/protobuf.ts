/**
 * The wire format of Protocol Buffers, for messages of whole numbers, bytes and messages.
 *
 * @module
 */

const VARINT = 0;
const BYTES = 2;

/** Writes one message. */
export class ProtoWriter {
  readonly #bytes: number[] = [];

  /** Adds a whole number; 0 is what an absent field means. */
  number(field: number, value: number): this {
    this.#varint(field * 8 + VARINT);
    this.#varint(value);
    return this;
  }

  /** Adds bytes, or a message. */
  bytes(field: number, value: Uint8Array): this {
    this.#varint(field * 8 + BYTES);
    this.#varint(value.length);
    for (const byte of value) this.#bytes.push(byte);
    return this;
  }

  /** The message. */
  finish(): Uint8Array<ArrayBuffer> {
    return Uint8Array.from(this.#bytes);
  }

  #varint(value: number): void {
    for (; value >= 0x80; value = Math.floor(value / 0x80)) this.#bytes.push(value % 0x80 + 0x80);
    this.#bytes.push(value);
  }
}

/** The fields of one message. */
export interface ProtoFields {
  /** The last value of a field of bytes; empty if absent. */
  bytes(field: number): Uint8Array;
  /** The last value of a number; 0 if absent. */
  number(field: number): number;
  /** All values of a repeated message. */
  messages(field: number): ProtoFields[];
}

/** Reads one message. */
export function fieldsOf(message: Uint8Array): ProtoFields {
  const numbers = new Map<number, number>();
  const parts = new Map<number, Uint8Array[]>();
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let factor = 1;; factor *= 0x80) {
      const byte = message[at++]!;
      value += (byte % 0x80) * factor;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.length) {
    const tag = varint();
    const field = Math.floor(tag / 8);
    if (tag % 8 === VARINT) numbers.set(field, varint());
    else if (tag % 8 === BYTES) {
      const length = varint();
      parts.set(field, [...parts.get(field) ?? [], message.slice(at, at += length)]);
    } else throw new Error(`Wire type ${tag % 8} is not read here`);
  }
  return {
    bytes: (field) => parts.get(field)?.at(-1) ?? new Uint8Array(),
    number: (field) => numbers.get(field) ?? 0,
    messages: (field) => (parts.get(field) ?? []).map(fieldsOf),
  };
}

/** Bytes as text that sorts as they do. */
export function encodeHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
