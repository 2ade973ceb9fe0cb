/**
 * From the start of a process to the end of its first acquire, against a process that does nothing.
 *
 * @module
 */
import { median } from "./report.ts";

/** What a process runs, and how long that takes. */
export interface ColdStart {
  readonly what: string;
  /** The median over all rounds. */
  readonly ms: number;
  /** The median of what it takes beyond an empty module in the same round. */
  readonly moreMs: number;
  /** The fastest, beyond the fastest with an empty module: what a busy machine disturbs least. */
  readonly moreAtBestMs: number;
}

/**
 * Starts processes in turns.
 *
 * @param rounds how often each
 */
export async function measureColdStart(rounds: number): Promise<ColdStart[]> {
  const root = new URL("../../", import.meta.url);
  const acquire = (from: string): string =>
    `import { Lock, MemoryStorage } from "${new URL(from, root)}";
const lock = new Lock({ storage: new MemoryStorage(), name: "cold" });
await (await lock.acquire()).release();
`;
  const sources: Readonly<Record<string, string>> = {
    "an empty module": "export {};\n",
    "the bundle, first acquire": acquire("dist/holdfast.js"),
    "mod.ts, first acquire": acquire("mod.ts"),
  };
  const folder = await Deno.makeTempDir({ prefix: "holdfast-cold-" });
  try {
    const times = new Map<string, number[]>();
    for (let round = -2; round < rounds; round++) {
      for (const [i, [what, source]] of Object.entries(sources).entries()) {
        const path = `${folder}/${i}.mjs`;
        if (round === -2) await Deno.writeTextFile(path, source);
        const startMs = performance.now();
        const { success } = await new Deno.Command(Deno.execPath(), {
          args: ["run", "--no-check", "--no-lock", "--no-config", path],
          stderr: "inherit",
        }).output();
        if (!success) throw new Error(`Cannot start ${what}`);
        if (round >= 0) times.set(what, [...times.get(what) ?? [], performance.now() - startMs]);
      }
    }
    const empty = times.get("an empty module")!;
    return [...times].map(([what, all]) => ({
      what,
      ms: median(all),
      moreMs: median(all.map((ms, i) => ms - empty[i]!)),
      moreAtBestMs: Math.min(...all) - Math.min(...empty),
    }));
  } finally {
    await Deno.remove(folder, { recursive: true });
  }
}
