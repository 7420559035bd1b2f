/**
 * Counts, facets and heatmap: loaded after the rows, since they read more of them.
 * @module
 */

import { duration } from "../lib/format.js";

/** Load the counts of the query, and put them in their places. */
export async function showCounts() {
  const place = document.getElementById("counts");
  const fold = document.getElementById("fold");
  if (!place?.dataset.counts) return;
  const answer = await fetch(place.dataset.counts).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  const facets = read.getElementById("facets");
  const heat = read.getElementById("heatmap");
  const total = /** @type {HTMLElement | null} */ (read.querySelector("[data-total]"))?.dataset.total;
  if (facets) place.replaceChildren(facets);
  const head = document.getElementById("total");
  const name = location.pathname.split("/")[1];
  if (head && total) head.textContent = `${total} ${total === "1" ? name.replace(/ies$/, "y").replace(/s$/, "") : name}`;
  if (heat) {
    document.getElementById("heat")?.replaceChildren(heat);
    brush(heat);
  }
  if (fold?.hidden) {
    fold.hidden = false;
    place.dataset.folded = "";
    fold.addEventListener("click", () => {
      const open = place.toggleAttribute("data-folded");
      fold.setAttribute("aria-expanded", String(!open));
    });
  }
}

/** Dragging over the map selects a time and a range of durations. @param {HTMLElement} map */
function brush(map) {
  const drawing = /** @type {SVGSVGElement} */ (map.querySelector(".ex-map svg"));
  const frame = /** @type {SVGRectElement} */ (map.querySelector(".ex-brush"));
  const said = /** @type {HTMLElement} */ (map.querySelector(".ex-brushed"));
  const [columns, rows, lowest] = ["columns", "rows", "lowest"].map((name) => Number(map.dataset[name]));
  /** @type {{ x: number, y: number } | null} */
  let begun = null;

  /** @param {PointerEvent} event */
  const cell = ({ clientX, clientY }) => {
    const box = drawing.getBoundingClientRect();
    const x = Math.floor(((clientX - box.left) / box.width) * columns);
    const y = Math.floor(((clientY - box.top) / box.height) * rows);
    return { x: Math.min(columns - 1, Math.max(0, x)), y: Math.min(rows - 1, Math.max(0, y)) };
  };
  drawing.addEventListener("pointerdown", (event) => {
    begun = cell(event);
    drawing.setPointerCapture(event.pointerId);
    draw(begun, begun);
  });
  drawing.addEventListener("pointermove", (event) => begun && draw(begun, cell(event)));
  drawing.addEventListener("pointerup", () => (begun = null));
  drawing.addEventListener("pointercancel", () => (begun = null));
  said.querySelector("button")?.addEventListener("click", () => {
    frame.setAttribute("hidden", "");
    said.hidden = true;
  });

  /** @param {{ x: number, y: number }} one @param {{ x: number, y: number }} other */
  function draw(one, other) {
    const [left, right] = [Math.min(one.x, other.x), Math.max(one.x, other.x) + 1];
    const [top, bottom] = [Math.min(one.y, other.y), Math.max(one.y, other.y) + 1];
    frame.removeAttribute("hidden");
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) {
      frame.setAttribute(name, String(value));
    }
    say(left, right, lowest + rows - bottom, lowest + rows - top);
  }

  /** @param {number} left @param {number} right @param {number} low @param {number} high powers of two of a second */
  function say(left, right, low, high) {
    const [begins, ends] = [Number(map.dataset.begins), Number(map.dataset.ends)];
    const at = (/** @type {number} */ x) => new Date((begins + ((ends - begins) * x) / columns) * 1000);
    let count = 0;
    for (const each of /** @type {NodeListOf<SVGRectElement>} */ (map.querySelectorAll("[data-count]"))) {
      const [x, y] = [Number(each.getAttribute("x")), Number(each.getAttribute("y"))];
      const power = lowest + rows - 1 - y;
      if (x >= left && x < right && power >= low && power < high) count += Number(each.dataset.count);
    }
    const [from, to] = [at(left), at(right)];
    const times = [from, to].map((moment) => moment.toISOString().slice(11, 19));
    said.hidden = false;
    /** @type {HTMLElement} */ (said.querySelector("b")).textContent =
      `${count} actions, ${times[0]} to ${times[1]} UTC, ${duration(2 ** low)} to ${duration(2 ** high)}`;
    const link = /** @type {HTMLAnchorElement} */ (said.querySelector("a"));
    // The lowest row has all that is shorter.
    const range = low === lowest ? `<${2 ** high}s` : `${2 ** low}s..${2 ** high}s`;
    link.search = String(new URLSearchParams({ q: narrowed(from, to, range) }));
  }
}

/** The query with another time and range of durations. @param {Date} from @param {Date} to @param {string} range */
function narrowed(from, to, range) {
  const terms = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".ex-chip"))];
  const kept = terms.map((term) => term.dataset.term ?? "").filter((term) => !/^(since|until|act):/.test(term));
  return [...kept, `since:${from.toISOString()}`, `until:${to.toISOString()}`, `act:${range}`].join(" ");
}
