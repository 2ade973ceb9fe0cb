/**
 * The npm package as a user has it: packed, installed into an empty project, its command and its module run
 * by Node and Bun, against a real Redis.
 */
import { assertEquals, assertMatch } from "@std/assert";
import { buildNpmPackage } from "../../scripts/build.ts";
import { withService } from "../../scripts/services.ts";

const RUNTIMES = [["node", ["node"]], ["bun", ["bun"]]] as const;

/** Uses the installed module as the README does, without syntax that Node 20 cannot parse. */
const MODULE = `
  import { Lock, MemoryStorage } from "@holdfast/lock";
  import { RedisStorage, ioredis } from "@holdfast/lock/redis";
  const lock = new Lock({ storage: new MemoryStorage(), name: "invoices" });
  const value = await lock.with((lease) => lease.isHeld());
  console.log(value, typeof RedisStorage, typeof ioredis, (await lock.inspect()).holders.length);
`;

async function run(command: readonly string[], cwd: string, env: Record<string, string> = {}) {
  const { code, stdout, stderr } = await new Deno.Command(command[0]!, {
    args: command.slice(1),
    cwd,
    env,
  }).output();
  const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes).trim();
  return { code, stdout: text(stdout), stderr: text(stderr) };
}

await withService("redis", ({ test, service }) => {
  test("the packed npm package runs under Node and Bun: the command and the module", async () => {
    const folder = await Deno.makeTempDir();
    try {
      const tarball = await buildNpmPackage(folder);
      await Deno.writeTextFile(`${folder}/package.json`, `{ "type": "module", "private": true }`);
      await Deno.writeTextFile(`${folder}/use.js`, MODULE);
      const flags = ["--no-audit", "--no-fund", "--ignore-scripts"];
      const installed = await run(["npm", "install", ...flags, tarball, "ioredis@6.0.0"], folder);
      assertEquals(installed.code, 0, installed.stderr);
      const HOLDFAST_STORAGE = service().url;
      for (const [name, runtime] of RUNTIMES) {
        const bin = "node_modules/@holdfast/lock/bin/holdfast.js";
        const child = ["sh", "-c", "echo fence $HOLDFAST_FENCING_TOKEN; exit 3"];
        const ran = await run([...runtime, bin, "run", `job ${name}`, "--", ...child], folder, {
          HOLDFAST_STORAGE,
        });
        assertMatch(ran.stdout, /^fence \d{16}$/, ran.stderr);
        assertEquals(ran.code, 3);
        const status = await run([...runtime, bin, "status", `job ${name}`, "--json"], folder, {
          HOLDFAST_STORAGE,
        });
        assertEquals(JSON.parse(status.stdout).holders, []);
        const used = await run([...runtime, "use.js"], folder);
        assertEquals(used.stdout, "true function function 0", used.stderr);
      }
      const linked = await run(["npx", "holdfast", "--help"], folder);
      assertEquals(linked.code, 0, linked.stderr);
    } finally {
      await Deno.remove(folder, { recursive: true });
    }
  });
});
