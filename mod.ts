/**
 * Distributed leases: only one of us does this, and whoever lost the right finds out before doing harm.
 *
 * A {@linkcode Lock} is a name over a storage. Acquiring it gives a {@linkcode Lease} with a fencing token,
 * which is renewed while it is used, released with its scope, and whose loss aborts its `signal` no later
 * than its deadline. This module is the core and {@linkcode MemoryStorage}, and runs everywhere, browsers
 * included; the other storages have entry points of their own.
 *
 * What it does not promise: that a holder which was frozen or cut off has stopped. Its effects are excluded
 * only where the resource compares `lease.fencingToken`.
 *
 * @example
 * ```ts
 * import { Lock, MemoryStorage } from "@holdfast/lock";
 *
 * const lock = new Lock({ storage: new MemoryStorage(), name: "nightly-report" });
 * {
 *   await using lease = await lock.acquire({ timeoutMs: 5000 });
 *   console.log(`working under fence ${lease.fencingToken}`);
 * }
 * ```
 *
 * @module
 */
export type { AcquireOptions, TryAcquireOptions } from "./src/core/acquire.ts";
export { type Clock, type Stamp, systemClock } from "./src/core/clock.ts";
export type { Entropy } from "./src/core/entropy.ts";
export {
  type ErrorCode,
  HoldfastError,
  LeaseLostError,
  LockTimeoutError,
  type LossReason,
  StaleFenceError,
  StorageError,
} from "./src/core/errors.ts";
export type { LockEvent } from "./src/core/events.ts";
export { FenceGate, type FenceGateOptions, type FenceStore } from "./src/core/fence_gate.ts";
export type { LeaseStatus } from "./src/core/holding.ts";
export { type Baton, type Fenced, Lease } from "./src/core/lease.ts";
export { Lock, type LockView, type TryWithResult } from "./src/core/lock.ts";
export type * from "./src/core/record.ts";
export type { LockOptions, WaitUntil } from "./src/core/settings.ts";
export type { Entry, ExecuteOptions, LeaseStorage, PollMs, Watch } from "./src/core/storage.ts";
export { MemoryStorage, type MemoryStorageOptions } from "./src/storage/memory.ts";
