/**
 * Lists every promise with the tests that say they show it, and fails for one that has neither a test nor
 * a written reason: `deno task promises`.
 */
import { behaviours, guarantees, reasons } from "../tests/promises.ts";
import { typescriptFiles } from "./typescript_files.ts";

/** A test file with the promises that its tests name. */
const COVERS = /\/\/ covers: ([GS\d. ]+)$|covers: \[([^\]]*)\]/gm;

/** Which places show a promise: `file:line`. */
async function collect(): Promise<Map<string, string[]>> {
  const places = new Map<string, string[]>();
  for (const folder of ["tests", "src/testing"]) {
    for await (const path of typescriptFiles(folder)) {
      const text = await Deno.readTextFile(path);
      for (const match of text.matchAll(COVERS)) {
        const line = text.slice(0, match.index).split("\n").length;
        for (const [id] of `${match[1] ?? match[2]}`.matchAll(/G\d+|S\d\.\d+/g)) {
          places.set(id, [...places.get(id) ?? [], `${path}:${line}`]);
        }
      }
    }
  }
  return places;
}

const places = await collect();
const promises = [...guarantees, ...behaviours];
const missing: string[] = [];
for (const [id, text] of promises) {
  const tests = places.get(id) ?? [];
  const reason = reasons[id];
  console.log(`${id} ${text}`);
  if (tests.length > 0) {
    console.log(`    ${tests.length} tests, first ${tests.slice(0, 3).join(", ")}`);
  } else if (reason) console.log(`    no test: ${reason}`);
  else missing.push(id);
}
const known = new Set(promises.map(([id]) => id));
const unknown = [...places.keys()].filter((id) => !known.has(id));
console.log(
  `\n${promises.length} promises, ${promises.length - missing.length} with a test or a reason`,
);
if (unknown.length > 0) {
  console.error(`Tests name promises that do not exist: ${unknown.join(", ")}`);
}
if (missing.length > 0) console.error(`Neither a test nor a reason: ${missing.join(", ")}`);
if (missing.length + unknown.length > 0) Deno.exit(1);
