import { Redis } from "@upstash/redis";
import { withService } from "../../scripts/services.ts";
import { keyOf } from "../../src/storage/_redis_command.ts";
import { fencedExec, UpstashStorage } from "../../src/storage/upstash.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { connectIoredis } from "../support/redis_clients.ts";
import { startUpstashProxy } from "../support/upstash_proxy.ts";

await withService("redis", async ({ test, service }) => {
  const kinds = {
    "default": {},
    "no auto-pipelining, no deserialization": {
      enableAutoPipelining: false,
      automaticDeserialization: false,
    },
  };
  for (const [name, settings] of Object.entries(kinds)) {
    await testLeaseStorage({
      name: `upstash (${name})`,
      test,
      setup: async () => {
        const proxy = await startUpstashProxy({ redisPort: service().port });
        const raw = connectIoredis(service().url);
        const connect = () =>
          new UpstashStorage(new Redis({ url: proxy.url, token: proxy.token, ...settings }));
        const [a, b] = [connect(), connect()];
        return {
          clients: [a, b],
          fencedWrite: async (lease, resource, value) => {
            await fencedExec(a, lease, [["SET", resource, value]], { keys: [resource] });
          },
          readResource: async (resource) => await raw.get(resource) ?? undefined,
          writeRaw: async (name, text) => void await raw.set(keyOf("holdfast", name), text),
          readRaw: async (name) => await raw.get(keyOf("holdfast", name)) ?? undefined,
          forget: async (name) => void await raw.del(keyOf("holdfast", name)),
          close: async () => {
            await raw[Symbol.asyncDispose]();
            await proxy[Symbol.asyncDispose]();
          },
        };
      },
    });
  }
});
