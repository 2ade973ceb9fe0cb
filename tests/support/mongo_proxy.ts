/**
 * A proxy that speaks MongoDB's wire protocol: it notes what clients send, loses requests and replies
 * on purpose, and lets one command through at a time.
 *
 * The last is what makes FerretDB 1.24 on SQLite fit for tests of concurrency. It reads documents,
 * compares and writes them back in separate steps, so that two conditional updates at the same time may
 * both apply (`updateDocument` in its `internal/handler/msg_update.go`); in mongod an update of one
 * document is atomic.
 *
 * @module
 */
import { Buffer } from "node:buffer";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { BSON } from "mongodb";

/** A command as a client sent it, its name first. */
export type SentCommand = Record<string, unknown>;

/** What a command does. */
export function nameOf(command: SentCommand): string {
  return Object.keys(command)[0]!;
}

interface Rule {
  readonly drop: "request" | "reply";
  readonly matches: (command: SentCommand) => boolean;
  timesLeft: number;
}

/** What drivers send on their own account. */
const CHATTER = ["hello", "isMaster", "ismaster", "ping", "endSessions", "buildInfo"];

/** Starts a proxy in front of a server on loopback; disposing it closes every socket. */
export async function startMongoProxy(targetPort: number): Promise<MongoProxy> {
  const proxy = new MongoProxy(targetPort);
  await proxy.listen();
  return proxy;
}

export class MongoProxy implements AsyncDisposable {
  /** What went through, resends included. */
  readonly sent: SentCommand[] = [];
  readonly #targetPort: number;
  readonly #server: Server = createServer((client) => this.#accept(client));
  readonly #sockets = new Set<Socket>();
  #rules: Rule[] = [];
  #turn: Promise<unknown> = Promise.resolve();

  constructor(targetPort: number) {
    this.#targetPort = targetPort;
  }

  get url(): string {
    return `mongodb://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
  }

  /** Runs the next `times` commands that match, and cuts the connection instead of answering. */
  dropReplyIf(matches: Rule["matches"], times = 1): void {
    this.#rules.push({ drop: "reply", matches, timesLeft: times });
  }

  /** Cuts the connection at the next `times` commands that match instead of running them. */
  dropRequestIf(matches: Rule["matches"], times = 1): void {
    this.#rules.push({ drop: "request", matches, timesLeft: times });
  }

  /** Forgets the faults that wait for a command. */
  heal(): void {
    this.#rules = [];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  #accept(client: Socket): void {
    const server = connect({ port: this.#targetPort, host: "127.0.0.1" });
    let replied: ((message: Buffer | undefined) => void) | undefined;
    for (const socket of [client, server]) {
      this.#sockets.add(socket);
      socket.setNoDelay(true);
      socket.on("error", () => {});
      socket.once("close", () => {
        this.#sockets.delete(socket);
        replied?.(undefined);
        client.destroy();
        server.destroy();
      });
    }
    splitMessages(server, (message) => replied?.(message));
    splitMessages(client, (message) => {
      this.#turn = this.#turn.then(async () => {
        const command = commandOf(message);
        const fault = command && this.#note(command);
        if (fault === "request" || client.destroyed) return client.destroy();
        const reply = await new Promise<Buffer | undefined>((resolve) => {
          replied = resolve;
          server.write(message);
        });
        replied = undefined;
        if (fault === "reply" || reply === undefined) return client.destroy();
        client.write(command ? reply : this.#introduce(reply));
      });
    });
  }

  /** Says in the reply to `hello` that this is a replica set, so that the driver resends and has sessions. */
  #introduce(reply: Buffer): Buffer {
    if (reply.readInt32LE(12) !== 2013) return reply;
    const hello = BSON.deserialize(reply.subarray(21));
    if (hello["isWritablePrimary"] !== true || hello["setName"] !== undefined) return reply;
    const { host } = new URL(this.url);
    const body = BSON.serialize({ ...hello, setName: "proxy", hosts: [host], me: host });
    const header = Buffer.from(reply.subarray(0, 21));
    header.writeInt32LE(21 + body.length, 0);
    return Buffer.concat([header, body]);
  }

  #note(command: SentCommand): Rule["drop"] | undefined {
    this.sent.push(command);
    const rule = this.#rules.find((one) => one.timesLeft > 0 && one.matches(command));
    if (rule) rule.timesLeft--;
    return rule?.drop;
  }
}

/** The wire protocol: every message begins with its length. */
function splitMessages(socket: Socket, onMessage: (message: Buffer) => void): void {
  let bytes = Buffer.alloc(0);
  socket.on("data", (chunk) => {
    bytes = Buffer.concat([bytes, chunk]);
    while (bytes.length >= 4 && bytes.length >= bytes.readInt32LE(0)) {
      const length = bytes.readInt32LE(0);
      onMessage(bytes.subarray(0, length));
      bytes = bytes.subarray(length);
    }
  });
}

/** OP_MSG (2013) is a header of 16 bytes, 4 bytes of flags, and sections; kind 0 is the command. */
function commandOf(message: Buffer): SentCommand | undefined {
  if (message.readInt32LE(12) !== 2013) return undefined;
  const command = BSON.deserialize(message.subarray(21, 21 + message.readInt32LE(21)));
  return CHATTER.includes(nameOf(command)) ? undefined : command;
}
