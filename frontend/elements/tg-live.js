/**
 * `<tg-live>`: state and age of the live data, with the pause button.
 * @module
 */

import { redraw } from "../lib/icons.js";
import { bind } from "../lib/keys.js";
import { Live } from "../lib/live.js";
import { dirty } from "../lib/animation_loop.js";
import * as format from "../lib/format.js";

const WORDS = {
  connecting: "Connecting",
  live: "Live",
  paused: "Paused",
  hidden: "In background",
  stale: "Stale",
  "signed-out": "Signed out",
};
const HZ = 4;

export class TgLive extends HTMLElement {
  live = new Live(this.getAttribute("path") ?? "/ws/live/", HZ, this.getAttribute("project") ?? "");
  #pausedAt = 0;
  /** The last output: most frames do not change it, and then nothing is painted. */
  #said = "";

  connectedCallback() {
    this.live.addEventListener("standing", () => {
      if (this.#words() !== this.#said) dirty(this);
    });
    this.#button.addEventListener("click", () => this.#togglePause());
    bind("p", () => this.#togglePause(), "Pause or resume the live page");
    this.live.connect();
    dirty(this);
  }

  get #button() {
    return /** @type {HTMLButtonElement} */ (this.querySelector("button"));
  }

  #togglePause() {
    this.live.paused = !this.live.paused;
    this.#pausedAt = Date.now() / 1000;
  }

  /** State and age as text. */
  #words() {
    const standing = this.live.standing;
    return `${WORDS[standing]} ${this.#detail(standing)}`;
  }

  paint() {
    const standing = this.live.standing;
    this.#said = this.#words();
    if (this.dataset.is !== standing) {
      document.documentElement.dataset.live = standing;
      this.dataset.is = standing;
    }
    write(this.querySelector(".word"), WORDS[standing]);
    write(this.querySelector(".age"), this.#detail(standing));
    const verb = this.live.paused ? "Resume" : "Pause";
    if (this.#button.getAttribute("aria-label") === verb) return;
    this.#button.setAttribute("aria-label", verb);
    write(this.#button.querySelector(".says"), verb);
    redraw(this.#button.querySelector(".i"), this.live.paused ? "running" : "pause");
  }

  /** @param {import("../lib/live.js").Standing} standing */
  #detail(standing) {
    if (standing === "paused") return `at ${format.clock(this.#pausedAt)}`;
    if (standing === "live") return `${Math.round(this.live.rate)} frames/s`;
    const age = this.live.age;
    return age == null || standing === "signed-out" ? "" : `${Math.round(age)} s old`;
  }
}

/** @param {Element | null} element @param {string} text */
function write(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

customElements.define("tg-live", TgLive);
