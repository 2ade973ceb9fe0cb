/** Bundles the command line as one file for Node and Bun: `deno run -A tests/cli/bundle.ts FOLDER`. */
import { build, stop } from "esbuild";
import { fileURLToPath } from "node:url";

const [folder] = Deno.args;

await build({
  entryPoints: [fileURLToPath(new URL("../../src/cli/main.ts", import.meta.url))],
  outfile: `${folder}/cli.js`,
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node20",
  logLevel: "warning",
});
await stop();
Deno.writeTextFileSync(`${folder}/package.json`, `{ "type": "module" }`);
Deno.writeTextFileSync(
  `${folder}/bin.js`,
  `import { main } from "./cli.js";\nprocess.exit(await main());\n`,
);
