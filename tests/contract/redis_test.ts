import { withService } from "../../scripts/services.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { KINDS, type Listening, type RedisKind, redisSubject } from "../support/redis_clients.ts";

await withService("redis", async ({ test, service }) => {
  const subjects: [RedisKind, Listening][] = [
    ...KINDS.map((kind): [RedisKind, Listening] => [kind, "duplicate"]),
    ["node-redis", "handed in"],
    ["ioredis", "none"],
  ];
  for (const [kind, listening] of subjects) {
    await testLeaseStorage({
      name: `redis (${kind}, subscriber: ${listening})`,
      test,
      setup: () => redisSubject(kind, service().url, listening),
    });
  }
});
