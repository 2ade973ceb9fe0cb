/**
 * Whether an update was lost. Every write says which value it read, so the writes that took effect one after the
 * other are a chain that ends at the last value; an acknowledged write outside of it was overwritten by somebody
 * who had not seen it.
 *
 * @module
 */
import type { Note, Resource } from "./terms.ts";

/** What became of the writes to one resource. */
export interface Updates {
  /** Writes that were acknowledged. */
  readonly applied: number;
  /** Writes that the fence kept out. */
  readonly stale: number;
  /** Writes that may or may not have been applied. */
  readonly unknown: number;
  /** Acknowledged writes that were overwritten unseen. */
  readonly lost: number;
  /** Acknowledged writes that the server lost with its data. */
  readonly lostWithData: number;
  /** Ids of writes that were said to be stale, and that somebody saw. */
  readonly undead: readonly string[];
}

/**
 * Counts.
 *
 * @param notes of all processes
 * @param resource which resource
 * @param last the value in the end
 * @param losses how often the server lost its data
 */
export function countUpdates(
  notes: readonly Note[],
  resource: Resource,
  last: string | null,
  losses: number,
): Updates {
  const from = new Map<string, string | null>();
  const how = new Map<string, "applied" | "stale">();
  for (const note of notes) {
    if (note.type === "write" && note.resource === resource) from.set(note.id, note.from);
    if (note.type === "wrote" && note.resource === resource) how.set(note.id, note.how);
  }
  const seen = new Set([...from.values(), last]);
  const acknowledged = [...from.keys()].filter((id) => how.get(id) === "applied");
  const chain = new Set<string>();
  for (let id = last; id !== null && !chain.has(id); id = from.get(id) ?? null) chain.add(id);

  const outside = acknowledged.filter((id) => !chain.has(id));
  const lost = losses === 0 ? outside.length : countForks(acknowledged, from, seen, last, losses);
  return {
    applied: acknowledged.length,
    stale: [...how.values()].filter((h) => h === "stale").length,
    unknown: from.size - how.size,
    lost,
    lostWithData: losses === 0 ? 0 : outside.length,
    undead: [...from.keys()].filter((id) => how.get(id) === "stale" && seen.has(id)),
  };
}

/**
 * Where the server lost its data there is one chain more for each time: more beginnings, more ends, or two
 * writes after the same value, are lost updates.
 */
function countForks(
  acknowledged: readonly string[],
  from: ReadonlyMap<string, string | null>,
  seen: ReadonlySet<string | null>,
  last: string | null,
  losses: number,
): number {
  const byFrom = Map.groupBy(acknowledged, (id) => from.get(id) ?? null);
  let forks = 0;
  for (const [value, ids] of byFrom) {
    forks += Math.max(0, ids.length - 1 - (value === null ? losses : 0));
  }
  const ends = acknowledged.filter((id) => id !== last && !seen.has(id)).length;
  return Math.max(forks, ends - losses);
}

/**
 * Writes that were applied although their holding was granted by a server that has lost its data since.
 *
 * @param notes of all processes
 * @param grantedMs when each holding was granted, by fence
 * @param losses when the server lost its data
 * @returns their ids
 */
export function findFromBeforeLoss(
  notes: readonly Note[],
  grantedMs: ReadonlyMap<number, number>,
  losses: readonly { readonly fromMs: number; readonly toMs: number }[],
): string[] {
  const applied = new Set(
    notes.flatMap((n) => n.type === "wrote" && n.how === "applied" ? [n.id] : []),
  );
  return notes.flatMap((note) => {
    if (note.type !== "write" || note.resource !== "guarded" || !applied.has(note.id)) return [];
    const isBefore = losses.some(({ fromMs, toMs }) =>
      note.atMs > toMs && (grantedMs.get(note.fence) ?? Infinity) < fromMs
    );
    return isBefore ? [note.id] : [];
  });
}
