import { assert, assertEquals, assertRejects, assertStringIncludes } from "@std/assert";
import { Redis, type RedisConfigNodejs } from "@upstash/redis";
import { startRedis, withService } from "../../scripts/services.ts";
import {
  startUpstashProxy,
  type UpstashFault,
  type UpstashFaultOptions,
  type UpstashProxy,
  type UpstashProxyOptions,
} from "./upstash_proxy.ts";

/** A proxy on an empty redis, and clients that have no connection yet. */
async function setUp(redisPort: number, options: Partial<UpstashProxyOptions> = {}) {
  {
    await using other = await startUpstashProxy({ redisPort });
    const response = await post(other, "/pipeline", '[["FLUSHALL"],["SCRIPT","FLUSH"]]');
    await response.body?.cancel();
  }
  const proxy = await startUpstashProxy({ ...options, redisPort });
  return {
    proxy,
    connect: (config: Partial<RedisConfigNodejs> = {}) =>
      new Redis({
        url: proxy.url,
        token: proxy.token,
        retry: { retries: 0 },
        enableAutoPipelining: false,
        ...config,
      }),
    [Symbol.asyncDispose]: () => proxy[Symbol.asyncDispose](),
  };
}

function post(proxy: UpstashProxy, path: string, body: string, headers: HeadersInit = {}) {
  const authorization = `Bearer ${proxy.token}`;
  return fetch(proxy.url + path, { method: "POST", body, headers: { authorization, ...headers } });
}

/** Waits for what happens on another connection; throws after 5 s. */
async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const deadlineMs = performance.now() + 5000;
  while (!(await condition())) {
    assert(performance.now() < deadlineMs, `not within 5 s: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

function sha1(text: string): Promise<string> {
  return crypto.subtle.digest("SHA-1", new TextEncoder().encode(text))
    .then((digest) => new Uint8Array(digest).toHex());
}

const KEY_LOCKING = "#!lua flags=allow-key-locking\nreturn redis.call('INCR', KEYS[1])";

const REFUSED: [string, RequestInit & { path?: string }, number, string][] = [
  ["a wrong token", { headers: { authorization: "Bearer wrong" } }, 401, "WRONGPASS"],
  ["no token", { headers: {} }, 401, "WRONGPASS"],
  ["another method", { method: "PUT" }, 405, "method"],
  ["an unknown path", { path: "/set/foo/bar" }, 404, "path"],
  ["a body that is not JSON", { body: "SET k v" }, 400, "parse"],
  ["an empty command", { body: "[]" }, 400, "empty"],
  ["an object as an argument", { body: '["SET","k",{}]' }, 400, "argument"],
  ["a pipeline of no arrays", { path: "/pipeline", body: '["INCR","n"]' }, 400, "parse"],
  ["an unknown command", { body: '["NOSUCH"]' }, 400, "unknown command"],
  ["a command that REST has not", { body: '["BLPOP","k",0]' }, 400, "BLPOP over REST"],
  ["a command that fails", { body: '["INCR"]' }, 400, "wrong number of arguments"],
];

const ONE_REQUEST: [UpstashFault, UpstashFaultOptions, string, string, number][] = [
  ["drop-request", {}, "TypeError", "", 0],
  ["drop-reply", {}, "TypeError", "", 1],
  ["truncate", {}, "TypeError", "", 1],
  ["hang", {}, "TimeoutError", "", 0],
  ["hang-after", {}, "TimeoutError", "", 1],
  ["delay-reply", { ms: 10_000 }, "TimeoutError", "", 1],
  ["error-500", {}, "UpstashError", "ERR internal error", 0],
  ["error-500", { executed: true }, "UpstashError", "ERR internal error", 1],
  ["error-502-html", {}, "UpstashJSONParseError", "502 Bad Gateway", 0],
  ["error-401", {}, "UpstashError", "WRONGPASS", 0],
  ["quota", {}, "UpstashError", "ERR max requests limit exceeded", 0],
  [
    "quota",
    { status: 429, message: "ERR max daily request limit exceeded" },
    "UpstashError",
    "daily",
    0,
  ],
];

await withService("redis", ({ test, service }) => {
  test("SET NX PX writes once and PTTL counts down from it", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    assertEquals(await redis.set("k", "a", { nx: true, px: 5000 }), "OK");
    assertEquals(await redis.set("k", "b", { nx: true, px: 5000 }), null);
    const ttlMs = await redis.pttl("k");
    assert(ttlMs > 4000 && ttlMs <= 5000, `${ttlMs}`);
  });

  for (const responseEncoding of ["base64", false] as const) {
    test(`EVAL returns nested arrays, UTF-8, nil and OK with encoding ${responseEncoding}`, async () => {
      await using env = await setUp(service().port);
      const redis = env.connect({ responseEncoding, automaticDeserialization: false });
      const script =
        "return {1, {ARGV[1], {false, 'deep'}}, false, redis.call('SET', KEYS[1], '1')}";
      assertEquals(
        await redis.eval(script, ["k"], ["grüße 🔒"]),
        [1, ["grüße 🔒", [null, "deep"]], null, "OK"],
      );
    });
  }

  test("base64 leaves a plain OK as it is, but not one inside an array", async () => {
    await using env = await setUp(service().port);
    const headers = { "upstash-encoding": "base64" };
    const commands =
      '[["SET","k","v"],["GET","k"],["EVAL","return {redis.status_reply(\'OK\'), 1}",0]]';
    const response = await post(env.proxy, "/pipeline", commands, headers);
    assertEquals(await response.json(), [
      { result: "OK" },
      { result: btoa("v") },
      { result: [btoa("OK"), 1] },
    ]);
  });

  test("EVAL rejects with the error of the script", async () => {
    await using env = await setUp(service().port);
    await assertRejects(
      () => env.connect().eval("return redis.error_reply('MYERR boom')", [], []),
      Error,
      "MYERR boom",
    );
  });

  test("EVALSHA is NOSCRIPT until the script was seen", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    const script = "return ARGV[1]";
    const sha = await sha1(script);
    await assertRejects(() => redis.evalsha(sha, [], ["a"]), Error, "NOSCRIPT");
    await redis.eval(script, [], ["a"]);
    assertEquals(await redis.evalsha(sha, [], ["b"]), "b");
  });

  test("createScript().exec() sends EVALSHA, and EVAL only where the script is unknown", async () => {
    await using env = await setUp(service().port);
    const script = env.connect().createScript<string>("return ARGV[1]");
    assertEquals([await script.exec([], ["a"]), await script.exec([], ["b"])], ["a", "b"]);
    assertEquals(env.proxy.counters.byName, { EVALSHA: 2, EVAL: 1 });
  });

  test("a script with allow-key-locking answers to its own SHA-1", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    const sha = await sha1(KEY_LOCKING);
    await assertRejects(() => redis.evalsha(sha, ["n"], []), Error, "NOSCRIPT");
    assertEquals(await redis.eval(KEY_LOCKING, ["n"], []), 1);
    assertEquals(await redis.evalsha(sha, ["n"], []), 2);
    assertEquals(await redis.scriptExists(sha), [1]);
    await redis.scriptFlush();
    await assertRejects(() => redis.evalsha(sha, ["n"], []), Error, "NOSCRIPT");
    await redis.scriptLoad(KEY_LOCKING);
    assertEquals(await redis.evalsha(sha, ["n"], []), 3);
  });

  test("only the flag allow-key-locking is taken out of a script", async () => {
    await using env = await setUp(service().port);
    const script = "#!lua flags=no-writes,allow-key-locking\nreturn redis.call('INCR', KEYS[1])";
    await assertRejects(
      () => env.connect().eval(script, ["n"], []),
      Error,
      "Write commands are not allowed from read-only scripts",
    );
  });

  test("keyLocking: false leaves the flag to Redis, which refuses it", async () => {
    await using env = await setUp(service().port, { keyLocking: false });
    await assertRejects(
      () => env.connect().eval(KEY_LOCKING, ["n"], []),
      Error,
      "ERR Unexpected flag in script shebang: allow-key-locking",
    );
  });

  test("a pipeline answers item by item, errors in their place", async () => {
    await using env = await setUp(service().port);
    const pipeline = env.connect().pipeline().set("k", "text").incr("k").get("k");
    const [set, incr, get] = await pipeline.exec({ keepErrors: true });
    assertEquals([set?.result, get?.result], ["OK", "text"]);
    assertStringIncludes(incr?.error ?? "", "ERR value is not an integer");
    assertEquals([env.proxy.counters.requests, env.proxy.counters.commands], [1, 3]);
  });

  test("a transaction answers item by item", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    assertEquals(await redis.multi().set("k", "v").get("k").incr("n").exec(), ["OK", "v", 1]);
    assertEquals(env.proxy.counters.byName, { SET: 1, GET: 1, INCR: 1 });
  });

  test("a transaction with a malformed command is discarded as one error", async () => {
    await using env = await setUp(service().port);
    const response = await post(env.proxy, "/multi-exec", '[["INCR","n"],["INCR"]]');
    assertEquals(response.status, 400);
    assertStringIncludes((await response.json()).error, "EXECABORT");
    assertEquals(await env.connect().get("n"), null);
  });

  for (const [enableAutoPipelining, requests] of [[true, 1], [false, 3]] as const) {
    test(`auto-pipelining ${enableAutoPipelining}: three writes are ${requests} requests`, async () => {
      await using env = await setUp(service().port);
      const redis = env.connect({ enableAutoPipelining });
      assertEquals(
        (await Promise.all([redis.incr("n"), redis.incr("n"), redis.incr("n")])).toSorted(),
        [1, 2, 3],
      );
      assertEquals([env.proxy.counters.requests, env.proxy.counters.commands], [requests, 3]);
    });
  }

  for (const [automaticDeserialization, value] of [[true, { a: 1 }], [false, '{"a":1}']] as const) {
    test(`automaticDeserialization ${automaticDeserialization} reads JSON as ${typeof value}`, async () => {
      await using env = await setUp(service().port);
      const redis = env.connect({ automaticDeserialization });
      await redis.set("k", '{"a":1}');
      assertEquals(await redis.get<unknown>("k"), value);
    });
  }

  test("subscribe() hears publish() until it unsubscribes", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    const heard: unknown[] = [];
    const subscriber = redis.subscribe<string>("ch ü");
    subscriber.on("subscribe", (count) => heard.push(count));
    subscriber.on("message", ({ channel, message }) => heard.push([channel, message]));
    await until(() => heard.length === 1);
    assertEquals(await redis.publish("ch ü", "a, grüße"), 1);
    await until(() => heard.length === 2);
    assertEquals(heard, [1, ["ch ü", "a, grüße"]]);
    await subscriber.unsubscribe();
    await until(() => env.proxy.openStreams === 0);
    await until(async () => await redis.publish("ch ü", "b") === 0);
  });

  test("psubscribe() hears the channels that match", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    const heard: unknown[] = [];
    const subscriber = redis.psubscribe<{ n: number }>("ch:*");
    subscriber.on("pmessage", (event) => heard.push(event));
    await until(async () => await redis.publish("ch:1", { n: 1 }) === 1);
    await until(() => heard.length === 1);
    assertEquals(heard, [{ pattern: "ch:*", channel: "ch:1", message: { n: 1 } }]);
    await subscriber.unsubscribe();
  });

  test("a token in the query is as good as one in the header", async () => {
    await using env = await setUp(service().port);
    const response = await fetch(`${env.proxy.url}/?_token=${env.proxy.token}`, {
      method: "POST",
      body: '["ECHO","a"]',
    });
    assertEquals([response.status, await response.json()], [200, { result: "a" }]);
  });

  for (const [what, { path = "/", ...request }, status, message] of REFUSED) {
    test(`${what} is refused with ${status} and never in base64`, async () => {
      await using env = await setUp(service().port);
      const response = await fetch(env.proxy.url + path, {
        method: "POST",
        body: '["INCR","n"]',
        ...request,
        headers: {
          "upstash-encoding": "base64",
          ...(request.headers ?? { authorization: `Bearer ${env.proxy.token}` }),
        },
      });
      assertEquals(response.status, status);
      assertStringIncludes((await response.json()).error, message);
      assertEquals(await env.connect().get("n"), null);
    });
  }

  test("every answer has a new sync token", async () => {
    await using env = await setUp(service().port);
    const tokens = [];
    for (let i = 0; i < 2; i += 1) {
      const response = await post(env.proxy, "/", '["PING"]');
      await response.body?.cancel();
      tokens.push(response.headers.get("upstash-sync-token"));
    }
    assert(tokens[0] && tokens[1] && tokens[0] !== tokens[1], `${tokens}`);
  });

  test("a browser may send what the client sends and read the sync token", async () => {
    await using env = await setUp(service().port);
    let sent: string[] = [];
    const { fetch } = globalThis;
    globalThis.fetch = (input, init) => {
      sent = [...new Headers(init?.headers ?? {}).keys()];
      return fetch(input, init);
    };
    try {
      await env.connect().ping();
    } finally {
      globalThis.fetch = fetch;
    }
    const preflight = await fetch(env.proxy.url, { method: "OPTIONS" });
    await preflight.body?.cancel();
    const allowed = preflight.headers.get("access-control-allow-headers")?.split(", ") ?? [];
    assertEquals([preflight.status, sent.filter((name) => !allowed.includes(name))], [204, []]);
    assertEquals(preflight.headers.get("access-control-allow-origin"), "*");
    const refused = await post(env.proxy, "/nowhere", "[]");
    await refused.body?.cancel();
    assertEquals(refused.headers.get("access-control-expose-headers"), "upstash-sync-token");
    assertEquals(refused.headers.get("access-control-allow-origin"), "*");
  });

  test("requests one after another share a connection to redis", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    const received = async () => {
      const { result } = await (await post(env.proxy, "/", '["INFO","stats"]')).json();
      return Number(/total_connections_received:(\d+)/.exec(result)?.[1]);
    };
    const before = await received();
    for (let i = 0; i < 3; i += 1) await redis.incr("n");
    assertEquals(await received(), before);
  });

  test("counters tell billed commands from free ones and start over", async () => {
    await using env = await setUp(service().port);
    const { counters } = env.proxy;
    const redis = env.connect();
    await redis.ping();
    await redis.eval("return redis.call('INCR', KEYS[1])", ["n"], []);
    assertEquals([counters.requests, counters.commands], [2, 1]);
    assertEquals(counters.byName, { PING: 1, EVAL: 1 });
    counters.reset();
    assertEquals([counters.requests, counters.commands, counters.byName], [0, 0, {}]);
  });

  for (const [kind, options, name, message, executions] of ONE_REQUEST) {
    test(`${kind} ${JSON.stringify(options)} is a ${name} and runs ${executions} times`, async () => {
      await using env = await setUp(service().port);
      const redis = env.connect({ signal: () => AbortSignal.timeout(250) });
      const fault = env.proxy.fault(kind, options);
      const error = await assertRejects(() => redis.incr("n"), Error, message);
      assertEquals([error.name, fault.hits], [name, 1]);
      assertEquals(await redis.get("n"), executions || null);
    });
  }

  test("delay runs the command after the client has given up", async () => {
    await using env = await setUp(service().port);
    env.proxy.fault("delay", { ms: 60 });
    await assertRejects(() => env.connect({ signal: () => AbortSignal.timeout(20) }).incr("n"));
    const redis = env.connect();
    assertEquals(await redis.get("n"), null);
    await until(async () => await redis.get("n") === 1);
  });

  test("quota has the status that was asked for", async () => {
    await using env = await setUp(service().port);
    env.proxy.fault("quota", { status: 429 });
    const response = await post(env.proxy, "/", '["PING"]');
    await response.body?.cancel();
    assertEquals(response.status, 429);
  });

  test("a lost reply makes the client's own retry run the command again", async () => {
    await using env = await setUp(service().port);
    env.proxy.fault("drop-reply");
    const redis = env.connect({ retry: { retries: 1, backoff: () => 0 } });
    assertEquals(await redis.incr("n"), 2);
  });

  test("a fault hits as many matching requests as it was told, the oldest fault first", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    const match = ([name]: string[]) => name === "INCR";
    const first = env.proxy.fault("error-500", { times: 2, match });
    const second = env.proxy.fault("quota", { match });
    assertEquals(await redis.get("n"), null);
    for (const message of ["internal", "internal", "max requests"]) {
      await assertRejects(() => redis.incr("n"), Error, message);
    }
    assertEquals(await redis.incr("n"), 1);
    assertEquals([first.hits, second.hits], [2, 1]);
  });

  test("a fault ends when it is disposed", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    {
      using _fault = env.proxy.fault("error-500", { times: Infinity });
      await assertRejects(() => redis.incr("n"), Error, "internal");
    }
    assertEquals(await redis.incr("n"), 1);
  });

  test("sse-cut ends every stream, which the client does not report", async () => {
    await using env = await setUp(service().port);
    const subscriber = env.connect().subscribe("ch");
    const heard: unknown[] = [];
    subscriber.on("subscribe", (count) => heard.push(count));
    subscriber.on("error", (error) => heard.push(error));
    await until(() => heard.length === 1);
    assertEquals(env.proxy.fault("sse-cut").hits, 1);
    await until(() => env.proxy.openStreams === 0);
    assertEquals(heard, [1]);
    await subscriber.unsubscribe();
  });

  for (const kind of ["sse-refuse", "error-401"] as const) {
    test(`${kind} is an error of the subscription and of no command`, async () => {
      await using env = await setUp(service().port);
      const isSubscription = ([name]: string[]) => name === "SUBSCRIBE";
      const fault = env.proxy.fault(kind, kind === "sse-refuse" ? {} : { match: isSubscription });
      const redis = env.connect();
      assertEquals(await redis.incr("n"), 1);
      const subscriber = redis.subscribe("ch");
      const errors: Error[] = [];
      subscriber.on("error", (error) => errors.push(error));
      await until(() => errors.length === 1);
      assertEquals([errors[0]?.name, fault.hits], ["UpstashError", 1]);
      await subscriber.unsubscribe();
    });
  }

  test("a fault of replies spares subscriptions, and one of subscriptions spares commands", async () => {
    await using env = await setUp(service().port);
    const ofReplies = env.proxy.fault("drop-reply", { match: ([name]) => name === "SUBSCRIBE" });
    const ofStreams = env.proxy.fault("sse-refuse", { match: ([name]) => name === "INCR" });
    assertEquals(await env.connect().incr("n"), 1);
    const stream = await post(env.proxy, "/subscribe/ch", "[]");
    assertEquals([stream.status, ofReplies.hits, ofStreams.hits], [200, 0, 0]);
    await stream.body?.cancel();
  });

  test("down(true) refuses and cuts every connection until down(false)", async () => {
    await using env = await setUp(service().port);
    const redis = env.connect();
    const stream = await post(env.proxy, "/subscribe/ch", "[]");
    env.proxy.down(true);
    await assertRejects(() => redis.incr("n"), TypeError);
    await assertRejects(() => stream.text(), TypeError);
    assertEquals(env.proxy.openStreams, 0);
    env.proxy.down(false);
    assertEquals(await redis.incr("n"), 1);
  });

  test("dispose ends hung and delayed requests and open streams", async () => {
    await using env = await setUp(service().port);
    const { proxy } = env;
    const stream = await post(proxy, "/subscribe/ch", "[]");
    const faults = [proxy.fault("hang"), proxy.fault("delay", { ms: 60_000 })];
    const ended = faults.map(() =>
      assertRejects(() => post(proxy, "/", '["INCR","n"]'), TypeError)
    );
    await until(() => faults.every(({ hits }) => hits === 1));
    await proxy[Symbol.asyncDispose]();
    await assertRejects(() => stream.text(), TypeError);
    await Promise.all(ended);
    assertEquals([proxy.openStreams, proxy.counters.commands], [0, 1]);
  });

  test("a lost redis-server is an error 500, and is found again after its restart", async () => {
    await using server = await startRedis();
    await using proxy = await startUpstashProxy({ redisPort: server.port });
    const echo = async () => {
      const response = await post(proxy, "/", '["ECHO","a"]');
      return { status: response.status, ...await response.json() };
    };
    assertEquals(await echo(), { status: 200, result: "a" });
    server.kill();
    await until(async () => (await echo()).error?.includes("ECONNREFUSED"));
    assertEquals((await echo()).status, 500);
    await server.restart();
    assertEquals(await echo(), { status: 200, result: "a" });
  });
});
