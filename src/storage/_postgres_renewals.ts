/**
 * Many renewals by one read and one write, for the heartbeat of a process that holds many leases.
 *
 * @module
 */
import { decodeStored, encodeRecord, lastExpiryMs } from "../core/codec.ts";
import { type LeaseRecord, type Outcome, type RenewCommand, step } from "../core/record.ts";
import type { Entry } from "../core/storage.ts";
import type { PostgresRow } from "./_postgres_clients.ts";
import type { PostgresRegister } from "./_postgres_register.ts";

/** A renewal, and which entry it was. */
interface Numbered {
  readonly index: number;
  readonly command: RenewCommand;
}

/** What becomes of a record by all renewals of its holdings. */
interface Renewed {
  readonly name: string;
  readonly version: string;
  readonly before: LeaseRecord;
  readonly record: LeaseRecord;
  readonly outcomes: readonly (readonly [index: number, outcome: Outcome])[];
}

/**
 * Renews what can be renewed together. A refusal comes from this read, as it would alone.
 *
 * @param register reads and writes
 * @param entries locks and what to do to them
 * @param retentionMs for how long a record outlives its last expiry, in milliseconds
 * @returns an outcome for each entry; none for what has to be done alone: other commands, and records that
 *   are not there, are not records, or changed between the read and the write
 * @throws {StorageError} if the outcome is unknown: to be asked again
 */
export async function renewTogether(
  register: PostgresRegister,
  entries: readonly Entry[],
  retentionMs: number,
): Promise<(Outcome | undefined)[]> {
  const outcomes: (Outcome | undefined)[] = entries.map(() => undefined);
  const byName = new Map<string, Numbered[]>();
  entries.forEach(({ name, command }, index) => {
    if (command.type !== "renew") return;
    const renewals = byName.get(name) ?? [];
    byName.set(name, [...renewals, { index, command }]);
  });
  if (byName.size === 0) return outcomes;

  const rows = await register.readAll([...byName.keys()]);
  const all = rows.flatMap((row) => renew(row, byName.get(row["name"] as string) ?? []) ?? []);
  const changed = all.filter(({ before, record }) => record !== before);
  const written = changed.length === 0 ? [] : await register.writeAll(
    changed.map(({ name, version, record }) => {
      const ttls = byName.get(name)!.map(({ command }) => command.ttlMs);
      return {
        name,
        version,
        value: encodeRecord(record),
        retain_until_ms: lastExpiryMs(record) + Math.max(retentionMs, ...ttls),
      };
    }),
  );
  const isWritten = new Set(written);
  for (const renewed of all) {
    if (renewed.record !== renewed.before && !isWritten.has(renewed.name)) continue;
    for (const [index, outcome] of renewed.outcomes) outcomes[index] = outcome;
  }
  return outcomes;
}

/** Steps through all renewals of one record; nothing if it is not one, which its own command will say. */
function renew(row: PostgresRow, renewals: readonly Numbered[]): Renewed | undefined {
  const { name, version, value, us: nowUs } = row as Record<string, string>;
  let before: LeaseRecord;
  try {
    before = decodeStored(name!, value!);
  } catch {
    return undefined;
  }
  let record = before;
  const outcomes = renewals.map(({ index, command }) => {
    const next = step(record, command, Number(nowUs));
    record = next.record;
    return [index, next.outcome] as const;
  });
  return { name: name!, version: version!, before, record, outcomes };
}
