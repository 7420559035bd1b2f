/**
 * Frame of every page: theme, clock, keyboard help, palette, rows, terms, forms.
 * @module
 */

import { regularly } from "./animation_loop.js";
import { bind, bindFilter, known } from "./keys.js";
import { open } from "./palette.js";
import "./rows.js";
import { reach } from "./scroll.js";
import "./terms.js";
import "./theme_choice.js";

const help = /** @type {HTMLDialogElement | null} */ (document.getElementById("help"));

function showHelp() {
  if (!help || help.open) return help?.close();
  help.querySelector("tbody")?.replaceChildren(...known().map(rowOfHelp));
  help.showModal();
}

/** @param {{ keys: string, says: string }} binding */
function rowOfHelp({ keys, says }) {
  const row = document.createElement("tr");
  const names = keys.startsWith("Ctrl ") ? keys.split(" ") : keys.length === 2 ? [...keys] : [keys];
  const pressed = names.flatMap((name, at) => {
    const key = document.createElement("kbd");
    key.textContent = name === "Escape" ? "Esc" : name;
    return at ? [" ", key] : [key];
  });
  row.insertCell().append(...pressed);
  row.insertCell().textContent = says;
  return row;
}

const filter = () =>
  /** @type {HTMLElement | undefined} */ (
    [...document.querySelectorAll("main :is([type=search], form.filters input:not([type=hidden], [type=checkbox]))")]
      .find((field) => field.checkVisibility())
  );
bindFilter(() => filter()?.focus(), () => filter() !== undefined);
bind("Ctrl k", open, "Find an object, a page or a verb");
bind("?", showHelp, "This help");
for (const link of document.querySelectorAll("nav a[data-key]")) {
  const { dataset, href, textContent } = /** @type {HTMLAnchorElement} */ (link);
  bind(`g${dataset.key}`, () => location.assign(href), textContent?.trim() ?? "");
}
document.getElementById("show-palette")?.addEventListener("click", open);
document.getElementById("show-help")?.addEventListener("click", showHelp);

// Popovers close by themselves on Escape and on a click elsewhere; dialogs on Escape only.
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    const { clientX: x, clientY: y, target, detail } = event;
    if (target === dialog && detail && (x < left || x > right || y < top || y > bottom)) dialog.close();
  });
}

const clock = document.getElementById("utc");
regularly(() => {
  if (clock && !document.hidden) clock.textContent = new Date().toISOString().slice(11, 19);
}, 1);

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
