import { assertEquals } from "@std/assert";
import { nodePg, type NodePgClient, type NodePgPool } from "../../src/storage/postgres.ts";

/** A pool whose connections come when the test says so; it notes what is asked of them. */
class LatePool implements NodePgPool {
  readonly totalCount = 0;
  readonly asked: string[] = [];
  readonly #arrived = Promise.withResolvers<void>();

  arrive(): void {
    this.#arrived.resolve();
  }

  query(): Promise<{ rows: [] }> {
    return Promise.resolve({ rows: [] });
  }

  async connect(): Promise<NodePgClient & { release(destroy?: boolean): void }> {
    await this.#arrived.promise;
    const client: NodePgClient & { release(destroy?: boolean): void } = {
      query: (text) => {
        this.asked.push(text);
        return Promise.resolve({ rows: [] });
      },
      on: () => client,
      removeListener: () => client,
      release: (destroy = false) =>
        void this.asked.push(`release, ${destroy ? "broken" : "whole"}`),
    };
    return client;
  }
}

/** Lets promises that are ready run. */
function settle(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 0));
}

const handlers = { begun: () => {}, lost: () => {}, notified: () => {} };

// covers: G7
Deno.test("a subscription that ends before its connection came gives that back once", async () => {
  const pool = new LatePool();
  const subscription = nodePg(pool, { listen: true }).listen!("c", handlers);
  subscription[Symbol.dispose]();
  pool.arrive();
  await settle();
  assertEquals(pool.asked, ["release, whole"]);
});

Deno.test("a subscription that ends gives its connection back, without what it listened to", async () => {
  const pool = new LatePool();
  const subscription = nodePg(pool, { listen: true }).listen!("c", handlers);
  pool.arrive();
  await settle();
  subscription[Symbol.dispose]();
  subscription[Symbol.dispose]();
  await settle();
  assertEquals(pool.asked, ["LISTEN c", "UNLISTEN c", "release, whole"]);
});
