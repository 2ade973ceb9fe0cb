/**
 * Many processes that begin at the same moment.
 *
 * @module
 */

/** The flags that this process has to hand on: those of `deno run` are not in `Deno.args`. */
const FLAGS = ["-A", "--no-check", "--unstable-kv"];

/** What a crowd came to. */
export interface Crowd<T> {
  /** From the start signal to the end of the last, in milliseconds. */
  readonly ms: number;
  /** The last line of each, parsed. */
  readonly results: readonly T[];
}

/**
 * Runs a script in many processes. Each prints `ready`, waits for a byte, works, and prints one line of JSON.
 *
 * @param size how many
 * @param script beside this file
 * @param args the arguments of each
 * @param flags of `deno run`
 * @param begin called when all are ready, before they start
 */
export async function runCrowd<T>(
  size: number,
  script: string,
  args: readonly string[],
  { flags = FLAGS, begin }: { flags?: readonly string[]; begin?: () => unknown } = {},
): Promise<Crowd<T>> {
  const children = Array.from({ length: size }, () =>
    new Deno.Command(Deno.execPath(), {
      args: ["run", ...flags, new URL(script, import.meta.url).pathname, ...args],
      stdin: "piped",
      stdout: "piped",
      stderr: "inherit",
    }).spawn());
  const readers = children.map((child) =>
    child.stdout.pipeThrough(new TextDecoderStream()).getReader()
  );
  for (const reader of readers) await reader.read();
  await begin?.();
  const startMs = performance.now();
  for (const child of children) {
    const writer = child.stdin.getWriter();
    await writer.write(new Uint8Array([10]));
    await writer.close();
  }
  const texts = await Promise.all(readers.map(async (reader) => {
    const { value } = await reader.read();
    return value;
  }));
  const ms = performance.now() - startMs;
  await Promise.all(children.map((child) => child.status));
  if (texts.some((text) => !text)) throw new Error(`A process of ${script} ended without a result`);
  return { ms, results: texts.map((text) => JSON.parse(text!) as T) };
}
