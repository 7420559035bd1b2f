/**
 * `<tg-stat>`: one figure with a label and a note. The markup comes from the page, so that it
 * reads without scripts: `.label`, `.value`, `.note`.
 * @module
 */

import { dirty } from "../lib/animation_loop.js";

export class TgStat extends HTMLElement {
  #value = "–";
  #note = "";

  /** @param {string} value @param {string} [note] */
  show(value, note = "") {
    if (value === this.#value && note === this.#note) return;
    this.#value = value;
    this.#note = note;
    dirty(this);
  }

  paint() {
    write(this.querySelector(".value"), this.#value);
    write(this.querySelector(".note"), this.#note);
  }
}

/** @param {Element | null} element @param {string} text */
function write(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

customElements.define("tg-stat", TgStat);
