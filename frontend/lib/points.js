/**
 * The points of the charts: one a second, merged from frames that repeat the newest ones.
 * @module
 */

/** @typedef {{ first: number, count: number, columns: Record<string, Uint8Array> }} Wire */

export const SPAN_SECONDS = 300;

/** The newest five minutes, column by column. */
export class Points {
  /** Second of the newest point, in journal time. */
  newest = -1;
  /** @type {number[]} */
  seconds = [];
  /** @type {Record<string, (number | null)[]>} */
  columns = {};

  /**
   * Add the points of a frame.
   * @param {Wire} wire
   * @param {boolean} whole it is a snapshot and replaces everything
   * @returns {boolean} false when points between it and ours are missing
   */
  merge(wire, whole) {
    if (whole) {
      this.seconds = [];
      this.columns = {};
      this.newest = wire.first - 1;
    }
    if (this.newest < 0 || wire.first > this.newest + 1) return false;
    const skip = this.newest + 1 - wire.first;
    for (let at = skip; at < wire.count; at += 1) this.seconds.push(wire.first + at);
    for (const [name, data] of Object.entries(wire.columns)) this.#append(name, data, skip);
    this.newest = Math.max(this.newest, wire.first + wire.count - 1);
    this.#trim();
    return true;
  }

  /** @param {string} name @param {Uint8Array} data @param {number} skip */
  #append(name, data, skip) {
    // A copy: columns start at any offset of the frame, floats must start at a multiple of four.
    const values = new Float32Array(data.slice().buffer);
    const column = (this.columns[name] ??= []);
    for (let at = skip; at < values.length; at += 1) {
      column.push(Number.isNaN(values[at]) ? null : values[at]);
    }
  }

  #trim() {
    const surplus = this.seconds.length - SPAN_SECONDS;
    if (surplus <= 0) return;
    this.seconds.splice(0, surplus);
    for (const column of Object.values(this.columns)) column.splice(0, surplus);
  }
}
