/**
 * A server as chaos needs it, with a proxy of its own for each worker; or a file.
 *
 * @module
 */
import { startMongoProxy } from "../../tests/support/mongo_proxy.ts";
import { startTcpProxy, type TcpProxy } from "../../tests/support/tcp_proxy.ts";
import { startUpstashProxy } from "../../tests/support/upstash_proxy.ts";
import { type Service, start } from "../services.ts";
import type { Product } from "./products.ts";
import { UPSTASH_TOKEN, WORKERS } from "./terms.ts";

/** Where a storage is. */
export interface Site extends AsyncDisposable {
  /** For those who are not to be disturbed. */
  readonly at: string;
  /** For the worker of a place: behind its proxy. */
  atOf(place: number): string;
  /** The server; absent for a file. */
  readonly server: Service | undefined;
  /** By place; none for a file. */
  readonly proxies: readonly TcpProxy[];
}

/**
 * Starts what a storage needs.
 *
 * @param product the storage
 * @param folder where a file may be
 * @throws {ServiceUnavailable} if its server cannot be had
 */
export async function openSite(product: Product, folder: string): Promise<Site> {
  if (!product.service) {
    const at = `${folder}/storage`;
    return {
      at,
      atOf: () => at,
      server: undefined,
      proxies: [],
      [Symbol.asyncDispose]: () => Promise.resolve(),
    };
  }
  await using stack = new AsyncDisposableStack();
  const server = stack.use(await start(product.service, { persist: product.persist }));
  let target = new URL(server.url);
  if (product.front === "upstash") {
    const token = UPSTASH_TOKEN;
    target = new URL(stack.use(await startUpstashProxy({ redisPort: server.port, token })).url);
  }
  if (product.front === "mongo") {
    target = new URL(stack.use(await startMongoProxy(server.port)).url);
  }
  const targetPort = Number(target.port);
  const proxies: TcpProxy[] = [];
  for (let i = 0; i < WORKERS; i++) proxies.push(stack.use(await startTcpProxy({ targetPort })));
  const through = (port: number): string =>
    target.href.replace(`:${targetPort}`, `:${port}`).replace(/\/$/, "");
  const moved = stack.move();
  return {
    at: through(targetPort),
    atOf: (place) => through(proxies[place]!.port),
    server,
    proxies,
    [Symbol.asyncDispose]: () => moved.disposeAsync(),
  };
}
