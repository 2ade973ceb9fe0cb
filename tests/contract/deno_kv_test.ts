import { DenoKvStorage } from "../../src/storage/deno_kv.ts";
import { testLeaseStorage } from "../../src/testing/mod.ts";
import { startKvConnect } from "../support/kv_connect.ts";
import { denoKvSubject } from "../support/deno_kv_subject.ts";
import { startKvProcess } from "../support/deno_kv_process.ts";

/** All clients are on one machine. */
const OPTIONS = { maxClockSkewMs: 0 };

await testLeaseStorage({
  name: "deno-kv memory",
  test: Deno.test,
  setup: async () => {
    const kv = await Deno.openKv(":memory:");
    const clients = [new DenoKvStorage(kv, OPTIONS), new DenoKvStorage(kv, OPTIONS)] as const;
    return denoKvSubject(kv, clients, () => Promise.resolve(kv.close()));
  },
});

await testLeaseStorage({
  name: "deno-kv file",
  test: Deno.test,
  setup: async () => {
    const folder = await Deno.makeTempDir();
    const handles = [await Deno.openKv(`${folder}/kv`), await Deno.openKv(`${folder}/kv`)] as const;
    const [a, b] = handles;
    const clients = [new DenoKvStorage(a, OPTIONS), new DenoKvStorage(b, OPTIONS)] as const;
    return denoKvSubject(b, clients, async () => {
      for (const kv of handles) kv.close();
      await Deno.remove(folder, { recursive: true });
    });
  },
});

await testLeaseStorage({
  name: "deno-kv processes",
  test: Deno.test,
  setup: async () => {
    const folder = await Deno.makeTempDir();
    const kv = await Deno.openKv(`${folder}/kv`);
    const other = startKvProcess(`${folder}/kv`);
    return denoKvSubject(kv, [new DenoKvStorage(kv, OPTIONS), other.storage], async () => {
      await other.close();
      kv.close();
      await Deno.remove(folder, { recursive: true });
    });
  },
});

await testLeaseStorage({
  name: "deno-kv remote",
  test: Deno.test,
  setup: async () => {
    const server = startKvConnect();
    Deno.env.set("DENO_KV_ACCESS_TOKEN", "any");
    const handles = [await Deno.openKv(server.url), await Deno.openKv(server.url)] as const;
    const options = { ...OPTIONS, location: "remote" } as const;
    const [a, b] = handles;
    const clients = [new DenoKvStorage(a, options), new DenoKvStorage(b, options)] as const;
    return denoKvSubject(b, clients, async () => {
      for (const kv of handles) kv.close();
      await server.close();
    });
  },
});
