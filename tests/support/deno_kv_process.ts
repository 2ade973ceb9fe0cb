/**
 * A Deno KV storage that lives in a process of its own: {@linkcode startKvProcess} gives its `execute`,
 * sent over pipes as lines of JSON. Run as a program this file is the other end.
 *
 * @module
 */
import { linesOf } from "../../scripts/lines.ts";
import type { Command, OutcomeOf } from "../../src/core/record.ts";
import type { LeaseStorage } from "../../src/core/storage.ts";
import { StorageError } from "../../src/core/errors.ts";
import { DenoKvStorage } from "../../src/storage/deno_kv.ts";

interface Call {
  readonly id: number;
  readonly name: string;
  readonly command: Command;
}

type Reply =
  | { readonly id: number; readonly outcome: unknown }
  | { readonly id: number; readonly message: string; readonly transient: boolean };

/** A storage in another process. */
export interface KvProcess {
  /** The storage, from here. */
  readonly storage: LeaseStorage;
  /** Ends the process. */
  close(): Promise<void>;
}

/** Starts a process with a storage on the Deno KV file at `path`. */
export function startKvProcess(path: string): KvProcess {
  const child = new Deno.Command(Deno.execPath(), {
    args: ["run", "-A", "--no-check", "--unstable-kv", import.meta.filename!, path],
    stdin: "piped",
    stdout: "piped",
  }).spawn();
  const input = child.stdin.getWriter();
  const waiting = new Map<number, (reply: Reply) => void>();
  let lastId = 0;
  const reading = (async () => {
    for await (const line of linesOf(child.stdout)) {
      const reply: Reply = JSON.parse(line);
      waiting.get(reply.id)?.(reply);
      waiting.delete(reply.id);
    }
  })();

  const storage: LeaseStorage = {
    pollMs: { min: 5, max: 50 },
    maxClockSkewMs: 0,
    async execute<C extends Command>(name: string, command: C): Promise<OutcomeOf<C>> {
      const call: Call = { id: ++lastId, name, command };
      const reply = new Promise<Reply>((resolve) => waiting.set(call.id, resolve));
      await input.write(new TextEncoder().encode(JSON.stringify(call) + "\n"));
      const answer = await reply;
      if ("outcome" in answer) return answer.outcome as OutcomeOf<C>;
      throw new StorageError(answer.message, { transient: answer.transient });
    },
  };
  return {
    storage,
    async close() {
      await input.close();
      await reading;
      await child.status;
    },
  };
}

if (import.meta.main) {
  const kv = await Deno.openKv(Deno.args[0]);
  const storage = new DenoKvStorage(kv, { maxClockSkewMs: 0 });
  const answer = async ({ id, name, command }: Call): Promise<Reply> => {
    try {
      return { id, outcome: await storage.execute(name, command) };
    } catch (error) {
      const { message, transient } = error as StorageError;
      return { id, message, transient };
    }
  };
  const pending = new Set<Promise<void>>();
  for await (const line of linesOf(Deno.stdin.readable)) {
    const work = answer(JSON.parse(line)).then((reply) => console.log(JSON.stringify(reply)));
    pending.add(work);
    work.finally(() => pending.delete(work));
  }
  await Promise.all(pending);
  kv.close();
}
