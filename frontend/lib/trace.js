/**
 * A Chrome trace as rows of slices, for `tg-trace`. Without DOM.
 * @module
 */

/**
 * @typedef {{ ph: string, name: string, cat?: string, ts: number, dur: number, pid: number,
 *             tid: number, args?: Record<string, any> }} TraceEvent
 * @typedef {{ name: string, kind: string, at: number, seconds: number, row: Row,
 *             args: Record<string, any> }} Slice  `at`: seconds from the beginning of the trace
 * @typedef {{ process: string, thread: string, depth: number, slices: Slice[] }} Row
 */

/** @param {{ traceEvents: TraceEvent[] }} trace @returns {{ rows: Row[], seconds: number }} */
export function read(trace) {
  /** @type {Map<string, string>} */
  const names = new Map();
  /** @type {Map<string, Row>} */
  const rows = new Map();
  let seconds = 0;
  for (const event of trace.traceEvents) {
    if (event.ph === "M") names.set(`${event.pid}/${event.tid}`, String(event.args?.name ?? ""));
    if (event.ph !== "X") continue;
    const depth = event.cat === "phase" ? 1 : 0;
    const row = rowOf(rows, names, event, depth);
    const slice = {
      name: String(event.name),
      kind: event.cat === "phase" ? String(event.name) : "action",
      at: event.ts / 1e6,
      seconds: event.dur / 1e6,
      row,
      args: event.args ?? {},
    };
    row.slices.push(slice);
    seconds = Math.max(seconds, slice.at + slice.seconds);
  }
  for (const { slices } of rows.values()) slices.sort((one, other) => one.at - other.at);
  return { rows: [...rows.values()].sort(inOrder), seconds };
}

/**
 * @param {Map<string, Row>} rows @param {Map<string, string>} names @param {TraceEvent} event
 * @param {number} depth
 */
function rowOf(rows, names, { pid, tid }, depth) {
  const key = `${pid}/${tid}/${depth}`;
  let row = rows.get(key);
  if (!row) {
    const process = names.get(`${pid}/0`) ?? `task ${pid}`;
    row = { process, thread: names.get(`${pid}/${tid}`) ?? `lane ${tid}`, depth, slices: [] };
    rows.set(key, row);
  }
  return row;
}

/** @param {Row} one @param {Row} other */
function inOrder(one, other) {
  return (
    one.process.localeCompare(other.process) ||
    one.thread.localeCompare(other.thread, undefined, { numeric: true }) ||
    one.depth - other.depth
  );
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
