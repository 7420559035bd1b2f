/**
 * `<tg-series>`: lines over a stretch of time, drawn by uPlot, with the same numbers as a table. Marks
 * show changes of the configuration.
 * @module
 */

import uPlot from "../vendor/uplot-1.6.32/uPlot.esm.js";
import { color, onTheme } from "../lib/color.js";
import * as format from "../lib/format.js";
import { dirty } from "../lib/animation_loop.js";
import { SPAN_SECONDS } from "../lib/points.js";
import { drawIncidents, drawMarks } from "../lib/revision_marks.js";
import { offer } from "../lib/picture.js";
import { whenSeen } from "../lib/visibility.js";
import { line, twin } from "../lib/table.js";

/**
 * @typedef {{ column: string, label: string, color: string }} Line
 * @typedef {{ lines: Line[], show: (value: number | null) => string,
 *             tick?: (value: number) => string, steps?: number[],
 *             stacked?: boolean, log?: boolean, floor?: number }} Plan
 * @typedef {{ at: number, revision: number, author: string }} Mark
 * `steps`: distances between ticks, or with `log` the ticks themselves.
 */

const HEIGHT = 168;
const TABLE_ROWS = 12;
const FONT = '11px system-ui, "Segoe UI", sans-serif';

export class TgSeries extends HTMLElement {
  /** @type {Plan | null} */
  #plan = null;
  /** @type {uPlot | null} */
  #plot = null;
  /** @type {number[]} */
  #seconds = [];
  /** @type {(number | null)[][]} */
  #values = [];
  #figure = document.createElement("div");
  #table = document.createElement("table");
  #rebuild = true;
  #spanSeconds = SPAN_SECONDS;
  /** @type {Mark[]} */
  #marks = [];
  /** @type {import("../lib/revision_marks.js").Incident[]} */
  #incidents = [];
  #wide = 0;
  #seen = true;

  connectedCallback() {
    this.#figure.className = "figure";
    this.#figure.setAttribute("aria-hidden", "true");
    this.append(this.#figure, twin(this.#table, () => dirty(this)));
    offer(this, () => this.#figure.querySelector("canvas"), () => this.#plan?.lines ?? []);
    new ResizeObserver(([entry]) => this.#resized(entry.contentRect.width)).observe(this);
    whenSeen(this, (seen) => {
      this.#seen = seen;
      if (seen) dirty(this);
    });
    onTheme(() => {
      this.#rebuild = true;
      dirty(this);
    });
  }

  /** @param {Plan} plan */
  set plan(plan) {
    this.#plan = plan;
    this.#rebuild = true;
  }

  /** @param {number[]} seconds wall clock @param {Record<string, (number | null)[]>} columns */
  show(seconds, columns) {
    this.#seconds = seconds;
    this.#values = (this.#plan?.lines ?? []).map(({ column }) => columns[column] ?? []);
    dirty(this);
  }

  /** Length of the drawn range, up to the newest point. @param {number} seconds */
  set span(seconds) {
    this.#spanSeconds = seconds;
    this.#rebuild = true;
  }

  /** @param {Mark[]} marks */
  mark(marks) {
    const same = marks.length === this.#marks.length && marks.every(({ at }, nth) => at === this.#marks[nth].at);
    this.#marks = marks;
    if (!same) dirty(this);
  }

  /** Problems of the drawn range. @param {import("../lib/revision_marks.js").Incident[]} incidents */
  set incidents(incidents) {
    const same = JSON.stringify(incidents) === JSON.stringify(this.#incidents);
    this.#incidents = incidents;
    if (!same) dirty(this);
  }

  /** @param {any} plot */
  #drawMarks(plot) {
    drawMarks(plot, this.#marks);
    drawIncidents(plot, this.#incidents);
  }

  paint() {
    if (!this.#plan || !this.#seen) return; // painted when it comes into sight
    if (this.#rebuild || !this.#plot) this.#build();
    this.#plot?.setData(/** @type {any} */ ([this.#seconds, ...this.#heights()]));
    if (this.#table.closest("details")?.open) this.#fillTable();
  }

  /** Heights of the lines: in a stack each is drawn on top of those after it. */
  #heights() {
    if (!this.#plan?.stacked) return this.#values;
    /** @type {(number | null)[] | null} */
    let below = null;
    const stacked = [...this.#values].reverse().map((column) => {
      const base = below;
      below = column.map((value, at) => (value == null ? null : value + (base?.[at] ?? 0)));
      return below;
    });
    return stacked.reverse();
  }

  #build() {
    const plan = /** @type {Plan} */ (this.#plan);
    this.#plot?.destroy();
    this.#rebuild = false;
    /** @type {any} */
    const options = {
      width: Math.max(240, this.#wide || this.clientWidth),
      height: HEIGHT,
      padding: [8, 18, 0, 0], // the newest time is written beyond the right end
      cursor: { points: { size: 6 }, y: false, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { range: () => this.#span() }, y: scaleOf(plan) },
      hooks: { draw: [(/** @type {any} */ plot) => this.#drawMarks(plot)] },
      tzDate: (/** @type {number} */ at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      axes: [timeAxis(), valueAxis(plan)],
      series: [{ value: showTime }, ...plan.lines.map((one, at) => this.#series(one, at))],
    };
    this.#plot = new uPlot(options, /** @type {any} */ (undefined), this.#figure);
  }

  /** @param {Line} line @param {number} at */
  #series({ label, color: name }, at) {
    const plan = /** @type {Plan} */ (this.#plan);
    const stroke = color(name);
    const faint = stroke.replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)");
    return {
      label,
      stroke,
      width: plan.stacked ? 1 : name === "--q5" ? 2 : 1.5,
      fill: plan.stacked ? stroke : at === 0 && !plan.log ? faint : undefined,
      points: { show: false },
      // The value of the line; in a stack its height differs.
      value: (...[, , , index]) =>
        plan.show(this.#values[at]?.[index ?? this.#seconds.length - 1] ?? null),
    };
  }

  /** @returns {[number, number]} */
  #span() {
    const newest = this.#seconds.at(-1) ?? Date.now() / 1000;
    return [newest - this.#spanSeconds + 1, newest];
  }

  /** @param {number} wide */
  #resized(wide) {
    this.#wide = wide;
    const width = Math.max(240, wide);
    if (this.#plot && this.#plot.width !== width) this.#plot.setSize({ width, height: HEIGHT });
  }

  #fillTable() {
    const lines = this.#plan?.lines ?? [];
    const head = line("th", ["Time", ...lines.map(({ label }) => label)]);
    const newest = this.#seconds.map((_, at) => at).slice(-TABLE_ROWS).reverse();
    const rows = newest.map((at) => [
      format.instant(this.#seconds[at], this.#spanSeconds),
      ...this.#values.map((column) => this.#plan?.show(column[at]) ?? ""),
    ]);
    this.#table.replaceChildren(head, ...rows.map((cells) => line("td", cells)));
  }
}

/** @param {Plan} plan */
function scaleOf(plan) {
  if (plan.log) {
    const ticks = plan.steps ?? [];
    return { distr: 3, range: (...[, low, high]) => around(ticks, low ?? 0.01, high ?? 1) };
  }
  return { range: (...[, , high]) => [0, Math.max(plan.floor ?? 1, high * 1.1 || 0)] };
}

/** The ticks next to the data on both sides. @param {number[]} ticks @param {number} low @param {number} high */
function around(ticks, low, high) {
  const below = ticks.filter((tick) => tick <= low).at(-1) ?? ticks[0];
  const above = ticks.find((tick) => tick >= high && tick > below) ?? ticks[ticks.length - 1];
  return [below, above];
}

/** @param {number} size @param {number} space pixels between ticks, at least */
function axis(size, space) {
  return {
    size,
    space,
    font: FONT,
    stroke: color("--muted"),
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
  };
}

/** Distances between ticks: one minute to a week. */
const TIME_STEPS = [60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

function timeAxis() {
  const values = (/** @type {any} */ _, /** @type {number[]} */ splits) => {
    const days = splits.length > 1 && splits[1] - splits[0] >= 43_200;
    return splits.map((second) => (days ? format.day(second) : format.clock(second).slice(0, 5)));
  };
  return { ...axis(28, 64), incrs: TIME_STEPS, values };
}

/** @param {Plan} plan */
function valueAxis(plan) {
  const name = plan.tick ?? plan.show;
  return {
    ...axis(56, 32),
    values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map(name),
    ...(plan.log
      ? { splits: (...[, , low, high]) => within(plan.steps ?? [], low, high), filter: keepAll }
      : plan.steps && { incrs: plan.steps }),
  };
}

/** Not more than six ticks. @param {number[]} ticks @param {number} low @param {number} high */
function within(ticks, low, high) {
  const shown = ticks.filter((tick) => tick >= low && tick <= high);
  const stride = Math.ceil(shown.length / 6);
  return shown.filter((_, at) => (shown.length - 1 - at) % stride === 0);
}

/** @param {any} _ @param {number[]} splits */
const keepAll = (_, splits) => splits;

/** @param {any} _ @param {number | null} second */
const showTime = (_, second) => (second == null ? "now" : format.clock(second));

customElements.define("tg-series", TgSeries);
