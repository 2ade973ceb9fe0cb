import { StorageError } from "@holdfast/lock";
import { type Register, RegisterStorage, type Versioned } from "@holdfast/lock/register";

/** Leases in etcd, over the JSON gateway of its version 3. */
export class EtcdStorage extends RegisterStorage<string> {
  constructor(url: string, options: { readonly maxClockSkewMs?: number } = {}) {
    super(etcdRegister(url), { serverTime: false }, { pollMs: { min: 50, max: 1000 }, ...options });
  }
}

/** A value's version is its `mod_revision`, from a counter of the whole cluster; no value has 0. */
function etcdRegister(url: string): Register<string> {
  const keyOf = (name: string) => `holdfast/${encodeURIComponent(name)}`;
  return {
    absent: "0",
    key: keyOf,
    async read(name, { signal }) {
      const key = btoa(keyOf(name));
      return versioned(await post(`${url}/v3/kv/range`, { key }, keyOf(name), signal));
    },
    async write(name, next, version, _change, { signal }) {
      const key = btoa(keyOf(name));
      const bytes = Array.from(new TextEncoder().encode(next.value), (b) => String.fromCharCode(b));
      const reply = await post(
        `${url}/v3/kv/txn`,
        {
          compare: [{ key, target: "MOD", result: "EQUAL", mod_revision: version }],
          success: [{ request_put: { key, value: btoa(bytes.join("")) } }],
          failure: [{ request_range: { key } }],
        },
        keyOf(name),
        signal,
      );
      return reply.succeeded
        ? { ok: true, version: reply.header.revision }
        : { ok: false, current: versioned(reply.responses![0]!.response_range) };
    },
  };
}

/** What is used of a reply to a range request, and of one to a transaction. */
interface Reply {
  readonly kvs?: readonly { readonly value?: string; readonly mod_revision: string }[];
  readonly succeeded?: boolean;
  readonly header: { readonly revision: string };
  readonly responses?: readonly { readonly response_range: Reply }[];
}

async function post(url: string, body: object, key: string, signal?: AbortSignal): Promise<Reply> {
  const failure = `Cannot use key "${key}" as etcd must answer`;
  let status = 0;
  try {
    const init = { method: "POST", body: JSON.stringify(body), signal: signal ?? null };
    const reply = await fetch(url, init);
    const text = await reply.text();
    if (reply.ok) return JSON.parse(text);
    status = reply.status;
  } catch (cause) {
    throw signal?.aborted ? cause : new StorageError(failure, { transient: true, cause });
  }
  const transient = status >= 500 || status === 429;
  throw new StorageError(`${failure}: current value is HTTP ${status}`, { transient });
}

function versioned({ kvs }: Reply): Versioned<string> {
  if (!kvs?.[0]) return { value: null, version: "0" };
  const bytes = Uint8Array.from(atob(kvs[0].value ?? ""), (char) => char.charCodeAt(0));
  return { value: new TextDecoder().decode(bytes), version: kvs[0].mod_revision };
}
