import { assertEquals } from "@std/assert";
import { runScript } from "../support/run_script.ts";

const lives: readonly [keepAlive: boolean, output: string][] = [[true, "fired\n"], [false, ""]];
for (const [keepAlive, output] of lives) {
  Deno.test(`a process ${keepAlive ? "waits" : "does not wait"} for a timer with keepAlive: ${keepAlive}`, async () => {
    const result = await runScript(`
      import { systemClock } from "./src/core/clock.ts";
      systemClock.setTimer(${keepAlive ? 50 : 60_000}, () => console.log("fired"), {
        keepAlive: ${keepAlive},
      });
    `);
    assertEquals(result, output);
  });
}
