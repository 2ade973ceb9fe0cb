/**
 * Checks that dependencies point inward and that ambient things stay at the edge:
 * `deno task check:imports`.
 */
import { typescriptFiles } from "./typescript_files.ts";

/** Who may import what, by folder; the first rule that fits a file counts. */
const RULES: readonly { files: RegExp; mayImport: RegExp; why: string }[] = [
  { files: /^src\/core\//, mayImport: /^src\/core\//, why: "core imports only itself" },
  {
    files: /^src\/storage\//,
    mayImport: /^src\/(core\/|storage\/(_|redis_))/,
    why: "a storage imports core, and shares only files named _x or redis_x",
  },
  {
    files: /^src\/testing\//,
    mayImport: /^src\/(core\/|testing\/|storage\/memory)|^node:test$/,
    why: "testing imports core, memory and itself",
  },
  {
    files: /^src\/cli\//,
    mayImport: /^(src\/|mod\.ts$|node:)/,
    why: "the command line has no packages",
  },
  {
    files: /^mod\.ts$/,
    mayImport: /^src\/(core\/|storage\/memory)/,
    why: "the public door is the core and memory",
  },
];

/** What the core reaches for only in the files named here. */
const AMBIENT =
  /\b(Date\b|performance\.|setTimeout|setInterval|Math\.random|crypto\.|console\.|Deno\.|process\.|fetch\()/;
const AMBIENT_FILES = /^src\/core\/(clock|entropy)\.ts$/;

/** The path, from the top, of what a file imports. */
function resolve(file: string, specifier: string): string {
  if (!specifier.startsWith(".")) return specifier;
  return new URL(specifier, `file:///${file}`).pathname.slice(1);
}

const complaints: string[] = [];
for await (const file of typescriptFiles("src")) await check(file);
await check("mod.ts");

async function check(file: string): Promise<void> {
  const text = await Deno.readTextFile(file);
  const code = text.replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "");
  const rule = RULES.find((r) => r.files.test(file));
  for (const [, specifier] of code.matchAll(/(?:from|import\(?)\s*"([^"]+)"/g)) {
    const target = resolve(file, specifier!);
    if (rule && !rule.mayImport.test(target)) {
      complaints.push(`${file} imports ${target}: ${rule.why}`);
    }
  }
  if (file.startsWith("src/core/") && !AMBIENT_FILES.test(file)) {
    const found = AMBIENT.exec(code.replace(/"[^"\n]*"|`[^`]*`/g, ""));
    if (found) complaints.push(`${file} reaches for ${found[0]}: only clock.ts and entropy.ts may`);
  }
}

for (const complaint of complaints) console.error(complaint);
if (complaints.length > 0) Deno.exit(1);
console.log("Imports point inward");
