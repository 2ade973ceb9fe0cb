/**
 * The symbols of explicit resource management, also where the runtime lacks them (Safari, old Node).
 * Library code implements them and never uses `using` syntax, which not every runtime can parse.
 *
 * @module
 */

/** `Symbol.dispose`, or what stands for it. */
export const dispose: typeof Symbol.dispose = Symbol.dispose ?? Symbol.for("Symbol.dispose");

/** `Symbol.asyncDispose`, or what stands for it. */
export const asyncDispose: typeof Symbol.asyncDispose = Symbol.asyncDispose ??
  Symbol.for("Symbol.asyncDispose");
