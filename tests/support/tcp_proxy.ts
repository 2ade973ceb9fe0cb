/**
 * A proxy between a client and a server on loopback that breaks connections on request.
 *
 * It works on bytes and knows no protocol: a *request* is one chunk of bytes from the client. Use
 * it where a client has one request in flight per connection, otherwise "the next reply" may be
 * that of an earlier request. Nothing is held back for a slow reader: it is made for tests.
 *
 * @module
 */

import type { Buffer } from "node:buffer";
import { connect, createServer, type Server, type Socket } from "node:net";
import { freePort } from "../../scripts/services/service.ts";

/** Options of {@linkcode startTcpProxy}. */
export interface TcpProxyOptions {
  /** The port on 127.0.0.1 to forward to. */
  readonly targetPort: number;
}

/** Says whether a fault applies to these bytes of one request. */
export type RequestMatcher = (request: Uint8Array) => boolean;

/** What one fault proxy has seen so far. */
export interface TcpProxyCounters {
  /** Connections accepted since the start. */
  connections: number;
  /** Requests and replies that were dropped on purpose. */
  dropped: number;
  /** Bytes forwarded from clients to the server. */
  bytesToServer: number;
  /** Bytes forwarded from the server to clients. */
  bytesToClient: number;
}

interface Rule {
  readonly drop: "request" | "reply";
  readonly matches: RequestMatcher;
  timesLeft: number;
}

type Direction = "toServer" | "toClient";

/** A running fault proxy; disposing it closes every socket. */
export interface TcpProxy extends AsyncDisposable {
  readonly host: "127.0.0.1";
  readonly port: number;
  readonly counters: Readonly<TcpProxyCounters>;
  /** How long each chunk is held back, per direction; 0 at the start. */
  readonly delayMs: Record<Direction, number>;
  /** Destroys all open connections. */
  cutAll(): void;
  /** Refuses new connections (ECONNREFUSED), or accepts them again; open ones go on. */
  refuse(on: boolean): Promise<void>;
  /** Holds all bytes back in both directions, or lets what was held back go on. */
  hang(on: boolean): void;
  /** Forwards the next request, waits for the reply, and cuts the connection instead of passing it on. */
  dropNextReply(): void;
  /** As `dropNextReply()`, for the next `times` requests that match. */
  dropReplyIf(matches: RequestMatcher, times?: number): void;
  /** Cuts the connection at the next request instead of forwarding it. */
  dropNextRequest(): void;
  /** As `dropNextRequest()`, for the next `times` requests that match. */
  dropRequestIf(matches: RequestMatcher, times?: number): void;
  /** Ends every fault and forgets the ones that wait for a request. */
  heal(): Promise<void>;
}

/** Starts a fault proxy in front of a server on loopback. */
export async function startTcpProxy(options: TcpProxyOptions): Promise<TcpProxy> {
  const proxy = new FaultProxy(options.targetPort, await freePort());
  await proxy.refuse(false);
  return proxy;
}

class FaultProxy implements TcpProxy {
  readonly host = "127.0.0.1";
  readonly port: number;
  readonly counters = { connections: 0, dropped: 0, bytesToServer: 0, bytesToClient: 0 };
  readonly delayMs: Record<Direction, number> = { toServer: 0, toClient: 0 };
  readonly #targetPort: number;
  readonly #connections = new Set<Connection>();
  #rules: Rule[] = [];
  #isHanging = false;
  #server: Server | undefined;
  #serverClosed: Promise<void> = Promise.resolve();

  constructor(targetPort: number, port: number) {
    this.#targetPort = targetPort;
    this.port = port;
  }

  get isHanging(): boolean {
    return this.#isHanging;
  }

  cutAll(): void {
    for (const connection of this.#connections) connection.cut();
  }

  async refuse(on: boolean): Promise<void> {
    if (on === (this.#server === undefined)) return;
    if (on) {
      // Only the listening socket closes now: the event comes after the last open connection.
      this.#server?.close();
      this.#server = undefined;
    } else {
      const server = createServer((client) => this.#accept(client));
      const closed = whenClosed(server);
      this.#serverClosed = Promise.all([this.#serverClosed, closed]).then(() => {});
      this.#server = server;
      await listen(server, this.port);
    }
  }

  hang(on: boolean): void {
    this.#isHanging = on;
    for (const connection of this.#connections) connection.flush();
  }

  dropNextReply(): void {
    this.dropReplyIf(() => true);
  }

  dropReplyIf(matches: RequestMatcher, times = 1): void {
    this.#rules.push({ drop: "reply", matches, timesLeft: times });
  }

  dropNextRequest(): void {
    this.dropRequestIf(() => true);
  }

  dropRequestIf(matches: RequestMatcher, times = 1): void {
    this.#rules.push({ drop: "request", matches, timesLeft: times });
  }

  async heal(): Promise<void> {
    this.#rules = [];
    this.delayMs.toServer = this.delayMs.toClient = 0;
    this.hang(false);
    await this.refuse(false);
  }

  /** Finds the fault for this request, and uses it up. */
  takeRule(request: Uint8Array): Rule["drop"] | undefined {
    const rule = this.#rules.find((one) => one.timesLeft > 0 && one.matches(request));
    if (rule !== undefined) rule.timesLeft--;
    return rule?.drop;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.refuse(true);
    const closed = [...this.#connections].map((connection) => connection.closed);
    this.cutAll();
    await Promise.all([...closed, this.#serverClosed]);
  }

  #accept(client: Socket): void {
    // The operating system may have accepted it before we began to refuse.
    if (this.#server === undefined) return void client.destroy();
    this.counters.connections++;
    const server = connect({ port: this.#targetPort, host: "127.0.0.1" });
    const connection = new Connection(this, client, server);
    this.#connections.add(connection);
    connection.closed.then(() => this.#connections.delete(connection));
  }
}

/** One client's connection and the proxy's own connection to the server for it. */
class Connection {
  readonly closed: Promise<unknown>;
  readonly #proxy: FaultProxy;
  readonly #client: Socket;
  readonly #server: Socket;
  readonly #pipes: readonly Pipe[];
  #dropsReply = false;

  constructor(proxy: FaultProxy, client: Socket, server: Socket) {
    this.#proxy = proxy;
    this.#client = client;
    this.#server = server;
    const toServer = new Pipe(proxy, "toServer", server);
    const toClient = new Pipe(proxy, "toClient", client);
    this.#pipes = [toServer, toClient];
    client.on("data", (bytes) => this.#request(bytes, toServer));
    server.on("data", (bytes) => this.#reply(bytes, toClient));
    client.once("end", () => toServer.push("end"));
    server.once("end", () => toClient.push("end"));
    for (const socket of [client, server]) {
      socket.setNoDelay(true);
      socket.on("error", () => this.cut());
    }
    this.closed = Promise.all([whenClosed(client), whenClosed(server)]);
  }

  cut(): void {
    for (const pipe of this.#pipes) pipe.stop();
    this.#client.destroy();
    this.#server.destroy();
  }

  flush(): void {
    for (const pipe of this.#pipes) pipe.flush();
  }

  #request(bytes: Buffer, toServer: Pipe): void {
    const drop = this.#proxy.takeRule(bytes);
    if (drop === "request") return this.#drop();
    if (drop === "reply") this.#dropsReply = true;
    toServer.push(bytes);
  }

  #reply(bytes: Buffer, toClient: Pipe): void {
    if (this.#dropsReply) return this.#drop();
    toClient.push(bytes);
  }

  #drop(): void {
    this.#proxy.counters.dropped++;
    this.cut();
  }
}

/** The bytes on their way in one direction of one connection, in order. */
class Pipe {
  readonly #proxy: FaultProxy;
  readonly #direction: Direction;
  readonly #target: Socket;
  #queue: { readonly chunk: Buffer | "end"; readonly dueAtMs: number }[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(proxy: FaultProxy, direction: Direction, target: Socket) {
    this.#proxy = proxy;
    this.#direction = direction;
    this.#target = target;
  }

  push(chunk: Buffer | "end"): void {
    const dueAtMs = performance.now() + this.#proxy.delayMs[this.#direction];
    this.#queue.push({ chunk, dueAtMs });
    this.flush();
  }

  /** Sends what is due, and comes back when the next chunk is. */
  flush(): void {
    clearTimeout(this.#timer);
    while (!this.#proxy.isHanging && this.#queue[0] !== undefined) {
      const waitMs = this.#queue[0].dueAtMs - performance.now();
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.flush(), waitMs);
        return;
      }
      this.#send(this.#queue[0].chunk);
      this.#queue.shift();
    }
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#queue = [];
  }

  #send(chunk: Buffer | "end"): void {
    if (chunk === "end") {
      this.#target.end();
      return;
    }
    const counter = this.#direction === "toServer" ? "bytesToServer" : "bytesToClient";
    this.#proxy.counters[counter] += chunk.length;
    this.#target.write(chunk);
  }
}

function listen(server: Server, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", resolve);
  });
}

function whenClosed(closable: Socket | Server): Promise<void> {
  return new Promise((resolve) => closable.once("close", () => resolve()));
}
