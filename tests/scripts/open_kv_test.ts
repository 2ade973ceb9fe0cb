import { assertEquals, assertRejects } from "@std/assert";
import { openKv, Sentence } from "../../scripts/open_kv.ts";

Deno.test("openKv() opens a file", async () => {
  const folder = await Deno.makeTempDir();
  const kv = await openKv(`${folder}/kv`);
  await kv.set(["a"], 1);
  kv.close();
  await Deno.remove(folder, { recursive: true });
});

Deno.test("openKv() says in one sentence what to do about a file that cannot be used", async () => {
  const folder = await Deno.makeTempDir();
  await Deno.writeTextFile(`${folder}/text`, "Not a database. ".repeat(100));
  const sentences: [string, string][] = [
    [
      `${folder}/no/such/folder/kv`,
      "it cannot be read and written: give a path in a folder that exists and is yours",
    ],
    [folder, "it cannot be read and written: give a path in a folder that exists and is yours"],
    [`${folder}/text`, "it is something else: give the path of a Deno KV file, or of none yet"],
  ];
  for (const [path, why] of sentences) {
    const error = await assertRejects(() => openKv(path), Sentence);
    assertEquals(error.message, `Cannot open Deno KV file "${path}" as ${why}`);
  }
  await Deno.remove(folder, { recursive: true });
});

/** Runs a program that opens a database, without our configuration. */
async function openElsewhere(...flags: string[]): Promise<string> {
  const code = `import { openKv } from ${
    JSON.stringify(import.meta.resolve("../../scripts/open_kv.ts"))
  };
    await openKv("/nowhere/kv").catch((error) => console.log(error.message));`;
  const folder = await Deno.makeTempDir();
  await Deno.writeTextFile(`${folder}/main.ts`, code);
  const { stdout } = await new Deno.Command(Deno.execPath(), {
    args: ["run", "--no-config", "--no-check", "--no-prompt", ...flags, `${folder}/main.ts`],
  }).output();
  await Deno.remove(folder, { recursive: true });
  return new TextDecoder().decode(stdout).trim();
}

Deno.test("openKv() says in one sentence what to do where Deno KV or the permission is missing", async () => {
  assertEquals(
    await openElsewhere(),
    "Cannot open Deno KV as this Deno has it behind a flag: add --unstable-kv to the command, " +
      'or "unstable": ["kv"] to deno.json',
  );
  assertEquals(
    await openElsewhere("--unstable-kv"),
    'Cannot open Deno KV file "/nowhere/kv" as this program may not use it: ' +
      "run it with --allow-read and --allow-write",
  );
});
