/**
 * Common head of every page: theme, keyboard help, palette, terms, shortcuts.
 * @module
 */

import { bind } from "./keys.js";
import { open } from "./palette.js";
import { reach } from "./scroll.js";
import "./terms.js";

const help = /** @type {HTMLDialogElement | null} */ (document.getElementById("help"));
const theme = /** @type {HTMLSelectElement | null} */ (document.getElementById("theme"));

bind("?", () => (help?.open ? help.close() : help?.showModal()));
for (const link of document.querySelectorAll("nav a[data-key]")) {
  const { dataset, href } = /** @type {HTMLAnchorElement} */ (link);
  bind(`g${dataset.key}`, () => location.assign(href));
}
document.getElementById("show-palette")?.addEventListener("click", open);
document.getElementById("show-help")?.addEventListener("click", () => help?.showModal());

// After every module has read the server's markup: this changes attributes of it.
queueMicrotask(() => reach(document));

/** @type {Set<HTMLFormElement>} */
const sent = new Set();
// A form that changes data is sent once, even after a double click.
document.addEventListener("submit", (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (form.method !== "post" || event.defaultPrevented) return;
  if (sent.has(form)) event.preventDefault();
  sent.add(form);
  setTimeout(() => sent.delete(form), 3000); // after a stopped page load it may be sent again
});

const scope = document.querySelector("form.scope");
scope?.querySelector("button")?.remove(); // without scripts it is needed
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
