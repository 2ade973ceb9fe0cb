/**
 * The source files of a folder.
 *
 * @module
 */

/** The paths of all TypeScript files below a folder. */
export async function* typescriptFiles(folder: string): AsyncGenerator<string> {
  for await (const entry of Deno.readDir(folder)) {
    const path = `${folder}/${entry.name}`;
    if (entry.isDirectory) yield* typescriptFiles(path);
    else if (entry.name.endsWith(".ts")) yield path;
  }
}
