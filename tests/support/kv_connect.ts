/**
 * A remote Deno KV in memory: a server for version 3 of the KV Connect protocol (denoland/denokv,
 * proto/kv-connect.md and proto/schema/datapath.proto), as much of it as a client with bytes for values
 * needs, and with the fault that matters: a commit that is applied and whose reply is lost.
 *
 * @module
 */
import { encodeHex, fieldsOf, ProtoWriter } from "./protobuf.ts";

/** A running server. */
export interface KvConnectServer {
  /** For `Deno.openKv`; any access token will do. */
  readonly url: string;
  /** How many requests there were, by path. */
  readonly requests: Map<string, number>;
  /** The next commits are applied and answered with status 503, which clients take for "send it again". */
  loseReplies(count: number): void;
  /** Ends all watches, as a server that restarts does. */
  endWatches(): void;
  /** Answers all but the first request of a client with this status. */
  refuse(status: number | undefined): void;
  /** Stops. */
  close(): Promise<void>;
}

interface Row {
  readonly key: Uint8Array;
  readonly value: Uint8Array;
  readonly encoding: number;
  readonly versionstamp: Uint8Array;
}

interface Watcher {
  readonly keys: readonly Uint8Array[];
  readonly send: (chunk: Uint8Array) => void;
  readonly end: () => void;
}

const SUCCESS = 1;
const CHECK_FAILURE = 2;
const M_SET = 1;
const M_DELETE = 2;

/** Starts a server on a free port. */
export function startKvConnect(): KvConnectServer {
  const rows = new Map<string, Row>();
  const watchers = new Set<Watcher>();
  const requests = new Map<string, number>();
  let version = 0;
  let repliesToLose = 0;
  let refusal: number | undefined;

  const server = Deno.serve(
    {
      port: 0,
      hostname: "127.0.0.1",
      onListen: () => {},
      onError: () => new Response(null, { status: 500 }),
    },
    async (request) => {
      const { pathname } = new URL(request.url);
      requests.set(pathname, (requests.get(pathname) ?? 0) + 1);
      const body = new Uint8Array(await request.arrayBuffer());
      if (refusal !== undefined && pathname !== "/") {
        return new Response("refused by the test", { status: refusal });
      }
      switch (pathname) {
        case "/":
          return Response.json({
            version: 3,
            databaseId: "3f5c7b3e-8a54-4a3f-9f0c-0d6c1f6a1b11",
            endpoints: [{ url: "/v2", consistency: "strong" }],
            token: "token",
            expiresAt: "2999-01-01T00:00:00Z",
          });
        case "/v2/snapshot_read":
          return reply(read(body));
        case "/v2/atomic_write": {
          const written = write(body);
          if (repliesToLose === 0) return reply(written);
          repliesToLose--;
          return new Response("the reply is lost", { status: 503 });
        }
        case "/v2/watch":
          return watch(body);
        default:
          return new Response("no such path", { status: 404 });
      }
    },
  );

  function read(body: Uint8Array): Uint8Array<ArrayBuffer> {
    const out = new ProtoWriter();
    for (const range of fieldsOf(body).messages(1)) {
      const [start, end] = [encodeHex(range.bytes(1)), encodeHex(range.bytes(2))];
      const found = [...rows].filter(([key]) => start <= key && key < end)
        .sort(([a], [b]) => a < b ? -1 : 1);
      if (range.number(4)) found.reverse();
      const output = new ProtoWriter();
      for (const [, row] of found.slice(0, range.number(3))) output.bytes(1, entry(row));
      out.bytes(1, output.finish());
    }
    return out.number(4, 1).number(8, SUCCESS).finish();
  }

  function write(body: Uint8Array): Uint8Array<ArrayBuffer> {
    const { messages } = fieldsOf(body);
    for (const check of messages(1)) {
      const row = rows.get(encodeHex(check.bytes(1)));
      const versionstamp = row ? encodeHex(row.versionstamp) : "";
      if (versionstamp !== encodeHex(check.bytes(2))) {
        return new ProtoWriter().number(1, CHECK_FAILURE).finish();
      }
    }
    const versionstamp = new Uint8Array(10);
    new DataView(versionstamp.buffer).setBigUint64(0, BigInt(++version));
    const changed = new Set<string>();
    for (const mutation of messages(2)) {
      const key = mutation.bytes(1);
      const value = fieldsOf(mutation.bytes(2));
      const type = mutation.number(3);
      if (type === M_DELETE) rows.delete(encodeHex(key));
      else if (type === M_SET) {
        rows.set(encodeHex(key), {
          key,
          value: value.bytes(1),
          encoding: value.number(2),
          versionstamp,
        });
      } else throw new Error(`Mutations of type ${type} are not made here`);
      changed.add(encodeHex(key));
    }
    for (const watcher of watchers) {
      if (watcher.keys.some((key) => changed.has(encodeHex(key)))) {
        watcher.send(watched(watcher.keys));
      }
    }
    return new ProtoWriter().number(1, SUCCESS).bytes(2, versionstamp).finish();
  }

  function watch(body: Uint8Array): Response {
    const keys = fieldsOf(body).messages(1).map((key) => key.bytes(1));
    let watcher: Watcher;
    const stream = new ReadableStream<Uint8Array>({
      start(controller) {
        watcher = {
          keys,
          send: (chunk) => controller.enqueue(chunk),
          end: () => {
            watchers.delete(watcher);
            controller.close();
          },
        };
        watchers.add(watcher);
        watcher.send(watched(keys));
      },
      cancel: () => void watchers.delete(watcher),
    });
    return reply(stream, "application/octet-stream");
  }

  /** All watched keys as they are now, with their length in front. */
  function watched(keys: readonly Uint8Array[]): Uint8Array {
    const out = new ProtoWriter().number(1, SUCCESS);
    for (const key of keys) {
      const row = rows.get(encodeHex(key));
      const output = new ProtoWriter().number(1, 1);
      if (row) output.bytes(2, entry(row));
      out.bytes(2, output.finish());
    }
    const message = out.finish();
    const framed = new Uint8Array(4 + message.length);
    new DataView(framed.buffer).setUint32(0, message.length, true);
    framed.set(message, 4);
    return framed;
  }

  return {
    url: `http://127.0.0.1:${server.addr.port}`,
    requests,
    loseReplies: (count) => void (repliesToLose = count),
    endWatches: () => [...watchers].forEach((w) => w.end()),
    refuse: (status) => void (refusal = status),
    async close() {
      for (const watcher of [...watchers]) watcher.end();
      await server.shutdown();
    },
  };
}

function entry(row: Row): Uint8Array {
  return new ProtoWriter().bytes(1, row.key).bytes(2, row.value).number(3, row.encoding)
    .bytes(4, row.versionstamp).finish();
}

function reply(
  body: Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>,
  type = "application/x-protobuf",
): Response {
  return new Response(body, { headers: { "content-type": type } });
}
