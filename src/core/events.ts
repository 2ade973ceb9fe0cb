/**
 * What happens to a lock, for logs and metrics. Events never carry a token.
 *
 * @module
 */
import type { LossReason } from "./errors.ts";

/** One thing that happened. */
export type LockEvent =
  & {
    /** The lock. */
    readonly name: string;
  }
  & (
    | { readonly type: "acquired"; readonly fence: number; readonly waitedMs: number }
    | { readonly type: "contended"; readonly retryAfterMs: number; readonly ahead: number }
    | { readonly type: "unavailable"; readonly error: unknown }
    | { readonly type: "renewed"; readonly fence: number; readonly tookMs: number }
    | {
      readonly type: "renewFailed";
      readonly fence: number;
      readonly remainingMs: number;
      readonly error: unknown;
    }
    | { readonly type: "lost"; readonly fence: number; readonly reason: LossReason }
    | {
      readonly type: "released";
      readonly fence: number;
      readonly heldMs: number;
      /** False where a `using` scope ended without waiting for the release, and with no `waitUntil`. */
      readonly awaited: boolean;
    }
    | { readonly type: "releaseFailed"; readonly fence: number; readonly error: unknown }
    | { readonly type: "detached"; readonly fence: number; readonly remainingMs: number }
    | { readonly type: "abandoned"; readonly fence: number; readonly remainingMs: number }
  );

/**
 * Tells a listener; what the listener throws, or rejects with, harms nothing.
 *
 * @param onEvent the listener
 * @param event what happened
 */
export function emit(onEvent: ((event: LockEvent) => void) | undefined, event: LockEvent): void {
  try {
    const result: unknown = onEvent?.(event);
    if (result instanceof Promise) result.catch(() => {});
  } catch {
    // A listener is not part of the protocol.
  }
}
