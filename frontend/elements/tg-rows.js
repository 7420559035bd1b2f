/**
 * `<tg-rows>`: a table whose rows follow a list. The page brings `<table>` with its head and an
 * `.empty` note; cells are written only where their text changed, into the nodes that are there.
 *
 * Out of sight it is brought up to date now and then, so that it can still be found and read aloud.
 * With `hold` it does not change while the pointer or the focus is in it: rows that move under a click
 * lead somewhere else.
 * @module
 */

import { dirty } from "../lib/animation_loop.js";
import { whenSeen } from "../lib/visibility.js";

/**
 * @typedef {{ text: string, href?: string, chip?: string, title?: string }} Cell
 * @typedef {(row: any) => (Cell | string)[]} Columns
 * @typedef {{ cell: Cell, text: Text, inner: HTMLElement | null }} Written
 */

const UNSEEN_MS = 2000;

/** Content of each cell, without reading the page. @type {WeakMap<HTMLTableCellElement, Written>} */
const written = new WeakMap();

export class TgRows extends HTMLElement {
  /** @type {any[]} */
  #rows = [];
  /** @type {Columns} */
  columns = () => [];
  #seen = true;
  #pointed = false;
  #paintedAt = -Infinity;
  #later = 0;

  connectedCallback() {
    whenSeen(this, (seen) => {
      this.#seen = seen;
      if (seen) dirty(this);
    });
    if (!this.hasAttribute("hold")) return;
    this.addEventListener("pointerenter", ({ pointerType }) => {
      this.#pointed = pointerType === "mouse"; // a finger does not rest
    });
    this.addEventListener("pointerleave", () => {
      this.#pointed = false;
      dirty(this);
    });
    this.addEventListener("focusout", () => dirty(this));
  }

  /** @param {any[]} rows */
  show(rows) {
    this.#rows = rows;
    dirty(this);
  }

  paint() {
    if (this.#postponed()) return;
    const body = /** @type {HTMLTableSectionElement} */ (this.querySelector("tbody"));
    const held = this.#pointed || (this.hasAttribute("hold") && this.matches(":focus-within"));
    this.toggleAttribute("data-held", held && body.rows.length > 0);
    if (this.hasAttribute("data-held")) return;
    this.#paintedAt = performance.now();
    while (body.rows.length > this.#rows.length) body.deleteRow(-1);
    this.#rows.forEach((row, at) => fill(body.rows[at] ?? body.insertRow(), this.columns(row)));
    const empty = this.#rows.length === 0;
    /** @type {HTMLElement} */ (this.querySelector("table")).hidden = empty;
    /** @type {HTMLElement} */ (this.querySelector(".empty")).hidden = !empty;
  }

  /** Return whether painting can wait until the element is visible. */
  #postponed() {
    const wait = this.#paintedAt + UNSEEN_MS - performance.now();
    if (this.#seen || wait <= 0) return false;
    this.#later ||= setTimeout(() => {
      this.#later = 0;
      dirty(this);
    }, wait);
    return true;
  }
}

/** @param {HTMLTableRowElement} line @param {(Cell | string)[]} cells */
function fill(line, cells) {
  const places = line.cells;
  cells.forEach((given, at) => {
    const cell = typeof given === "string" ? { text: given } : given;
    write(places[at] ?? line.insertCell(), cell);
  });
}

/** @param {HTMLTableCellElement} place @param {Cell} cell */
function write(place, cell) {
  const known = written.get(place);
  const before = known?.cell;
  if ((before?.title ?? "") !== (cell.title ?? "")) place.title = cell.title ?? "";
  if (!known || tagOf(known.cell) !== tagOf(cell)) {
    written.set(place, begin(place, cell));
    return;
  }
  if (known.cell.text !== cell.text) known.text.data = cell.text;
  if (known.inner) dress(known.inner, cell, known.cell);
  known.cell = cell;
}

/** @param {Cell} cell */
const tagOf = (cell) => (cell.href ? "a" : cell.chip ? "span" : "");

/** Write a cell for the first time, or with something else than text where there was text. @param {HTMLTableCellElement} place @param {Cell} cell @returns {Written} */
function begin(place, cell) {
  const text = document.createTextNode(cell.text);
  const tag = tagOf(cell);
  const inner = tag ? document.createElement(tag) : null;
  if (inner) {
    dress(inner, cell);
    inner.append(text);
  }
  place.replaceChildren(inner ?? text);
  return { cell, text, inner };
}

/** @param {HTMLElement} inner @param {Cell} cell @param {Cell} [before] the cell that it shows */
function dress(inner, cell, before) {
  if (cell.href && cell.href !== before?.href) inner.setAttribute("href", cell.href);
  if (!cell.chip || cell.href) return;
  if (!before) inner.className = "chip";
  if (cell.chip !== before?.chip) inner.dataset.is = cell.chip;
}

customElements.define("tg-rows", TgRows);
