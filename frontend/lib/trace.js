/**
 * A trace as rows of slices, for `tg-trace`. Without DOM.
 * @module
 */

/**
 * An action: index of its thread, title, submission and duration in seconds, seconds of its phases, id, state, outcome, units, node.
 * @typedef {[number, string, number, number, number, number, number, string, string, string | null, any, string | null]} Traced
 * @typedef {{ start: string | null, most_actions: number, cut: boolean, processes: string[], threads: [number, string][],
 *             actions: Traced[] }} Trace  see tangram_web/dashboard/trace_rows.py
 * @typedef {{ name: string, kind: string, at: number, seconds: number, row: Row,
 *             args: Record<string, any> }} Slice  `at`: seconds from the beginning of the trace
 * @typedef {{ process: string, thread: string, depth: number, slices: Slice[] }} Row
 */

const PHASES = ["queue", "overhead", "execution"];
const NONE = Object.freeze({});

/** @param {Trace} trace @returns {{ rows: Row[], seconds: number }} */
export function read({ processes, threads, actions }) {
  /** @type {[Row, Row][]} of actions, and of their phases */
  const pairs = threads.map(([process, thread]) => [
    { process: processes[process], thread, depth: 0, slices: [] },
    { process: processes[process], thread, depth: 1, slices: [] },
  ]);
  let whole = 0;
  for (const [thread, name, at, seconds, queue, overhead, execution, id, state, outcome, units, node] of actions) {
    const [row, below] = pairs[thread];
    row.slices.push({ name, kind: "action", at, seconds, row, args: { id, state, outcome, units, node } });
    let begin = at;
    [queue, overhead, execution].forEach((length, nth) => {
      if (length) below.slices.push({ name: PHASES[nth], kind: PHASES[nth], at: begin, seconds: length, row: below, args: NONE });
      begin += length;
    });
    whole = Math.max(whole, at + seconds);
  }
  const rows = pairs.flat().filter(({ slices }) => slices.length);
  for (const { slices } of rows) slices.sort((one, other) => one.at - other.at);
  return { rows: rows.sort(inOrder), seconds: whole };
}

const { compare } = new Intl.Collator(undefined, { numeric: true });

/** @param {Row} one @param {Row} other */
function inOrder(one, other) {
  return compare(one.process, other.process) || compare(one.thread, other.thread) || one.depth - other.depth;
}

/**
 * The slices of a row that are seen between two instants; of those that fall on the same pixel,
 * one. A row's slices do not overlap, so their ends are in the order of their beginnings.
 * @param {Slice[]} slices @param {number} from @param {number} to @param {number} pixel seconds
 */
export function seen(slices, from, to, pixel) {
  let [low, high] = [0, slices.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (slices[middle].at + slices[middle].seconds < from) low = middle + 1;
    else high = middle;
  }
  const found = [];
  let drawn = -Infinity;
  for (let at = low; at < slices.length && slices[at].at <= to; at += 1) {
    const end = slices[at].at + slices[at].seconds;
    if (end - drawn < pixel && found.length) continue;
    found.push(slices[at]);
    drawn = end;
  }
  return found;
}

/** A window of the trace after zooming by `factor` about an instant, within the whole. @param {[number, number]} span @param {number} about @param {number} factor @param {number} whole @returns {[number, number]} */
export function zoom([from, to], about, factor, whole) {
  const wide = Math.min(whole, Math.max(whole / 1e6, (to - from) * factor));
  const share = to > from ? (about - from) / (to - from) : 0;
  return within(about - share * wide, wide, whole);
}

/** @param {number} from @param {number} wide @param {number} whole @returns {[number, number]} */
export function within(from, wide, whole) {
  const start = Math.max(0, Math.min(whole - wide, from));
  return [start, start + wide];
}
