/**
 * What every page has: theme choice, help, palette, ways to go.
 * @module
 */

import { bind } from "./keys.js";
import { open } from "./palette.js";
import { reach } from "./scroll.js";

const help = /** @type {HTMLDialogElement | null} */ (document.getElementById("help"));
const theme = /** @type {HTMLSelectElement | null} */ (document.getElementById("theme"));

/** @param {string} href */
const go = (href) => () => location.assign(href);

bind("?", () => (help?.open ? help.close() : help?.showModal()));
bind("go", go("/"));
bind("gq", go("/queues/"));
bind("ga", go("/actions/"));
bind("gt", go("/trajectories/"));
bind("gk", go("/tasks/"));
bind("gd", go("/decisions/"));
bind("gw", go("/workers/"));
bind("gc", go("/cpu/"));
bind("gu", go("/gpu/"));
bind("gp", go("/apis/"));
document.getElementById("show-palette")?.addEventListener("click", open);
document.getElementById("show-help")?.addEventListener("click", () => help?.showModal());

// When every module of the page has read what the server wrote: this changes attributes of it.
queueMicrotask(() => reach(document));

/** @type {Set<HTMLFormElement>} */
const sent = new Set();
// What changes something is sent once, however often a button is pressed: a token made twice is two.
document.addEventListener("submit", (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (form.method !== "post" || event.defaultPrevented) return;
  if (sent.has(form)) event.preventDefault();
  sent.add(form);
  setTimeout(() => sent.delete(form), 3000); // who stopped the page meanwhile may send it again
});

const scope = document.querySelector("form.scope");
scope?.querySelector("button")?.remove(); // for those without scripts
scope?.addEventListener("change", () => /** @type {HTMLFormElement} */ (scope).requestSubmit());

if (theme) {
  theme.value = localStorage.getItem("tangram.theme") ?? "auto";
  theme.addEventListener("change", () => {
    if (theme.value === "auto") {
      localStorage.removeItem("tangram.theme");
      delete document.documentElement.dataset.theme;
    } else {
      localStorage.setItem("tangram.theme", theme.value);
      document.documentElement.dataset.theme = theme.value;
    }
  });
}
