/**
 * Looks over the shoulder of the library: a request whose outcome it does not learn may have taken effect all
 * the same, and then the operation that it belongs to, which goes on and asks again, took effect twice.
 *
 * @module
 */
import type { Command, LeaseStorage, OutcomeOf } from "../../mod.ts";
import type { LockCall } from "../../src/testing/mod.ts";
import { nowMs } from "./terms.ts";

/** How many tokens are remembered. */
const MAX_TOKENS = 64;

/**
 * The same storage.
 *
 * @param storage what is observed
 * @param onUnknown told of each request of unknown outcome, as an operation, and when it was sent
 * @returns a storage for locks
 */
export function observed(
  storage: LeaseStorage,
  onUnknown: (call: LockCall, sentAtMs: number) => void,
): LeaseStorage {
  const fences = new Map<string, number>();
  const { pollMs, maxClockSkewMs, wakesTickets } = storage;
  const callOf = (command: Command): LockCall | undefined => {
    switch (command.type) {
      case "acquire":
        return { type: "acquire" };
      case "adopt":
        return { type: "adopt", fence: command.fence };
      case "evict":
        return { type: "evict", fence: command.fence };
      case "release": {
        const fence = fences.get(command.token);
        return fence === undefined ? undefined : { type: "release", fence };
      }
    }
  };
  return {
    pollMs,
    maxClockSkewMs,
    wakesTickets,
    ...(storage.watch && { watch: storage.watch.bind(storage) }),
    ...(storage.executeAll && { executeAll: storage.executeAll.bind(storage) }),
    async execute<C extends Command>(
      name: string,
      command: C,
      options: { signal?: AbortSignal | undefined } = {},
    ): Promise<OutcomeOf<C>> {
      const sentAtMs = nowMs();
      let isNoted = false;
      const note = (): void => {
        const call = callOf(command);
        if (call && !isNoted) onUnknown(call, sentAtMs);
        isNoted = true;
      };
      // The library gives up before the storage does.
      options.signal?.addEventListener("abort", note, { once: true });
      try {
        const outcome = await storage.execute(name, command, options);
        const token = "newToken" in command
          ? command.newToken
          : "token" in command && command.token;
        if (token && outcome.type === "granted") {
          fences.set(token, outcome.fence);
          if (fences.size > MAX_TOKENS) fences.delete(fences.keys().next().value!);
        }
        return outcome;
      } catch (error) {
        note();
        throw error;
      } finally {
        options.signal?.removeEventListener("abort", note);
      }
    },
  };
}
