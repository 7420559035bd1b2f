/**
 * The strip of resources: one row for each, with what is held, free, lost and wanted, and its trend.
 * @module
 */

import { dirty } from "./animation_loop.js";
import * as format from "./format.js";

/**
 * @typedef {{ id: string, group: string, name: string, note: string, link: string, held: number,
 *             capacity: number, lost: number, wanted: number, unit: string, free_note: string,
 *             waiting: number, waiting_word: string, waiting_link: string,
 *             longest_seconds: number | null, state: string, chip: string,
 *             trend: [number, number][] }} Resource
 */

/**
 * A point of a trend: held and wanted as shares of the capacity; null: nothing was measured.
 * @typedef {[number, number] | null} Point
 */

const SPARK = { width: 120, height: 26, cap: 7 };

/**
 * The trends of a longer range by the id of their row (see tangram_web/problems/trends.py); null when they cannot be read.
 * @param {number} seconds @returns {Promise<Record<string, Point[]> | null>}
 */
export async function loadTrends(seconds) {
  const answer = await fetch(`/resources.json?trend=${seconds}`).catch(() => null);
  return answer?.ok && !answer.redirected ? (await answer.json()).rows : null;
}

export class ResourceStrip {
  /** @type {Resource[]} */
  #rows = [];
  #order = "";
  /** Trends of a chosen range; null: those of the last half hour, which rows have. @type {Record<string, Point[]> | null} */
  #trends = null;

  /** @param {HTMLElement} place the section of the page */
  constructor(place) {
    this.place = place;
    this.body = /** @type {HTMLElement} */ (place.querySelector("tbody"));
    this.template = /** @type {HTMLTemplateElement} */ (place.querySelector("template"));
    this.more = /** @type {HTMLButtonElement} */ (place.querySelector(".more"));
    this.more.addEventListener("click", () => place.classList.toggle("all"));
  }

  /** @param {Resource[]} rows */
  show(rows) {
    this.#rows = rows;
    dirty(this);
  }

  /** Show the trends of a chosen range from now on. @param {Record<string, Point[]>} trends */
  showTrends(trends) {
    this.#trends = trends;
    dirty(this);
  }

  paint() {
    const order = this.#rows.map(({ id }) => id).join(" ");
    if (order !== this.#order) {
      this.#order = order;
      this.#build();
    }
    for (const row of this.#rows) {
      const line = [...this.body.children].find((each) => /** @type {HTMLElement} */ (each).dataset.id === row.id);
      const trend = this.#trends ? (this.#trends[row.id] ?? []) : row.trend;
      if (line) fill(/** @type {HTMLElement} */ (line), row, trend);
    }
    const calm = this.#rows.filter((row) => isCalm(row)).length;
    this.more.hidden = !calm || this.place.classList.contains("all");
    write(this.more, `Show all ${this.#rows.length} resources`);
    /** @type {HTMLElement} */ (this.place.querySelector(".empty")).hidden = this.#rows.length > 0;
  }

  /** Make the lines of the present order, with a heading before each group. */
  #build() {
    /** @type {HTMLElement[]} */
    const lines = [];
    let group = "";
    for (const row of this.#rows) {
      if (row.group !== group) lines.push(headingOf((group = row.group)));
      const copy = /** @type {DocumentFragment} */ (this.template.content.cloneNode(true));
      const line = /** @type {HTMLElement} */ (copy.firstElementChild);
      line.dataset.id = row.id;
      line.dataset.scope = row.id;
      lines.push(line);
    }
    this.body.replaceChildren(...lines);
  }
}

/** @param {Resource} row */
const isCalm = ({ waiting, state }) => !waiting && !state;

/** @param {string} group */
function headingOf(group) {
  const line = document.createElement("tr");
  const cell = document.createElement("th");
  line.className = "group";
  cell.colSpan = 6;
  cell.scope = "colgroup";
  cell.textContent = group;
  line.append(cell);
  return line;
}

/** @param {HTMLElement} line @param {Resource} row @param {Point[]} trend */
function fill(line, row, trend) {
  set(line, "state", row.state);
  line.classList.toggle("calm", isCalm(row));
  lead(line.querySelector(".name"), row.link, row.name);
  const tag = /** @type {HTMLElement} */ (line.querySelector(".tag"));
  tag.hidden = !row.chip;
  write(tag, row.chip);
  write(line.querySelector(".note"), row.note);
  const of = row.capacity ? `${format.amount(row.held)} of ${format.amount(row.capacity)}` : format.amount(row.held);
  lead(line.querySelector(".held-of a"), row.link, of);
  write(line.querySelector(".unit"), row.unit);
  write(line.querySelector(".free"), row.free_note);
  const words = row.waiting && row.waiting_word ? ` ${row.waiting_word}` : "";
  lead(line.querySelector(".waits a"), row.waiting_link, `${format.count(row.waiting)}${words}`);
  write(line.querySelector(".longest"), row.longest_seconds == null ? "–" : format.duration(row.longest_seconds));
  bars(line, row);
  spark(line, trend);
}

/** The upper bar is held, free and lost; the lower one what is wanted beyond. @param {HTMLElement} line @param {Resource} row */
function bars(line, { held, capacity, lost, wanted }) {
  const all = Math.max(capacity + lost, wanted, 1e-9);
  const most = capacity ? capacity + lost : all;
  const scale = 100 / Math.max(most, Math.min(wanted, 2 * most));
  part(line, ".held", 0, held * scale);
  part(line, ".lost", capacity * scale, lost * scale);
  const beyond = Math.max(0, wanted - held);
  part(line, ".want", held * scale, Math.min(100 - held * scale, beyond * scale));
  const low = /** @type {SVGElement} */ (line.querySelector(".low"));
  low.setAttribute("width", beyond ? "100" : "0");
  line.querySelector(".track")?.setAttribute("width", String(Math.min(100, most * scale)));
}

/** @param {HTMLElement} line @param {string} name @param {number} x @param {number} width */
function part(line, name, x, width) {
  const rect = line.querySelector(name);
  const [at, wide] = [x.toFixed(2), Math.max(0, width).toFixed(2)];
  if (rect?.getAttribute("x") !== at) rect?.setAttribute("x", at);
  if (rect?.getAttribute("width") !== wide) rect?.setAttribute("width", wide);
}

/**
 * Held as an area and wanted as a line below or above the dashes of the capacity; gaps where nothing was measured.
 * @param {HTMLElement} line @param {Point[]} trend
 */
function spark(line, trend) {
  const { width, height, cap } = SPARK;
  const high = Math.max(1, ...trend.map((point) => Math.min(point?.[1] ?? 0, 2)));
  const y = (/** @type {number} */ share) => (height - (height - cap) * (Math.min(share, 2) / high)).toFixed(1);
  const runs = runsOf(trend, width - trend.length + 1);
  const area = runs.map((run) => {
    const held = run.map(([x, share]) => `${x},${y(share)}`);
    return `M${run[0][0]} ${height}L${held.join(" ")} ${run[run.length - 1][0]} ${height}z`;
  });
  const wants = trend.some((point) => point && point[1] > point[0]);
  const wanted = runs.map((run) => `M${run.map(([x, , share]) => `${x},${y(share)}`).join("L")}`);
  draw(line, ".area", area.join(""));
  draw(line, ".cap", `M${width - trend.length + 1} ${y(1)}H${width}`);
  draw(line, ".line", wants ? wanted.join("") : "");
}

/**
 * Points in a row as [x, held, wanted], without those where nothing was measured.
 * @param {Point[]} trend @param {number} first @returns {[number, number, number][][]}
 */
function runsOf(trend, first) {
  /** @type {[number, number, number][][]} */
  const runs = [];
  let open = false;
  trend.forEach((point, at) => {
    if (point) {
      if (!open) runs.push([]);
      runs[runs.length - 1].push([first + at, ...point]);
    }
    open = point !== null;
  });
  return runs;
}

/** @param {HTMLElement} line @param {string} name @param {string} path */
function draw(line, name, path) {
  const drawn = line.querySelector(name);
  if (drawn?.getAttribute("d") !== path) drawn?.setAttribute("d", path);
}

/** @param {Element | null} element @param {string} text */
function write(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

/** @param {Element | null} link @param {string} href @param {string} text */
function lead(link, href, text) {
  if (link?.getAttribute("href") !== href) link?.setAttribute("href", href);
  write(link, text);
}

/** @param {HTMLElement} element @param {string} name @param {string} value */
function set(element, name, value) {
  if (element.dataset[name] !== value) element.dataset[name] = value;
}
