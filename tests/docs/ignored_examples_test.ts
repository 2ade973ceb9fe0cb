/**
 * Examples that are not run, because they need a server, must compile all the same. What an example in the
 * middle of a text leaves out is declared for it here.
 */
import { assertEquals, assertGreater } from "@std/assert";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));

/** What stands for a name that an example uses and does not say, by file. */
const LEFT_OUT: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "src/storage/dynamodb.ts": {
    client: `declare const client: import("@aws-sdk/client-dynamodb").DynamoDB;`,
    storage: `declare const storage: import("@holdfast/lock/dynamodb").DynamoDbStorage;`,
    lease: `declare const lease: import("@holdfast/lock").Lease;`,
    fenceCheck: `import { fenceCheck } from "@holdfast/lock/dynamodb";`,
    fenced: `import { fenced } from "@holdfast/lock/dynamodb";`,
  },
  "src/storage/mongodb.ts": {
    client: `declare const client: import("mongodb").MongoClient;`,
    storage: `declare const storage: import("@holdfast/lock/mongodb").MongoDbStorage;`,
    lease: `declare const lease: import("@holdfast/lock").Lease;`,
    fenceCheck: `import { fenceCheck } from "@holdfast/lock/mongodb";`,
    invoices: `declare const invoices: import("mongodb").Collection;`,
  },
  "docs/write_a_storage.md": {
    Lock: `import { Lock } from "@holdfast/lock";`,
    EtcdStorage: `import { EtcdStorage } from "${ROOT}docs/examples/etcd_register.ts";`,
    url: `declare const url: string;`,
  },
};

/** The files that have examples, below the root. */
async function* filesIn(folder: string): AsyncGenerator<string> {
  for await (const { name, isDirectory } of Deno.readDir(ROOT + folder)) {
    const path = `${folder}/${name}`;
    if (isDirectory) yield* filesIn(path);
    else if (/\.(ts|md)$/.test(name)) yield path;
  }
}

/** The examples of a file that are marked as not to be run. */
function ignoredExamples(text: string): string[] {
  const blocks = text.matchAll(/^( \* )?```ts ignore\n(.*?)^( \* )?```$/gms);
  return Array.from(blocks, ([, , block]) => block!.replaceAll(/^ \* ?/gm, ""));
}

/** An example as a module of its own. */
function moduleOf(path: string, example: string): string {
  const declared = Object.entries(LEFT_OUT[path] ?? {}).filter(([name]) =>
    new RegExp(`\\b${name}\\b`).test(example) &&
    !new RegExp(`^(import|const|await using) [^=;]*\\b${name}\\b`, "m").test(example)
  );
  return [...declared.map(([, line]) => line), example, "export {};\n"].join("\n");
}

Deno.test("examples that are not run compile", async () => {
  const folder = await Deno.makeTempDir();
  try {
    const files: string[] = [];
    const paths = ["mod.ts", "README.md"];
    for (const from of ["src", "docs"]) {
      for await (const path of filesIn(from)) paths.push(path);
    }
    for (const path of paths) {
      for (const example of ignoredExamples(await Deno.readTextFile(ROOT + path))) {
        const file = `${folder}/${path.replaceAll(/\W/g, "_")}_${files.length}.ts`;
        await Deno.writeTextFile(file, moduleOf(path, example));
        files.push(file);
      }
    }
    assertGreater(files.length, 10);
    const { code, stderr } = await new Deno.Command(Deno.execPath(), {
      args: ["check", "--config", `${ROOT}deno.json`, ...files],
      cwd: ROOT,
      env: { NO_COLOR: "1" },
    }).output();
    assertEquals(code, 0, new TextDecoder().decode(stderr));
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
});
