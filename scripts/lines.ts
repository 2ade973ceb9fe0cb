/**
 * Lines of text from a stream of bytes.
 *
 * @module
 */

/** Splits UTF-8 bytes at line feeds; drops an unfinished last line, as a killed writer leaves one. */
export async function* linesOf(bytes: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of bytes) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop()!;
    yield* lines;
  }
}
