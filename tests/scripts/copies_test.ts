/**
 * Two bundled copies of the library in one program, as when two packages bring one each: every file of `dist/`
 * is self-contained, so a storage and a lock from two of them share no class.
 */
import { assert, assertEquals, assertGreater, assertRejects } from "@std/assert";
import { fileURLToPath, pathToFileURL } from "node:url";
import type * as Core from "../../mod.ts";
import type * as DenoKv from "../../src/storage/deno_kv.ts";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));

let folder = "";
let ours: typeof Core;
let theirs: typeof Core;
let kvs: typeof DenoKv;

Deno.test.beforeAll(async () => {
  folder = Deno.makeTempDirSync({ prefix: "holdfast-copies-" });
  // A process of its own, because the bundler's own process ends some time after it was told to.
  const args = ["run", "-A", "--no-check", "scripts/build.ts", "--out", folder];
  const { stderr } = await new Deno.Command(Deno.execPath(), { args, cwd: ROOT }).output();
  const url = (file: string) => pathToFileURL(`${folder}/${file}`).href;
  const load = () =>
    Promise.all([
      import(url("holdfast.js")),
      import(`${url("holdfast.js")}?copy`),
      import(url("deno-kv.js")),
    ]);
  [ours, theirs, kvs] = await load().catch(() => {
    throw new Error(new TextDecoder().decode(stderr));
  });
});

Deno.test.afterAll(() => Deno.removeSync(folder, { recursive: true }));

/** A lock of ours and one of theirs, on a storage of a third copy. */
async function withLocks(
  run: (locks: {
    our: Core.Lock;
    their: Core.Lock;
    storage: DenoKv.DenoKvStorage;
    kv: Deno.Kv;
  }) => Promise<void>,
): Promise<void> {
  const kv = await Deno.openKv(":memory:");
  try {
    const storage = new kvs.DenoKvStorage(kv, { maxClockSkewMs: 0 });
    const options = { storage, name: "shared", ttlMs: 5000 };
    await run({ our: new ours.Lock(options), their: new theirs.Lock(options), storage, kv });
  } finally {
    kv.close();
  }
}

Deno.test("the copies share no class", () => {
  assert(ours.Lock !== theirs.Lock && ours.LeaseLostError !== theirs.LeaseLostError);
  assertEquals("DenoKvStorage" in ours, false);
});

Deno.test("copies exclude each other, and fences rise over both", () =>
  withLocks(async ({ our, their }) => {
    const lease = await our.acquire();
    assertEquals(await their.tryAcquire(), null);
    await lease.release();
    const next = await their.acquire({ timeoutMs: 2000 });
    assertGreater(next.fencingToken, lease.fencingToken);
    await next.release();
  }));

Deno.test("a baton of one copy is resumed by another, once", () =>
  withLocks(async ({ our, their }) => {
    const lease = await our.acquire();
    const baton = JSON.parse(JSON.stringify(lease.detach()));
    const resumed = await their.resume(baton);
    assertGreater(resumed!.fencingToken, lease.fencingToken);
    assertEquals(await our.resume(baton), null);
    assertEquals(await resumed!.release(), true);
  }));

Deno.test("a lease of one copy guards a write of another, and its stale fence is an error of both", () =>
  withLocks(async ({ our, kv }) => {
    const lease = await our.acquire();
    const write = () => kvs.fencedCommit(kv, lease, (op) => op.set(["paid"], 42));
    assertEquals((await write()).ok, true);
    await lease.release();
    const error = await assertRejects(write);
    assert(error instanceof ours.StaleFenceError && error instanceof theirs.StaleFenceError);
    assertEquals([error.fence, error.code], [lease.fencingToken, "stale-fence"]);
  }));

Deno.test("a gate of one copy takes a lease of another", () =>
  withLocks(async ({ our }) => {
    const gate = new theirs.FenceGate();
    const old = await our.acquire();
    await old.release();
    const lease = await our.acquire();
    await gate.check("file", lease);
    const error = await assertRejects(() => gate.check("file", old));
    assert(error instanceof ours.StaleFenceError);
    await lease.release();
  }));

Deno.test("an error of a storage's copy is one of the lock's, which does not try again in vain", () =>
  withLocks(async ({ our, storage, kv }) => {
    await kv.set(["holdfast", "lock", "shared"], new TextEncoder().encode("not ours"));
    const [direct, through] = await Promise.all([
      assertRejects(() => storage.execute("shared", { type: "inspect" })),
      assertRejects(() => our.acquire()),
    ]);
    for (const error of [direct, through]) {
      assert(error instanceof ours.StorageError && error instanceof theirs.StorageError);
      assertEquals(error.transient, false);
    }
  }));

Deno.test("the loss of a lease of one copy is a LeaseLostError of the other", () =>
  withLocks(async ({ our, their }) => {
    const lease = await our.acquire();
    await their.forceRelease();
    await assertRejects(() => lease.renew());
    assert(lease.signal.reason instanceof theirs.LeaseLostError);
    assertEquals(lease.signal.reason.reason, "evicted");
  }));
