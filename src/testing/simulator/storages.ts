/**
 * The storages of a simulated process: the far end is the simulated server, the near end what the library
 * asks for, and the trust account listens at both.
 *
 * @module
 */
import { dispose } from "../../core/disposable.ts";
import type { Command, Outcome, OutcomeOf } from "../../core/record.ts";
import {
  type Change,
  type Register,
  RegisterStorage,
  type Versioned,
  type Write,
  type Written,
} from "../../core/register.ts";
import type { Entry, ExecuteOptions, LeaseStorage, PollMs, Watch } from "../../core/storage.ts";
import type { Network } from "./network.ts";
import type { Process } from "./process.ts";
import type { Server } from "./server.ts";
import type { Trusts } from "./trust.ts";
import type { World } from "./world.ts";

/** Where a storage of a process is. */
export interface Site {
  readonly world: World;
  readonly network: Network;
  readonly server: Server;
  readonly trusts: Trusts;
}

/** How a storage behaves. */
export interface StorageTraits {
  readonly pollMs: PollMs;
  readonly maxClockSkewMs: number;
  readonly retentionMs: number;
  /** Whether it can watch, and whom its hints name. */
  readonly watch: "none" | "changes" | "tickets";
  /** Whether it takes many commands at once. */
  readonly batches: boolean;
}

/** A storage that runs the machine on the server, as Redis does. */
export function scriptStorage(site: Site, process: Process, traits: StorageTraits): LeaseStorage {
  const { network, server } = site;
  const send = <T>(label: string, apply: () => T | Promise<T>, { signal }: ExecuteOptions) =>
    network.call(process, server, { label, apply, signal });
  const execute = <C extends Command>(name: string, command: C, options: ExecuteOptions = {}) =>
    send(
      labelOf(name, command),
      () => server.execute(name, command, process.id),
      options,
    );
  const executeAll = (entries: readonly Entry[], options: ExecuteOptions = {}) =>
    send(
      entries.map((e) => labelOf(e.name, e.command)).join(" and "),
      () => settleAll(entries.map((e) => () => server.execute(e.name, e.command, process.id))),
      options,
    );
  return {
    pollMs: traits.pollMs,
    maxClockSkewMs: 0,
    wakesTickets: traits.watch === "tickets",
    execute,
    ...(traits.batches ? { executeAll } : {}),
    ...(traits.watch === "none" ? {} : { watch: watchOf(site, process) }),
  };
}

/** A storage over a register: with the server's time, or with the clients'. */
export function registerStorage(
  site: Site,
  process: Process,
  traits: StorageTraits & { readonly serverTime: boolean; readonly absent: boolean },
): LeaseStorage {
  const { clock, entropy } = process;
  const { serverTime, absent, pollMs, retentionMs, maxClockSkewMs } = traits;
  // As MongoDB: where nobody is woken a waiter asks by a cheaper read, and a release goes by memory.
  const glances = serverTime && traits.watch === "none";
  const register: Register<number> = {
    key: (name) => name,
    read: (name, options) => read(site, process, name, options),
    write: (name, next, version, change, options) =>
      write(site, process, { name, next, version, change }, options),
    ...(absent ? { absent: 0 } : {}),
    ...(glances && {
      glance: async (name, options) => (await read(site, process, name, options)).value,
    }),
    ...(traits.watch === "none" ? {} : { watch: watchOf(site, process) }),
  };
  return new RegisterStorage(
    register,
    { serverTime, wakesTickets: traits.watch === "tickets", checksText: glances },
    { clock, entropy, pollMs, retentionMs, maxClockSkewMs },
  );
}

/** Listens to what the library asks of a storage, and what it learns. */
export function overheard(site: Site, process: Process, storage: LeaseStorage): LeaseStorage {
  const { trusts } = site;
  return {
    pollMs: storage.pollMs,
    maxClockSkewMs: storage.maxClockSkewMs,
    wakesTickets: storage.wakesTickets,
    async execute<C extends Command>(
      name: string,
      command: C,
      options: ExecuteOptions = {},
    ): Promise<OutcomeOf<C>> {
      const asked = trusts.asks(process, name, command);
      const own = { ...options };
      commands.set(own, command);
      const outcome = await storage.execute(name, command, own);
      trusts.answers(asked, outcome);
      return outcome;
    },
    ...(storage.executeAll && {
      async executeAll(entries: readonly Entry[], options?: ExecuteOptions) {
        const asked = entries.map((e) => trusts.asks(process, e.name, e.command));
        const results = await storage.executeAll!(entries, options);
        results.forEach((r, i) => r.status === "fulfilled" && trusts.answers(asked[i]!, r.value));
        return results;
      },
    }),
    ...(storage.watch && { watch: storage.watch.bind(storage) }),
  };
}

/** Which command a request of a register is for: the options go through `RegisterStorage` as they are. */
const commands = new WeakMap<ExecuteOptions, Command>();

function read(
  { network, server, trusts }: Site,
  process: Process,
  name: string,
  options: ExecuteOptions,
): Promise<Versioned<number>> {
  const command = commands.get(options)!;
  trusts.sends(process, command);
  return network.call(process, server, {
    label: `read for ${labelOf(name, command)}`,
    apply: () => server.read(name),
    signal: options.signal,
  });
}

function write(
  { network, server, trusts }: Site,
  process: Process,
  { name, next, version }: { name: string; next: Write; version: number; change: Change },
  options: ExecuteOptions,
): Promise<Written<number>> {
  const command = commands.get(options)!;
  trusts.sends(process, command);
  return network.call(process, server, {
    label: `write over ${version} for ${labelOf(name, command)}`,
    apply: () => server.write(name, next, version, process, command),
    signal: options.signal,
  });
}

/** A subscription is live some time after it was asked for, and again after the server was away. */
function watchOf(
  { world, network, server }: Site,
  process: Process,
): (name: string, wake: (next?: string) => void, mark?: string) => Watch {
  return (name, wake, mark) => {
    let isOver = process.isDead;
    let live = false;
    let unwatch: (() => void) | undefined;
    const subscribe = (): void => {
      if (isOver) return;
      network.call(process, server, { label: `watch ${name}`, apply: () => {} }).then(() => {
        if (isOver) return;
        unwatch = server.watch(name, { process, wake, mark, dropped: retry });
        live = true;
        wake();
      }, retry);
    };
    const retry = (): void => {
      live = false;
      unwatch?.();
      if (!isOver) world.at(world.nowMs + RECONNECT_MS, () => process.deliver(subscribe));
    };
    subscribe();
    return {
      get live() {
        return live;
      },
      [dispose]: () => {
        isOver = true;
        unwatch?.();
      },
    };
  };
}

/** A client reconnects this long after it lost its connection, in milliseconds. */
const RECONNECT_MS = 200;

function settleAll(work: readonly (() => Outcome)[]): Promise<PromiseSettledResult<Outcome>[]> {
  return Promise.allSettled(work.map(async (execute) => await execute()));
}

function labelOf(name: string, command: Command): string {
  const token = "token" in command ? ` ${command.token}` : "";
  return `${command.type} ${name}${token}`;
}
