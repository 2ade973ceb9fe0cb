import { assert, assertEquals, assertRejects } from "@std/assert";
import { connect, createServer, type Server, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { startTcpProxy, type TcpProxy } from "./tcp_proxy.ts";

/** Answers each chunk `x` with `ok:x`, and remembers which ones it was asked to apply. */
class EchoServer implements AsyncDisposable {
  readonly applied: string[] = [];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  constructor() {
    this.#server = createServer((socket) => {
      socket.setNoDelay(true);
      this.#sockets.add(socket);
      socket.once("close", () => this.#sockets.delete(socket));
      socket.on("error", () => socket.destroy());
      socket.on("data", (bytes) => {
        this.applied.push(`${bytes}`);
        socket.write(`ok:${bytes}`);
      });
    });
  }

  get openConnections(): number {
    return this.#sockets.size;
  }

  async listen(): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return (this.#server.address() as { port: number }).port;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }
}

/** A client that resolves a request with the reply, or with "cut" if the connection ends first. */
class Client implements AsyncDisposable {
  readonly #socket: Socket;
  readonly closed: Promise<void>;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("error", () => socket.destroy());
    this.closed = new Promise((resolve) => socket.once("close", () => resolve()));
  }

  static connect(port: number): Promise<Client> {
    return new Promise((resolve, reject) => {
      const socket = connect({ port, host: "127.0.0.1" });
      socket.once("error", reject);
      socket.once("connect", () => resolve(new Client(socket)));
    });
  }

  ask(request: string): Promise<string> {
    const reply = new Promise<string>((resolve) => {
      this.#socket.once("data", (bytes) => resolve(`${bytes}`));
      this.closed.then(() => resolve("cut"));
    });
    this.#socket.write(request);
    return reply;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket.destroy();
    await this.closed;
  }
}

interface Bench {
  readonly server: EchoServer;
  readonly proxy: TcpProxy;
  readonly client: () => Promise<Client>;
}

/** Each test runs under the sanitizers, so that a socket or timer that is left fails it. */
function proxyTest(name: string, fn: (bench: Bench) => Promise<void>): void {
  Deno.test({ name, sanitizeOps: true, sanitizeResources: true, fn: () => withBench(fn) });
}

async function withBench(fn: (bench: Bench) => Promise<void>): Promise<void> {
  await using server = new EchoServer();
  await using proxy = await startTcpProxy({ targetPort: await server.listen() });
  const clients: Client[] = [];
  const client = async () => {
    clients.push(await Client.connect(proxy.port));
    return clients.at(-1)!;
  };
  await fn({ server, proxy, client });
  for (const one of clients) await one[Symbol.asyncDispose]();
}

/** Whether `promise` settles within `ms`; a hang can only be seen by waiting. */
async function settlesWithin(ms: number, promise: Promise<unknown>): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<boolean>((resolve) => timer = setTimeout(() => resolve(false), ms));
  const settled = await Promise.race([promise.then(() => true), late]);
  clearTimeout(timer);
  return settled;
}

proxyTest("the proxy forwards bytes and counts them", async ({ proxy, client }) => {
  assertEquals(await (await client()).ask("one"), "ok:one");
  assertEquals(proxy.counters, {
    connections: 1,
    dropped: 0,
    bytesToServer: 3,
    bytesToClient: 6,
  });
});

proxyTest("dropNextReply() loses a reply after the server applied it", async (bench) => {
  const { server, proxy, client } = bench;
  proxy.dropNextReply();
  assertEquals(await (await client()).ask("one"), "cut");
  assertEquals(server.applied, ["one"]);
  assertEquals(proxy.counters.bytesToClient, 0);
  assertEquals(proxy.counters.dropped, 1);
  assertEquals(await (await client()).ask("two"), "ok:two");
});

proxyTest("dropReplyIf() spares the requests that do not match", async (bench) => {
  const { server, proxy, client } = bench;
  proxy.dropReplyIf((request) => new TextDecoder().decode(request).includes("EVAL"), 2);
  const first = await client();
  assertEquals(await first.ask("PING"), "ok:PING");
  assertEquals(await first.ask("EVAL 1"), "cut");
  assertEquals(await (await client()).ask("EVAL 2"), "cut");
  assertEquals(await (await client()).ask("EVAL 3"), "ok:EVAL 3");
  assertEquals(server.applied, ["PING", "EVAL 1", "EVAL 2", "EVAL 3"]);
});

proxyTest("dropNextRequest() cuts before the server sees the request", async (bench) => {
  const { server, proxy, client } = bench;
  proxy.dropNextRequest();
  assertEquals(await (await client()).ask("one"), "cut");
  assertEquals(await (await client()).ask("two"), "ok:two");
  assertEquals(server.applied, ["two"]);
});

proxyTest("dropRequestIf() drops only the requests that match", async (bench) => {
  const { server, proxy, client } = bench;
  proxy.dropRequestIf((request) => request[0] === "x".charCodeAt(0));
  const first = await client();
  assertEquals(await first.ask("one"), "ok:one");
  assertEquals(await first.ask("x"), "cut");
  assertEquals(server.applied, ["one"]);
});

proxyTest("cutAll() destroys the open connections", async ({ proxy, client }) => {
  const clients = [await client(), await client()];
  for (const one of clients) await one.ask("one");
  proxy.cutAll();
  for (const one of clients) await one.closed;
  assertEquals(await (await client()).ask("two"), "ok:two");
});

proxyTest("refuse() refuses new connections and spares open ones", async ({ proxy, client }) => {
  const first = await client();
  await first.ask("one");
  await proxy.refuse(true);
  const error = await assertRejects(() => client());
  assertEquals((error as NodeJS.ErrnoException).code, "ECONNREFUSED");
  assertEquals(await first.ask("two"), "ok:two");
  await proxy.refuse(false);
  assertEquals(await (await client()).ask("three"), "ok:three");
});

proxyTest("hang() holds requests back until it ends", async ({ server, proxy, client }) => {
  const first = await client();
  await first.ask("one");
  proxy.hang(true);
  const second = first.ask("two");
  const third = (await client()).ask("three");
  assert(!await settlesWithin(50, Promise.race([second, third])));
  assertEquals(server.applied, ["one"]);
  proxy.hang(false);
  assertEquals([await second, await third], ["ok:two", "ok:three"]);
});

proxyTest("hang() holds back the reply to a request that is on its way", async (bench) => {
  const { server, proxy, client } = bench;
  const first = await client();
  proxy.delayMs.toClient = 30;
  const reply = first.ask("one");
  while (server.applied.length === 0) await sleep(1);
  proxy.hang(true);
  assert(!await settlesWithin(60, reply));
  await proxy.heal();
  assertEquals(await reply, "ok:one");
});

for (const direction of ["toServer", "toClient"] as const) {
  proxyTest(`delayMs.${direction} holds each chunk back`, async ({ proxy, client }) => {
    proxy.delayMs[direction] = 40;
    const first = await client();
    const startedMs = performance.now();
    assertEquals(await first.ask("one"), "ok:one");
    assert(performance.now() - startedMs >= 39);
  });
}

proxyTest("a chunk never overtakes one that was delayed for longer", async (bench) => {
  const { server, proxy, client } = bench;
  const first = await client();
  proxy.delayMs.toServer = 40;
  const reply = first.ask("one");
  await sleep(20);
  proxy.delayMs.toServer = 0;
  first.ask("two");
  await reply;
  await sleep(10);
  assertEquals(server.applied.join(""), "onetwo");
});

proxyTest("heal() forgets the faults that wait for a request", async ({ proxy, client }) => {
  proxy.dropNextReply();
  proxy.dropNextRequest();
  proxy.hang(true);
  await proxy.refuse(true);
  await proxy.heal();
  assertEquals(await (await client()).ask("one"), "ok:one");
});

proxyTest("the end of a client's connection reaches the server", async (bench) => {
  const { server, client } = bench;
  const first = await client();
  await first.ask("one");
  assertEquals(server.openConnections, 1);
  await first[Symbol.asyncDispose]();
  for (let i = 0; i < 100 && server.openConnections > 0; i++) await sleep(5);
  assertEquals(server.openConnections, 0);
});

proxyTest("disposing cuts the connections and refuses new ones", async ({ proxy, client }) => {
  const first = await client();
  await first.ask("one");
  proxy.delayMs.toServer = 10_000;
  const second = first.ask("two");
  await proxy[Symbol.asyncDispose]();
  assertEquals(await second, "cut");
  await assertRejects(() => client());
});
