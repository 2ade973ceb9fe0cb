/**
 * A register in memory whose every request can go wrong, by a script.
 *
 * @module
 */
import { StorageError } from "../../src/core/errors.ts";
import type { Change, Register, Versioned, Write, Written } from "../../src/core/register.ts";
import type { ExecuteOptions } from "../../src/core/storage.ts";

/** What goes wrong with one write, or one read. */
export type RegisterFault =
  /** It never arrives, and the client learns of that. */
  | "lose-request"
  /** It is applied, and the client sees an error. */
  | "lose-reply"
  /** It is applied, and the product says that the version was another (a resend of our own write). */
  | "deny"
  /** Somebody else was faster by nothing but a new version. */
  | "conflict"
  /** A fenced transaction is open. */
  | "blocked"
  /** The product refuses, and will refuse again. */
  | "refuse";

/** What a register was asked. */
export interface RegisterRequest {
  readonly type: "read" | "glance" | "write";
  readonly name: string;
  readonly write?: Write;
  readonly change?: Change;
}

/** Options of a {@linkcode MemoryRegister}. */
export interface MemoryRegisterOptions {
  /** Whether an absent value has a version, so that the first acquire can be tried blindly. */
  readonly hasAbsent?: boolean;
  /** Whether a conflict hands over what is stored. */
  readonly handsOver?: boolean;
  /** Whether the text alone can be read. */
  readonly glances?: boolean;
  /** The server's clock, in milliseconds, where it has one. */
  readonly nowMs?: () => number;
}

/** Values that are shared by all clients. */
export class SharedValues {
  readonly values = new Map<string, { value: string; version: number }>();
  #lastVersion = 0;

  /** Stores a text behind everybody's back. */
  put(name: string, value: string): number {
    this.values.set(name, { value, version: ++this.#lastVersion });
    return this.#lastVersion;
  }
}

/** One client of shared values. */
export class MemoryRegister implements Register<number | null> {
  readonly absent: null | undefined;
  readonly glance?: (name: string) => Promise<string | null>;
  /** Everything that was asked, in order. */
  readonly requests: RegisterRequest[] = [];
  /** What goes wrong with the next writes; `undefined` for nothing. */
  readonly writeFaults: (RegisterFault | undefined)[] = [];
  /** What goes wrong with the next reads. */
  readonly readFaults: ("lose-request" | undefined)[] = [];
  /** Called before each request is looked at. */
  onRequest: ((request: RegisterRequest) => void) | undefined;
  readonly #shared: SharedValues;
  readonly #options: MemoryRegisterOptions;

  constructor(shared: SharedValues, options: MemoryRegisterOptions = {}) {
    this.#shared = shared;
    this.#options = options;
    if (options.hasAbsent ?? true) this.absent = null;
    if (options.glances) {
      this.glance = async (name) => {
        this.#note({ type: "glance", name });
        await Promise.resolve();
        return this.#current(name).value;
      };
    }
  }

  key(name: string): string {
    return `key:${name}`;
  }

  /** The types of the requests since the last call. */
  taken(): string {
    return this.requests.splice(0).map((r) => r.type).join(" ");
  }

  async read(name: string, _options: ExecuteOptions): Promise<Versioned<number | null>> {
    this.#note({ type: "read", name });
    await Promise.resolve();
    if (this.readFaults.shift()) throw lost(name);
    return this.#current(name);
  }

  async write(
    name: string,
    write: Write,
    version: number | null,
    change: Change,
    _options: ExecuteOptions,
  ): Promise<Written<number | null>> {
    this.#note({ type: "write", name, write, change });
    await Promise.resolve();
    const fault = this.writeFaults.shift();
    if (fault === "lose-request") throw lost(name);
    if (fault === "refuse") throw new StorageError("Cannot write: denied", { transient: false });
    if (fault === "blocked") return { ok: false, blocked: true };
    const stored = this.#shared.values.get(name);
    if (fault === "conflict" && stored) this.#shared.put(name, stored.value);
    const current = this.#current(name);
    if (current.version !== version) {
      return { ok: false, current: this.#options.handsOver ? current : undefined };
    }
    const next = this.#shared.put(name, write.value);
    if (fault === "lose-reply") throw lost(name);
    if (fault === "deny") {
      const written = this.#options.handsOver ? this.#current(name) : undefined;
      return { ok: false, current: written };
    }
    return { ok: true, version: next };
  }

  #note(request: RegisterRequest): void {
    this.requests.push(request);
    this.onRequest?.(request);
  }

  #current(name: string): Versioned<number | null> {
    const { nowMs } = this.#options;
    const stored = this.#shared.values.get(name) ?? { value: null, version: null };
    return nowMs ? { ...stored, nowUs: nowMs() * 1000 } : stored;
  }
}

function lost(name: string): StorageError {
  return new StorageError(`Cannot reach key "${name}"`, { transient: true });
}
