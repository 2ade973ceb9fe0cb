import { assert, assertEquals, assertRejects } from "@std/assert";
import { readFile } from "node:fs/promises";
import { EtcdStorage } from "../../docs/examples/etcd_register.ts";
import { startEtcd, withService } from "../../scripts/services.ts";
import { FenceGate } from "../../src/core/fence_gate.ts";
import { StorageError } from "../../src/core/errors.ts";
import type { Granted } from "../../src/core/record.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { acquire, inspect, release, renew, token, uniqueName } from "../support/commands.ts";
import { startTcpProxy } from "../support/tcp_proxy.ts";

await withService("etcd", async ({ test, service }) => {
  const bytesOf = (text: string) => new TextEncoder().encode(text);
  const encode = (text: string) => btoa(String.fromCharCode(...bytesOf(text)));

  /** Talks to etcd behind the library's back. */
  async function etcd(what: string, body: object): Promise<{ kvs?: { value?: string }[] }> {
    const init = { method: "POST", body: JSON.stringify(body) };
    return await (await fetch(`${service().url}/v3/kv/${what}`, init)).json();
  }

  await testLeaseStorage({
    name: "etcd",
    test,
    setup: () => {
      const { url } = service();
      // All clients are on this machine.
      const storage = () => new EtcdStorage(url, { maxClockSkewMs: 0 });
      const gate = new FenceGate();
      const values = new Map<string, string>();
      const keyOf = (name: string) => btoa(`holdfast/${encodeURIComponent(name)}`);
      return {
        clients: [storage(), storage()],
        fencedWrite: async (lease, resource, value) => {
          await gate.check(resource, lease);
          values.set(resource, value);
        },
        readResource: (resource) => Promise.resolve(values.get(resource)),
        writeRaw: async (name, text) =>
          void await etcd("put", { key: keyOf(name), value: encode(text) }),
        readRaw: async (name) => {
          const { kvs } = await etcd("range", { key: keyOf(name) });
          if (!kvs?.[0]) return undefined;
          const bytes = Uint8Array.from(atob(kvs[0].value ?? ""), (char) => char.charCodeAt(0));
          return new TextDecoder().decode(bytes);
        },
        forget: async (name) => void await etcd("deleterange", { key: keyOf(name) }),
        close: () => Promise.resolve(),
      };
    },
  });

  // covers: S5.5
  test("etcd: acquire, renew and release take one request each", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    const requests: string[] = [];
    proxy.dropReplyIf((request) => {
      const path = /^POST \/v3\/kv\/(\w+) /.exec(new TextDecoder().decode(request))?.[1];
      if (path) requests.push(path);
      return false;
    }, Infinity);
    const storage = new EtcdStorage(`http://127.0.0.1:${proxy.port}`);
    const name = uniqueName("count");
    const mine = token();
    const { fence } = await storage.execute(name, acquire(mine)) as Granted;
    await storage.execute(name, renew(mine, fence));
    await storage.execute(name, release(mine));
    assertEquals(requests, ["txn", "txn", "txn"]);
    await storage.execute(name, inspect);
    assertEquals(requests.splice(3), ["range"]);
  });

  // covers: G11
  test("etcd: an acquire whose reply was lost is granted all the same", async () => {
    await using proxy = await startTcpProxy({ targetPort: service().port });
    const storage = new EtcdStorage(`http://127.0.0.1:${proxy.port}`);
    const name = uniqueName("lost");
    // Deno's own fetch may send a request a second time.
    const isWrite = (request: Uint8Array) => new TextDecoder().decode(request).includes("/txn ");
    proxy.dropReplyIf(isWrite, 2);
    assertEquals((await storage.execute(name, acquire(token()))).type, "granted");
    assert(proxy.counters.dropped >= 1);
    assertEquals((await storage.execute(name, inspect)).holders.length, 1);
  });

  test("etcd: a server that is down is an error, and nothing is lost after it", async () => {
    await using server = await startEtcd({ persist: true });
    const storage = new EtcdStorage(server.url);
    const mine = token();
    const { fence } = await storage.execute("job", acquire(mine)) as Granted;
    server.kill();
    const error = await assertRejects(
      () => storage.execute("job", renew(mine, fence)),
      StorageError,
    );
    assertEquals(error.message, `Cannot use key "holdfast/job" as etcd must answer`);
    assertEquals(error.transient, true);
    await server.restart();
    assertEquals(await storage.execute("job", renew(mine, fence)), { type: "renewed" });
  });
});

Deno.test("the guide shows the example as it is, in at most 70 lines", async () => {
  const folder = new URL("../../docs/", import.meta.url);
  const code = await readFile(new URL("examples/etcd_register.ts", folder), "utf8");
  const guide = await readFile(new URL("write_a_storage.md", folder), "utf8");
  assert(guide.includes("```ts\n" + code + "```"), "the guide has another text than the example");
  const lines = code.trimEnd().split("\n").length;
  assert(lines <= 70, `the example has ${lines} lines`);
});
