/**
 * The list of actions: `/` focuses the filters, `j` and `k` move between the rows.
 * @module
 */

import "../lib/chrome.js";
import { bind } from "../lib/keys.js";

/** @returns {HTMLAnchorElement[]} */
const links = () => [...document.querySelectorAll("#rows a.id")].map((link) => /** @type {any} */ (link));

/** @param {number} by */
function walk(by) {
  const all = links();
  const at = all.findIndex((link) => link === document.activeElement);
  all[Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

bind("j", () => walk(1));
bind("k", () => walk(-1));
bind("/", () => /** @type {HTMLElement} */ (document.getElementById("filter-task")).focus());
document.getElementById("filters")?.addEventListener("change", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (target.matches("select")) /** @type {HTMLFormElement} */ (event.currentTarget).requestSubmit();
});
