/**
 * The resource that nobody guards: a file with one line, the id of whoever wrote it last. It compares no
 * fences, as a printer does not.
 *
 * @module
 */

/** What the file says; `null` where there is none yet. */
export function readPlain(path: string): string | null {
  try {
    return Deno.readTextFileSync(path);
  } catch (error) {
    if (error instanceof Deno.errors.NotFound) return null;
    throw error;
  }
}

/** Replaces the file in one step, so that a reader sees the old line or the new one. */
export function writePlain(path: string, id: string): void {
  const next = `${path}.${id}`;
  Deno.writeTextFileSync(next, id);
  Deno.renameSync(next, path);
}
