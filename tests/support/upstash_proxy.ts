/**
 * Upstash's REST protocol in front of a real redis-server, so that tests drive the real
 * `@upstash/redis` client, with its retries, base64 and auto-pipelining, against a real Lua engine,
 * with faults in between. Runs under Deno, Bun and Node.
 *
 * It speaks what https://upstash.com/docs/redis/features/restapi states and client 1.39 sends. It
 * differs from the product where Redis does: no replicas, no refusal of undeclared keys; and it
 * leaves out the path form (`GET /set/foo/bar`).
 *
 * @module
 */

import { Buffer } from "node:buffer";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

/**
 * What can go wrong with a request:
 *
 * - `drop-request`: the socket is destroyed, nothing ran; `drop-reply`: the same after it ran.
 * - `hang`: nothing runs or is answered until the proxy is disposed; `hang-after`: the same, ran.
 * - `delay`: runs after `ms`, even if the client has given up; `delay-reply`: answers after `ms`.
 * - `truncate`: runs, sends the headers and half of the body, then destroys the socket.
 * - `error-500` (JSON), `error-502-html` (a gateway's page), `error-401`, `quota`: that response.
 * - `sse-refuse`: a subscription is refused; `sse-cut`: all open streams end, at once and once.
 *
 * Deno's `fetch` repeats a POST once if a *reused* connection closes without a response, so there a
 * single `drop-request` or `drop-reply` is repaired unseen unless the connection is new.
 */
export type UpstashFault =
  | "drop-request"
  | "drop-reply"
  | "hang"
  | "hang-after"
  | "delay"
  | "delay-reply"
  | "truncate"
  | "error-500"
  | "error-502-html"
  | "error-401"
  | "quota"
  | "sse-refuse"
  | "sse-cut";

/** Which requests a fault hits, and how. */
export interface UpstashFaultOptions {
  /** Requests that it hits before it is spent: 1 unless told, `Infinity` allowed. */
  readonly times?: number;
  /**
   * Hits only a request with such a command (its name in upper case). Without it any request that
   * carries commands, never a subscription; `sse-refuse` the reverse. What strikes after the
   * commands ran does not apply to a subscription.
   */
  readonly match?: (command: string[]) => boolean;
  /** Length of `delay` and `delay-reply` in milliseconds: 100 unless told. */
  readonly ms?: number;
  /** The commands run before an error response, as behind a gateway that gave up waiting. */
  readonly executed?: boolean;
  /** HTTP status of `quota` and `sse-refuse`: 400 unless told. Upstash documents none for a quota. */
  readonly status?: number;
  /** Error text of `quota` and `sse-refuse`. */
  readonly message?: string;
}

/** A fault that was asked for. Disposing it takes back what is not spent. */
export interface ArmedUpstashFault extends Disposable {
  /** Requests hit so far, so that a test can tell a fault that never fired. */
  readonly hits: number;
}

/** What the clients have cost since the start or the last `reset()`. */
export interface UpstashCounters {
  /** HTTP requests, refused ones and subscriptions included, CORS preflights not. */
  requests: number;
  /** Billed commands: each one of a pipeline, but none inside Lua (`INFO commandstats` has those). */
  commands: number;
  /** Commands handed to redis by upper-case name, free ones included, `MULTI` and `EXEC` not. */
  byName: Record<string, number>;
  reset(): void;
}

export interface UpstashProxyOptions {
  /** Port of the redis-server on 127.0.0.1. */
  readonly redisPort: number;
  /** What clients must show as their token. */
  readonly token?: string;
  /** Take `#!lua flags=allow-key-locking` as Upstash does (default), or let Redis refuse it. */
  readonly keyLocking?: boolean;
}

/** Starts a proxy on a free port of 127.0.0.1; disposing it leaves no socket and no timer. */
export async function startUpstashProxy(options: UpstashProxyOptions): Promise<UpstashProxy> {
  const proxy = new UpstashProxy(options);
  await proxy.listen();
  return proxy;
}

export class UpstashProxy implements AsyncDisposable {
  readonly token: string;
  readonly counters: UpstashCounters = {
    requests: 0,
    commands: 0,
    byName: {},
    reset() {
      Object.assign(this, { requests: 0, commands: 0, byName: {} });
    },
  };
  readonly #redisPort: number;
  readonly #translate: (command: string[]) => string[];
  readonly #server = createServer((request, response) => this.#serve(request, response));
  readonly #sockets = new Set<Socket>();
  readonly #streams = new Set<ServerResponse>();
  readonly #working = new Set<Promise<void>>();
  readonly #stopped = new AbortController();
  readonly #connections = new Set<RedisConnection>();
  #idle: RedisConnection[] = [];
  #faults: Fault[] = [];
  #down = false;
  #answered = 0;

  constructor(options: UpstashProxyOptions) {
    this.token = options.token ?? "upstash-proxy-token";
    this.#redisPort = options.redisPort;
    this.#translate = options.keyLocking ?? true ? keyLockingTranslator() : (command) => command;
    // An idle connection closed by the server would look like a lost reply to the next request.
    this.#server.keepAliveTimeout = 0;
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
      if (this.#down) socket.destroy();
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Subscriptions that are open now. */
  get openStreams(): number {
    return this.#streams.size;
  }

  async listen(): Promise<void> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
  }

  /** Arms a fault. One fault hits a request: the oldest that fits and is not spent. */
  fault(kind: UpstashFault, options: UpstashFaultOptions = {}): ArmedUpstashFault {
    const fault = {
      ...options,
      kind,
      left: options.times ?? 1,
      hits: 0,
      [Symbol.dispose]: () => void (fault.left = 0),
    };
    if (kind !== "sse-cut") this.#faults = [...this.#faults.filter(({ left }) => left > 0), fault];
    else {
      fault.hits = this.#streams.size;
      for (const stream of this.#streams) stream.end();
    }
    return fault;
  }

  /** Down: every connection is destroyed, open ones at once; what redis has received still runs. */
  down(isDown: boolean): void {
    this.#down = isDown;
    if (isDown) { for (const socket of this.#sockets) socket.destroy(); }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort();
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.down(true);
    const connections = [...this.#connections].map((connection) => connection.close());
    await Promise.all([closed, ...connections, ...this.#working]);
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const work = this.#handle(request, response).catch((error) => {
      // Redis is gone; or the proxy is being disposed, and nobody hears this.
      if (!response.headersSent) send(response, 500, { error: error.message });
    }).finally(() => this.#working.delete(work));
    this.#working.add(work);
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    for (const [name, value] of Object.entries(CORS)) response.setHeader(name, value);
    if (request.method === "OPTIONS") return void response.writeHead(204).end();
    this.counters.requests += 1;
    const call = readCall(request, await readBody(request), this.token);
    if ("status" in call) return send(response, call.status, call.body);
    const fault = this.#takeFault(call);
    if (fault?.kind === "drop-request") return void request.socket.destroy();
    if (fault?.kind === "hang") return;
    if (fault?.kind === "delay") await this.#sleep(fault);
    const failure = fault && failureOf(fault);
    if (failure && !fault.executed) return send(response, failure.status, failure.body);
    if (call.streaming) return this.#subscribe(call, response);
    const answer = await this.#execute(call);
    if (fault?.kind === "drop-reply") return void request.socket.destroy();
    if (fault?.kind === "hang-after") return;
    if (fault?.kind === "delay-reply") await this.#sleep(fault);
    response.setHeader("upstash-sync-token", `${this.port}:${this.#answered += 1}`);
    const { status, body } = failure ?? answer;
    send(response, status, body, fault?.kind === "truncate");
  }

  #takeFault({ commands, streaming }: Call): Fault | undefined {
    const fault = this.#faults.find(({ kind, match, left }) =>
      left > 0 && !(streaming ? AFTER_RUNNING.has(kind) : kind === "sse-refuse") &&
      (match ? commands.some(match) : streaming === (kind === "sse-refuse"))
    );
    if (fault) {
      fault.left -= 1;
      fault.hits += 1;
    }
    return fault;
  }

  async #sleep({ ms = 100 }: Fault): Promise<void> {
    await sleep(ms, undefined, { signal: this.#stopped.signal });
  }

  async #execute({ endpoint, commands, base64 }: Call): Promise<Answer> {
    this.#count(commands);
    // Redis answers an unknown name with an error, in its place, and aborts a transaction over it.
    const sent = commands.map((it) => REFUSED.has(it[0]!) ? [`${it[0]} over REST`] : it)
      .map(this.#translate);
    if (endpoint === "multi-exec") {
      const exec = (await this.#run([["MULTI"], ...sent, ["EXEC"]])).at(-1)!;
      if (!Array.isArray(exec)) return { status: 400, body: toItem(exec, base64) };
      return { status: 200, body: exec.map((reply) => toItem(reply, base64)) };
    }
    const items = (await this.#run(sent)).map((reply) => toItem(reply, base64));
    if (endpoint === "pipeline") return { status: 200, body: items };
    return { status: "error" in items[0]! ? 400 : 200, body: items[0] };
  }

  /** One redis connection per request, so that two pipelines interleave as they do at Upstash. */
  async #run(commands: string[][]): Promise<Reply[]> {
    const connection = this.#idle.pop() ?? this.#connect();
    const replies: Reply[] = [];
    await new Promise<void>((resolve, reject) => {
      connection.onClose = reject;
      connection.onReply = (reply) => replies.push(reply) === commands.length && resolve();
      connection.send(commands);
    });
    this.#idle.push(connection);
    return replies;
  }

  #connect(): RedisConnection {
    this.#stopped.signal.throwIfAborted();
    const connection = new RedisConnection(this.#redisPort);
    this.#connections.add(connection);
    connection.closed.then(() => {
      this.#connections.delete(connection);
      this.#idle = this.#idle.filter((it) => it !== connection);
    });
    return connection;
  }

  #subscribe({ commands }: Call, response: ServerResponse): void {
    this.#count(commands);
    const connection = this.#connect();
    this.#streams.add(response);
    response.on("close", () => {
      this.#streams.delete(response);
      connection.close();
    });
    connection.onClose = ({ message }) =>
      response.headersSent ? response.end() : send(response, 500, { error: message });
    connection.onReply = (push) => {
      if (!response.headersSent) response.writeHead(200, { "content-type": "text/event-stream" });
      // The client wants the literal "data: " and never decodes base64 here.
      response.write(`data: ${(toJson(push, false) as unknown[]).join(",")}\n\n`);
    };
    connection.send(commands);
  }

  #count(commands: string[][]): void {
    for (const [name = ""] of commands) {
      this.counters.byName[name] = (this.counters.byName[name] ?? 0) + 1;
      if (!FREE.has(name)) this.counters.commands += 1;
    }
  }
}

interface Fault extends UpstashFaultOptions {
  readonly kind: UpstashFault;
  left: number;
  hits: number;
}

/** A request understood: its commands as text, their names in upper case. */
interface Call {
  readonly endpoint: string;
  readonly commands: string[][];
  readonly streaming: boolean;
  readonly base64: boolean;
}

interface Answer {
  readonly status: number;
  readonly body: unknown;
}

const ENDPOINTS = new Set(["", "pipeline", "multi-exec", "subscribe", "psubscribe"]);
const AFTER_RUNNING = new Set(["drop-reply", "hang-after", "delay-reply", "truncate"]);

/** Not billed, says Upstash's pricing FAQ. */
const FREE = new Set("AUTH HELLO SELECT COMMAND CONFIG INFO PING RESET QUIT".split(" "));

/** What Upstash has not over REST, and what would spoil a pooled connection for the next request. */
const REFUSED = new Set(
  ("MULTI EXEC DISCARD WATCH UNWATCH SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE " +
    "BLPOP BRPOP BRPOPLPUSH BLMOVE BZPOPMIN BZPOPMAX MONITOR AUTH HELLO SELECT RESET QUIT CLIENT")
    .split(" "),
);

/** A browser page may send what client 1.39 sends, and may read the sync token. */
const CORS = {
  "access-control-allow-origin": "*",
  "access-control-allow-methods": "POST, OPTIONS",
  "access-control-allow-headers": "authorization, content-type, cache-control, upstash-encoding, " +
    "upstash-response-format, upstash-sync-token, upstash-telemetry-runtime, " +
    "upstash-telemetry-platform, upstash-telemetry-sdk, upstash-telemetry-retry",
  "access-control-expose-headers": "upstash-sync-token",
};

function failureOf({ kind, status = 400, message }: Fault): Answer | undefined {
  switch (kind) {
    case "error-500":
      return { status: 500, body: { error: "ERR internal error" } };
    case "error-502-html":
      return { status: 502, body: "<html><body><h1>502 Bad Gateway</h1></body></html>" };
    case "error-401":
      return UNAUTHORIZED;
    case "quota":
      return { status, body: { error: message ?? "ERR max requests limit exceeded" } };
    case "sse-refuse":
      return { status, body: { error: message ?? "ERR Command is not available: 'SUBSCRIBE'" } };
  }
}

const UNAUTHORIZED: Answer = {
  status: 401,
  body: { error: "WRONGPASS invalid or missing auth token" },
};

async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

/** Reads a request, or says why it is refused before anything runs. */
function readCall(request: IncomingMessage, body: string, token: string): Call | Answer {
  const { pathname, searchParams } = new URL(request.url ?? "/", "http://proxy");
  const bearer = request.headers.authorization?.replace(/^Bearer /i, "");
  if ((bearer ?? searchParams.get("_token")) !== token) return UNAUTHORIZED;
  if (request.method !== "POST") return { status: 405, body: { error: "ERR method not allowed" } };
  const [endpoint = "", ...path] = pathname.slice(1).split("/");
  const streaming = endpoint === "subscribe" || endpoint === "psubscribe";
  if ((path.length > 0) !== streaming || !ENDPOINTS.has(endpoint)) {
    return { status: 404, body: { error: "ERR unknown path" } };
  }
  try {
    const parsed = streaming ? [endpoint, ...path.map(decodeURIComponent)] : JSON.parse(body);
    const commands = toCommands(streaming || endpoint === "" ? [parsed] : parsed);
    const base64 = request.headers["upstash-encoding"] === "base64";
    return { endpoint, commands, streaming, base64 };
  } catch (error) {
    return { status: 400, body: { error: `ERR failed to parse request: ${error}` } };
  }
}

function toCommands(list: unknown): string[][] {
  if (!Array.isArray(list) || list.length === 0) throw new TypeError("no commands");
  return list.map((command) => {
    if (!Array.isArray(command) || command.length === 0) throw new TypeError("empty command");
    if (command.some((it) => typeof it === "object")) throw new TypeError("argument not a scalar");
    const [name, ...args] = command.map(String);
    return [name!.toUpperCase(), ...args];
  });
}

function send(response: ServerResponse, status: number, body: unknown, truncated = false): void {
  const html = typeof body === "string";
  const bytes = Buffer.from(html ? body : JSON.stringify(body));
  response.writeHead(status, {
    "content-type": html ? "text/html" : "application/json",
    "content-length": bytes.length,
  });
  if (!truncated) response.end(bytes);
  else response.write(bytes.subarray(0, bytes.length >> 1), () => response.socket?.destroy());
}

/** Errors are never base64; nor is a plain `OK`, but inside an array the client decodes even that. */
function toItem(reply: Reply, base64: boolean): { result: unknown } | { error: string } {
  if (reply instanceof Error) return { error: reply.message };
  return { result: reply === "OK" ? "OK" : toJson(reply, base64) };
}

function toJson(reply: Reply, base64: boolean): unknown {
  if (Array.isArray(reply)) return reply.map((it) => toJson(it, base64));
  if (reply === null || typeof reply === "number") return reply;
  const bytes = Buffer.from(reply instanceof Error ? reply.message : reply);
  return bytes.toString(base64 ? "base64" : "utf8");
}

/**
 * Takes Upstash's `allow-key-locking` out of scripts, since Redis refuses a flag that it does not
 * know. What redis then caches is another text, so the SHA-1 that the client knows is remembered.
 */
function keyLockingTranslator(): (command: string[]) => string[] {
  const redisShas = new Map<string, string>();
  const sha1 = (text: string) => createHash("sha1").update(text).digest("hex");
  const toRedisSha = (sha: string) => redisShas.get(sha.toLowerCase()) ?? sha;
  const toRedisScript = (script: string) => {
    const plain = script.replace(
      /^(#!lua flags=\S*?)(,allow-key-locking|allow-key-locking,?)/,
      "$1",
    );
    if (plain !== script) redisShas.set(sha1(script), sha1(plain));
    return plain;
  };
  return (command) => {
    const [name = "", first = "", ...rest] = command;
    if (/^EVALSHA(_RO)?$/.test(name)) return [name, toRedisSha(first), ...rest];
    if (/^EVAL(_RO)?$/.test(name)) return [name, toRedisScript(first), ...rest];
    if (name !== "SCRIPT") return command;
    return [name, first, ...rest.map(/^load$/i.test(first) ? toRedisScript : toRedisSha)];
  };
}

/** A RESP2 reply: a status is a string, a bulk string a Buffer, an error an Error. */
type Reply = string | Buffer | number | null | Error | Reply[];

/** A connection to redis. Not a client library: requests and replies must map one to one. */
class RedisConnection {
  onReply: (reply: Reply) => unknown = () => {};
  onClose: (error: Error) => unknown = () => {};
  readonly closed: Promise<void>;
  readonly #socket: Socket;
  #unread: Buffer = Buffer.alloc(0);

  constructor(port: number) {
    this.#socket = connect({ port, host: "127.0.0.1", noDelay: true });
    let cause = new Error("Connection to redis closed");
    this.#socket.on("error", (error) => cause = error);
    this.#socket.on("data", (chunk) => this.#receive(chunk));
    this.closed = new Promise((resolve) =>
      this.#socket.on("close", () => {
        this.onClose(cause);
        resolve();
      })
    );
  }

  send(commands: string[][]): void {
    const bulk = (text: string) => `$${Buffer.byteLength(text)}\r\n${text}\r\n`;
    const encoded = commands.map((args) => `*${args.length}\r\n${args.map(bulk).join("")}`);
    this.#socket.write(encoded.join(""));
  }

  close(): Promise<void> {
    this.#socket.destroy();
    return this.closed;
  }

  #receive(chunk: Buffer): void {
    this.#unread = Buffer.concat([this.#unread, chunk]);
    for (let parsed; (parsed = parseReply(this.#unread, 0)) !== null;) {
      this.#unread = this.#unread.subarray(parsed.end);
      this.onReply(parsed.reply);
    }
  }
}

/** The reply that begins at `start` and where it ends, or null while bytes of it are missing. */
function parseReply(bytes: Buffer, start: number): { reply: Reply; end: number } | null {
  const lineEnd = bytes.indexOf("\r\n", start);
  if (lineEnd < 0) return null;
  const type = bytes.toString("latin1", start, start + 1);
  const line = bytes.toString("utf8", start + 1, lineEnd);
  let end = lineEnd + 2;
  if (type === "+") return { reply: line, end };
  if (type === "-") return { reply: new Error(line), end };
  if (type === ":") return { reply: Number(line), end };
  if (line === "-1") return { reply: null, end };
  if (type === "$") {
    const next = end + Number(line) + 2;
    return next > bytes.length ? null : { reply: bytes.subarray(end, next - 2), end: next };
  }
  const items: Reply[] = [];
  while (items.length < Number(line)) {
    const item = parseReply(bytes, end);
    if (item === null) return null;
    items.push(item.reply);
    end = item.end;
  }
  return { reply: items, end };
}
