/**
 * `<tg-rows>`: a table whose rows follow a list. The page brings `<table>` with its head and an
 * `.empty` note; cells are written only where their text changed.
 * @module
 */

import { dirty } from "../lib/loop.js";

/**
 * @typedef {{ text: string, href?: string, chip?: string, title?: string }} Cell
 * @typedef {(row: any) => (Cell | string)[]} Columns
 */

/** What stands in each cell, without asking the page. @type {WeakMap<HTMLTableCellElement, string>} */
const written = new WeakMap();

export class TgRows extends HTMLElement {
  /** @type {any[]} */
  #rows = [];
  /** @type {Columns} */
  columns = () => [];

  /** @param {any[]} rows */
  show(rows) {
    this.#rows = rows;
    dirty(this);
  }

  paint() {
    const body = /** @type {HTMLTableSectionElement} */ (this.querySelector("tbody"));
    while (body.rows.length > this.#rows.length) body.deleteRow(-1);
    this.#rows.forEach((row, at) => fill(body.rows[at] ?? body.insertRow(), this.columns(row)));
    const empty = this.#rows.length === 0;
    /** @type {HTMLElement} */ (this.querySelector("table")).hidden = empty;
    /** @type {HTMLElement} */ (this.querySelector(".empty")).hidden = !empty;
  }
}

/** @param {HTMLTableRowElement} line @param {(Cell | string)[]} cells */
function fill(line, cells) {
  cells.forEach((given, at) => {
    const cell = typeof given === "string" ? { text: given } : given;
    const place = line.cells[at] ?? line.insertCell();
    const key = `${cell.text}\n${cell.href ?? ""}\n${cell.chip ?? ""}`;
    if (written.get(place) === key) return;
    written.set(place, key);
    if (place.title !== (cell.title ?? "")) place.title = cell.title ?? "";
    if (cell.href || cell.chip || place.firstElementChild) place.replaceChildren(inside(cell));
    else place.textContent = cell.text;
  });
}

/** @param {Cell} cell @returns {Node | string} */
function inside(cell) {
  if (cell.href) {
    const link = document.createElement("a");
    link.href = cell.href;
    link.textContent = cell.text;
    return link;
  }
  if (cell.chip) {
    const chip = document.createElement("span");
    chip.className = "chip";
    chip.dataset.is = cell.chip;
    chip.textContent = cell.text;
    return chip;
  }
  return cell.text;
}

customElements.define("tg-rows", TgRows);
