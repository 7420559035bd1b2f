/**
 * Numbered units (cores, GPUs): their numbers as text, their holders' colours, their free chunks.
 * @module
 */

/**
 * @typedef {{ id: string, project: string, task: string, trajectory: string | null, kind: string,
 *             units: string, amount: number, shared: boolean, since: number }} Holder
 */

const HUES = ["--q4", "--q3", "--q5"];

/**
 * A colour for each holder: its own wherever that differs from its neighbour's.
 * @param {Holder[]} holders @returns {Map<string, string>} by id, custom properties
 */
export function huesOf(holders) {
  const first = (/** @type {Holder} */ { units }) => parseInt(units, 10) || 0;
  /** @type {Map<string, string>} */
  const hues = new Map();
  let before = -1;
  for (const { id } of [...holders].sort((one, other) => first(one) - first(other))) {
    let sum = 0;
    for (const letter of id.slice(-8)) sum = (sum * 31 + letter.charCodeAt(0)) >>> 0;
    const own = sum % HUES.length;
    before = own === before ? (own + 1) % HUES.length : own;
    hues.set(id, HUES[before]);
  }
  return hues;
}

/** `0-3,8` → numbers. @param {string} ranges @returns {number[]} */
export function expand(ranges) {
  if (!ranges) return [];
  return ranges.split(",").flatMap((part) => {
    const [low, high = low] = part.split("-").map(Number);
    return Array.from({ length: high - low + 1 }, (_, at) => low + at);
  });
}

/** Numbers → `0–3, 8`. @param {number[]} numbers */
export function shorten(numbers) {
  /** @type {number[][]} */
  const runs = [];
  for (const number of numbers) {
    const run = runs.at(-1);
    if (run && number === run[1] + 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ");
}

/**
 * Find the groups that contain an action's units.
 * @param {string[]} groups ranges of numbers @returns {(units: string) => number[]}
 */
export function groupFinder(groups) {
  /** @type {Map<number, number>} */
  const of = new Map();
  groups.forEach((group, at) => expand(group).forEach((number) => of.set(number, at)));
  return (units) => {
    const found = new Set(expand(units).flatMap((number) => of.get(number) ?? []));
    return [...found].sort((one, other) => one - other);
  };
}

/**
 * The largest aligned free blocks of 8, 4, 2 and 1, as chunks are cut: `1 × 4, 1 × 1`.
 * @param {boolean[]} free by place within the node
 */
export function freeChunks(free) {
  const left = [...free];
  /** @type {string[]} */
  const found = [];
  for (const size of [8, 4, 2, 1]) {
    let count = 0;
    for (let at = 0; at + size <= left.length; at += size) {
      if (!left.slice(at, at + size).every(Boolean)) continue;
      left.fill(false, at, at + size);
      count += 1;
    }
    if (count) found.push(`${count} × ${size}`);
  }
  return found.join(", ") || "none";
}
