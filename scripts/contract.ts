/**
 * Runs the contract suite on every storage: `deno task contract`, with `--table` to print storages by
 * guarantees with the number of tests that passed. Exits 1 if a test failed, or if a guarantee has no
 * passed test on a storage and no written reason.
 */
import { parseArgs } from "node:util";
import { gaps } from "../tests/contract/gaps.ts";
import { contractTests } from "../src/testing/mod.ts";

const GUARANTEES = Array.from({ length: 12 }, (_, i) => `G${i + 1}`);

const { values } = parseArgs({
  args: Deno.args,
  options: { table: { type: "boolean", default: false } },
});

const report = await Deno.makeTempFile({ suffix: ".xml" });
const { success } = await new Deno.Command(Deno.execPath(), {
  args: [
    "test",
    "--allow-all",
    "--no-check",
    "--parallel",
    "--sanitize-ops",
    "--sanitize-resources",
    `--junit-path=${report}`,
    ...values.table ? ["--reporter=dot"] : [],
    "tests/contract",
  ],
  stdout: "inherit",
  stderr: "inherit",
}).spawn().status;
const xml = await Deno.readTextFile(report);
await Deno.remove(report);

/** Passed tests by storage and guarantee. */
const passed = new Map<string, Map<string, number>>();
/** Storages whose server was missing, and what was said. */
for (
  const [, name, rest] of xml.matchAll(
    /<testcase name="contract ([^"]*)"[^>]*?(\/>|>[\s\S]*?<\/testcase>)/g,
  )
) {
  const [, storage, covers] = /^(.*?) \[([^\]]*)\]/.exec(name!) ?? [];
  if (!storage || !covers) continue;
  const cells = passed.get(storage) ?? new Map<string, number>();
  passed.set(storage, cells);
  if (/<(failure|error|skipped)/.test(rest!)) continue;
  for (const guarantee of covers.split(" ")) cells.set(guarantee, (cells.get(guarantee) ?? 0) + 1);
}

/** Why a storage has no test of a guarantee. */
function reasonFor(storage: string, guarantee: string): string | undefined {
  const skips = (gaps as Record<string, readonly { test: string; reason: string }[]>)[storage] ??
    [];
  const tests = contractTests.filter((t) => t.covers.includes(guarantee));
  const reasons = tests.map((t) => skips.find((s) => t.name.includes(s.test))?.reason);
  return reasons.every((r) => r !== undefined) ? reasons[0] : undefined;
}

let empty = 0;
const notes: string[] = [];
if (values.table) {
  const width = Math.max(...[...passed.keys()].map((s) => s.length), 8);
  console.log(`\n${"storage".padEnd(width)} ${GUARANTEES.map((g) => g.padStart(4)).join("")}`);
  for (const [storage, cells] of [...passed].sort()) {
    const row = GUARANTEES.map((guarantee) => {
      const count = cells.get(guarantee);
      if (count) return String(count).padStart(4);
      const reason = reasonFor(storage, guarantee);
      if (reason) notes.push(`${storage}, ${guarantee}: ${reason}`);
      else empty++;
      return (reason ? "-" : "none").padStart(4);
    });
    console.log(`${storage.padEnd(width)} ${row.join("")}`);
  }
  for (const note of notes) console.log(`  -  ${note}`);
}
if (empty > 0) console.error(`${empty} guarantees have neither a passed test nor a reason`);
if (passed.size === 0) console.error("No storage was tested");
Deno.exit(success && empty === 0 && passed.size > 0 ? 0 : 1);
