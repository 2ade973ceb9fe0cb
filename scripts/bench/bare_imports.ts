/**
 * What source files import from outside of themselves.
 *
 * @module
 */

const IMPORT = /^(?!\s*(?:\*|\/\/)).*?(?:\bfrom\s+|\bimport\s+|\bimport\(\s*)"([^"]+)"/gm;

/** The imports below a folder that are neither files of the package nor built into the runtimes (`node:`). */
export async function bareImports(folder: string): Promise<string[]> {
  const found: string[] = [];
  for await (const { name, isDirectory } of Deno.readDir(folder)) {
    const path = `${folder}/${name}`;
    if (isDirectory) found.push(...await bareImports(path));
    else if (name.endsWith(".ts")) {
      for (const [, what] of (await Deno.readTextFile(path)).matchAll(IMPORT)) {
        if (!/^(\.|node:)/.test(what!)) found.push(`${path}: ${what}`);
      }
    }
  }
  return found;
}
