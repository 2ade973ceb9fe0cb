import { assertEquals, assertGreater, assertStringIncludes } from "@std/assert";
import { type Lease, Lock, MemoryStorage } from "../../mod.ts";
import { tick } from "../../docs/examples/cron.ts";
import { handlerOf as denoDeploy } from "../../docs/examples/deno_deploy.ts";
import { leaderLoop } from "../../docs/examples/leader.ts";
import { handlerOf as vercel } from "../../docs/examples/vercel_function.ts";
import { next, start } from "../../docs/examples/workflow.ts";
import { ManualClock } from "../../src/testing/mod.ts";

// covers: S2.17
Deno.test("cron: of many machines one runs a tick, however short the work was", async () => {
  const storage = new MemoryStorage();
  let runs = 0;
  const report = () => Promise.resolve(void runs++);
  const ran = await Promise.all(Array.from({ length: 5 }, () => tick(storage, report)));
  assertEquals(ran.filter(Boolean).length, 1);
  assertEquals(await tick(storage, report), false);
  assertEquals(runs, 1);
});

Deno.test("Deno Deploy: a second request is answered 409 with retry-after", async () => {
  const kv = await Deno.openKv(":memory:");
  const handler = denoDeploy(kv);
  const [first, second] = await Promise.all([
    handler(new Request("http://localhost/")),
    handler(new Request("http://localhost/")),
  ]);
  const [done, refused] = first!.status === 200 ? [first!, second!] : [second!, first!];
  assertStringIncludes(await done.text(), "rebuilt under fence");
  assertEquals(refused.status, 409);
  await refused.body?.cancel();
  assertGreater(Number(refused.headers.get("retry-after")), 0);
  assertStringIncludes((await kv.get<string>(["pages"])).value!, "rebuilt under fence");
  kv.close();
});

Deno.test("Vercel: one request works, another is answered 409", async () => {
  const storage = new MemoryStorage();
  const handler = vercel(storage, () => {});
  const holder = await new Lock({ storage, name: "sync-orders" }).acquire();
  const refused = await handler(new Request("http://localhost/"));
  assertEquals([refused.status, await refused.text()], [409, "another one is syncing"]);
  await holder.release();
  assertStringIncludes(await (await handler(new Request("http://localhost/"))).text(), "synced");
});

Deno.test("workflow: a step that is delivered twice runs once, under a larger fence", async () => {
  const clock = new ManualClock();
  const storage = new MemoryStorage({ clock });
  const lock = () => new Lock({ storage, clock, name: "order:42" });
  let message = "";
  await start(lock(), (sent) => Promise.resolve(void (message = sent)));
  const { fencingToken } = JSON.parse(message).baton;
  const fences: number[] = [];
  const work = (order: number, fence: number) => {
    assertEquals(order, 42);
    return Promise.resolve(void fences.push(fence));
  };
  const ran = await Promise.all([next(lock(), message, work), next(lock(), message, work)]);
  assertEquals(ran.filter(Boolean).length, 1);
  assertEquals(fences.length, 1);
  assertGreater(fences[0]!, fencingToken);
});

// covers: S3.17
Deno.test("leader: another process leads when the leader is evicted", async () => {
  const storage = new MemoryStorage();
  const stop = new AbortController();
  const led: string[] = [];
  const lead = (who: string) => (lease: Lease) => {
    led.push(who);
    return new Promise<void>((resolve) => {
      lease.signal.addEventListener("abort", () => resolve(), { once: true });
      stop.signal.addEventListener("abort", () => resolve(), { once: true });
    });
  };
  const lockOf = () => new Lock({ storage, name: "leader", ttlMs: 300, gate: false });
  const loops = ["a", "b"].map((who) =>
    leaderLoop(lockOf(), lead(who), stop.signal).catch((error) => {
      if (!stop.signal.aborted) throw error;
    })
  );
  while (led.length < 1) await new Promise((resolve) => setTimeout(resolve, 5));
  await lockOf().forceRelease();
  while (led.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  stop.abort();
  await Promise.all(loops);
  assertEquals((await lockOf().inspect()).holders, []);
});

Deno.test("leader: an unreferenced leader is not collected", async () => {
  const script = `
    import { Lock, MemoryStorage } from ${JSON.stringify(import.meta.resolve("../../mod.ts"))};
    import { leaderLoop } from ${
    JSON.stringify(import.meta.resolve("../../docs/examples/leader.ts"))
  };
    const events = [];
    const lock = new Lock({
      storage: new MemoryStorage(), name: "leader", ttlMs: 200, onEvent: (e) => events.push(e.type),
    });
    const stop = new AbortController();
    leaderLoop(lock, () => new Promise(() => {}), stop.signal);
    for (let i = 0; i < 20; i++) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      gc();
    }
    console.log(JSON.stringify([events.filter((e) => e === "renewed").length > 5, events.includes("abandoned")]));
    Deno.exit(0);
  `;
  const { stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["eval", "--v8-flags=--expose-gc", script],
    cwd: new URL("../..", import.meta.url),
  }).output();
  assertEquals(
    new TextDecoder().decode(stdout).trim(),
    "[true,false]",
    new TextDecoder().decode(stderr),
  );
});

Deno.test("shutdown: a process that is told to end gives its leases back", async () => {
  const file = await Deno.makeTempFile({ suffix: ".kv" });
  const script = `
    import { Lock } from ${JSON.stringify(import.meta.resolve("../../mod.ts"))};
    import { DenoKvStorage } from ${
    JSON.stringify(import.meta.resolve("../../src/storage/deno_kv.ts"))
  };
    import { releasedOnShutdown } from ${
    JSON.stringify(import.meta.resolve("../../docs/examples/shutdown.ts"))
  };
    const storage = new DenoKvStorage(await Deno.openKv(${JSON.stringify(file)}));
    releasedOnShutdown(await new Lock({ storage, name: "job", ttlMs: 600_000 }).acquire());
    console.log("held");
    setInterval(() => {}, 1000);
  `;
  const child = new Deno.Command(Deno.execPath(), {
    args: ["eval", "--unstable-kv", script],
    cwd: new URL("../..", import.meta.url),
    stdout: "piped",
  }).spawn();
  const reader = child.stdout.getReader();
  assertStringIncludes(new TextDecoder().decode((await reader.read()).value), "held");
  child.kill("SIGTERM");
  assertEquals((await child.status).code, 0);
  await reader.cancel();
  const { DenoKvStorage } = await import("../../src/storage/deno_kv.ts");
  const kv = await Deno.openKv(file);
  const lease = await new Lock({ storage: new DenoKvStorage(kv), name: "job" }).tryAcquire();
  assertEquals(lease?.status, "held");
  await lease?.release();
  kv.close();
  await Deno.remove(file);
});
