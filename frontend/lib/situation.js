/**
 * Health and problems of the Overview. The server writes the list; texts and numbers follow the frames, and
 * the list is loaded again when it has other rows, another order or other states.
 * @module
 */

import { regularly } from "./animation_loop.js";
import * as format from "./format.js";

/**
 * @typedef {{ id: string, severity: string, state: string, since: number, cleared_at: number | null,
 *             condition: { title: string, detail: string, affected: number, affected_word: string,
 *                          affected_note: string } }} Row
 * @typedef {{ health: { state: string, headline: string, banner: string, count: number, critical: number },
 *             detail: string, rows: Row[], judged: number }} Situation
 */

/** Without a judgement for this long the health is unknown. */
const UNKNOWN_SECONDS = 10;
/** The newest judgement, and the difference of the clocks then. */
let newest = { judged: 0, offset: 0 };
let loading = false;

const place = () => /** @type {HTMLElement} */ (document.getElementById("situation"));

/** @param {Situation} frame */
export function showSituation(frame) {
  newest = { judged: frame.judged, offset: frame.judged - Date.now() / 1000 };
  if (shapeOf(frame) !== place().dataset.shape) {
    load();
    return;
  }
  write(place().querySelector(".headline"), frame.health.headline);
  write(place().querySelector(".health .detail"), frame.detail);
  for (const row of frame.rows) fill(row);
}

/** @param {Situation} frame */
const shapeOf = ({ health, rows }) =>
  [health.state, ...rows.map(({ id, severity, state }) => `${id} ${severity} ${state}`)].join("|");

/** @param {Row} row */
function fill({ id, condition }) {
  const line = place().querySelector(`[data-id="${CSS.escape(id)}"]`);
  write(line?.querySelector(".title"), condition.title);
  write(line?.querySelector(".problem .detail, [role=cell] .detail"), condition.detail);
  const count = `${format.count(condition.affected)} ${condition.affected_word}`;
  if (condition.affected) write(line?.querySelector(".affected b"), count);
  write(line?.querySelector(".note"), condition.affected_note);
}

/** Load the list again, as the server writes it. */
async function load() {
  if (loading) return;
  loading = true;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (answer?.ok && !answer.redirected) {
    const read = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = read.getElementById("situation");
    if (fresh && !place().contains(document.activeElement)) place().replaceWith(fresh);
    showAges();
  }
  loading = false;
}

/** Ages grow between frames; without a judgement the page says so. */
function showAges() {
  const now = Date.now() / 1000 + newest.offset;
  for (const age of place().querySelectorAll(".age")) {
    const { since, until } = /** @type {HTMLElement} */ (age).dataset;
    const text = format.duration((Number(until) || now) - Number(since));
    write(age, until ? `lasted ${text}` : text);
  }
  const silence = newest.judged ? now - newest.judged : 0;
  if (silence > UNKNOWN_SECONDS) {
    const health = /** @type {HTMLElement} */ (place().querySelector(".health"));
    health.dataset.is = "unknown";
    write(health.querySelector(".headline"), `No data for ${format.count(Math.round(silence))} s.`);
    place().dataset.shape = "";
  }
}

/** @param {Element | null | undefined} element @param {string} text */
function write(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

regularly(showAges, 1);
showAges();
