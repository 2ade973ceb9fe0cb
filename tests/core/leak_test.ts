import { assertEquals } from "@std/assert";

/** What becomes of a lease in a process that collects garbage: whether it is abandoned, and still renewed. */
async function afterCollection(use: string): Promise<{ abandoned: boolean; renewed: boolean }> {
  const script = `
    import { Lock, MemoryStorage } from ${JSON.stringify(import.meta.resolve("../../mod.ts"))};
    const events = [];
    const lock = new Lock({
      storage: new MemoryStorage(), name: "job", ttlMs: 300, onEvent: (e) => events.push(e.type),
    });
    const kept = await (async () => { const lease = await lock.acquire(); ${use} })();
    const pause = () => new Promise((resolve) => setTimeout(resolve, 40));
    for (let i = 0; i < 10; i++) { await pause(); gc(); }
    events.splice(0, events.length, ...events.filter((e) => e === "abandoned"));
    for (let i = 0; i < 10; i++) { await pause(); gc(); }
    console.log(JSON.stringify({
      abandoned: events.includes("abandoned"), renewed: events.includes("renewed"),
    }));
    globalThis.kept = kept;
  `;
  const { stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["eval", "--v8-flags=--expose-gc", script],
    cwd: new URL("../..", import.meta.url),
  }).output();
  const text = new TextDecoder().decode(stdout).trim();
  if (text === "") throw new Error(new TextDecoder().decode(stderr));
  return JSON.parse(text);
}

// covers: S1.15 S2.11 S4.10
Deno.test("a lease that nothing refers to stops renewing, is reported, and its ttl frees the lock", async () => {
  assertEquals(await afterCollection("lease.isHeld();"), { abandoned: true, renewed: false });
});

Deno.test("a lease is kept by lease.hold()", async () => {
  assertEquals(await afterCollection("lease.hold();"), { abandoned: false, renewed: true });
});

Deno.test("a lease is kept by its signal", async () => {
  assertEquals(await afterCollection("return lease.signal;"), { abandoned: false, renewed: true });
});

Deno.test("a lease is kept by its handle", async () => {
  assertEquals(await afterCollection("return lease;"), { abandoned: false, renewed: true });
});
