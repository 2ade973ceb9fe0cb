/** `Deno.test`, where there is no Deno, on the runner that Node and Bun share. */
import { test } from "node:test";

type Run = (t: { step(name: string, run: () => unknown): Promise<void> }) => unknown;

const steps = {
  step: async (_name: string, run: () => unknown): Promise<void> => void await run(),
};

function register(
  what: string | { name: string; fn: Run; ignore?: boolean },
  run?: Run,
): void {
  const { name, fn, ignore } = typeof what === "string"
    ? { name: what, fn: run!, ignore: false }
    : what;
  if (ignore) test.skip(name, () => {});
  else test(name, async () => void await fn(steps));
}

(globalThis as { Deno?: unknown }).Deno ??= { test: register };
