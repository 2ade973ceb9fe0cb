/**
 * What it takes to test code that uses leases, and storages that keep them: a clock that stands still, a
 * storage with faults, one contract suite for every storage, and a simulator.
 *
 * @example
 * ```ts
 * import { ManualClock } from "@holdfast/lock/testing";
 * import { assertEquals } from "@std/assert";
 *
 * const clock = new ManualClock(0);
 * await clock.advance(250);
 * assertEquals(clock.read(), { monotonicMs: 250, wallMs: 250 });
 * ```
 *
 * @module
 */
export {
  type ContractOptions,
  type ContractSubject,
  type ContractTest,
  contractTests,
  testLeaseStorage,
} from "./contract.ts";
export {
  type Fault,
  type FaultOptions,
  FaultyStorage,
  type FaultyStorageOptions,
} from "./faulty_storage.ts";
export { checkHistory, type CheckHistoryOptions, type LockVerdict } from "./linearizability.ts";
export {
  formatHistory,
  type HistoryLine,
  type LockCall,
  type LockOperation,
  type LockOutcome,
  parseHistory,
} from "./lock_history.ts";
export { ManualClock } from "./manual_clock.ts";
export {
  type Deed,
  type Failure,
  type FaultRates,
  type RunOutcome,
  type Scenario,
  scenarioOf,
  shrink,
  simulate,
  type SimulatedFault,
  type SimulateOptions,
  type SimulationResult,
  type Violation,
} from "./simulator.ts";
