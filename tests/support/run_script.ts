/**
 * Runs a piece of code in a process of its own, for what only a whole process can show: whether it ends by
 * itself, what its garbage collector does.
 *
 * @module
 */

/** Where the imports of a script start from. */
const ROOT = new URL("../../", import.meta.url);

/** Options of {@linkcode runScript}. */
export interface RunScriptOptions {
  /** Flags of `deno run`. */
  readonly flags?: readonly string[] | undefined;
  /** How long it may take, in milliseconds. */
  readonly timeoutMs?: number | undefined;
}

/**
 * Runs TypeScript, with imports relative to the root of the project, until it ends by itself.
 *
 * @returns what it printed
 * @throws if it fails or does not end in time
 */
export async function runScript(code: string, options: RunScriptOptions = {}): Promise<string> {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", "--no-check", "-A", ...options.flags ?? [], "-"],
    cwd: ROOT,
    env: { NO_COLOR: "1" },
    stdin: "piped",
    stdout: "piped",
    stderr: "piped",
  }).spawn();
  const writer = child.stdin.getWriter();
  await writer.write(new TextEncoder().encode(code));
  await writer.close();
  const timer = setTimeout(() => child.kill("SIGKILL"), options.timeoutMs ?? 15_000);
  const { success, signal, stdout, stderr } = await child.output();
  clearTimeout(timer);
  const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
  if (!success) throw new Error(`The script ${signal ?? "failed"}: ${text(stderr)}`);
  return text(stdout);
}
