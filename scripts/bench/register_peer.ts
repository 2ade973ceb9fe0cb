/**
 * One other lock library on a product: `register_peer.ts PRODUCT PEER PLACE`. Prints `ready`, or why it cannot
 * run; then, for each line with a number on its input, does so many cycles and prints their median in
 * milliseconds.
 *
 * @module
 */
import { registerPeers } from "./register_peers.ts";
import { medianMs } from "./report.ts";

const [product, name, place] = Deno.args as [string, string, string];
const { open } = registerPeers.find((peer) => peer.product === product && peer.name === name)!;
try {
  const cycle = await open(place);
  await cycle();
  console.log("ready");
  for await (const text of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
    console.log(await medianMs(Number(text), cycle));
  }
} catch (error) {
  console.log((error as Error).message.split("\n")[0]);
}
Deno.exit(0);
