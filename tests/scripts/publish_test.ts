import { assertEquals, assertMatch } from "@std/assert";

Deno.test("the package can be published to JSR, without slow types", async () => {
  const { code, stdout, stderr } = await new Deno.Command(Deno.execPath(), {
    args: ["publish", "--dry-run", "--allow-dirty"],
    cwd: new URL("../..", import.meta.url),
    env: { NO_COLOR: "1" },
  }).output();
  const output = [stdout, stderr].map((bytes) => new TextDecoder().decode(bytes)).join("");
  assertEquals(code, 0, output);
  assertMatch(output, /mod\.ts/);
});
