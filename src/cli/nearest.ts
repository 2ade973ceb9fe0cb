/**
 * What somebody meant who mistyped a word.
 *
 * @module
 */

/**
 * Finds the word that a mistyped one is nearest to.
 *
 * @param typed what was typed
 * @param words what could be meant
 * @returns the nearest word; `undefined` if none is near
 */
export function nearest(typed: string, words: readonly string[]): string | undefined {
  const begun = typed.length > 2 ? words.find((word) => word.startsWith(typed)) : undefined;
  if (begun) return begun;
  const near = words.map((word) => ({ word, distance: distanceOf(typed, word) }))
    .filter(({ word, distance }) => distance <= Math.max(1, Math.floor(word.length / 3)))
    .sort((a, b) => a.distance - b.distance);
  return near[0]?.word;
}

/**
 * How many letters to insert, delete, replace or swap with their neighbour: the optimal string alignment
 * distance (Damerau, "A technique for computer detection and correction of spelling errors", 1964).
 */
function distanceOf(a: string, b: string): number {
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1];
      next[j] = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (same ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        next[j] = Math.min(next[j]!, before[j - 2]! + 1);
      }
    }
    before = row;
    row = next;
  }
  return row[b.length]!;
}
