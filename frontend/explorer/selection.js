/**
 * Rows of a list: `j` and `k` move, `x` selects, `Enter` opens, `s` sorts by the next column, `.` goes to the verbs.
 * @module
 */

import { bind } from "../lib/keys.js";

/** Ids that are selected, also of rows that are not on the page, with the keys of their tasks. @type {Map<string, string>} */
const selected = new Map();
let bound = false;

/** @returns {HTMLTableRowElement[]} */
const rows = () => [...document.querySelectorAll("#rows tbody tr")].map((row) => /** @type {any} */ (row));

/** Connect the rows that are shown now with the selection. */
export function selectRows() {
  for (const row of rows()) {
    const box = row.querySelector("input");
    box?.addEventListener("change", () => mark(row, box.checked));
    if (box && selected.has(row.dataset.id ?? "")) box.checked = true;
  }
  document.getElementById("select-none")?.addEventListener("click", () => {
    selected.clear();
    show();
  });
  document.getElementById("select-all")?.addEventListener("click", selectAll);
  document.getElementById("selected")?.addEventListener("submit", fillTarget);
  show();
  if (bound) return;
  bound = true;
  bind("j", () => walk(1), "Next row", () => rows().length > 0);
  bind("k", () => walk(-1), "Previous row", () => rows().length > 0);
  bind("x", toggle, "Select the row", () => document.getElementById("selected") !== null);
  bind("s", sortNext, "Order by the next column", () => rows().length > 0);
  bind(
    ".",
    () => /** @type {HTMLElement | null} */ (document.querySelector("#selected:not([hidden]) [type=submit]"))?.focus(),
    "Verbs for the selected rows",
    () => document.querySelector("#selected:not([hidden])") !== null,
  );
}

const links = () => rows().map((row) => /** @type {HTMLAnchorElement | null} */ (row.querySelector("a.id")));

/** @param {number} by */
function walk(by) {
  const all = links();
  const at = all.findIndex((link) => link && link.closest("tr")?.contains(document.activeElement));
  all[Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

function toggle() {
  const row = document.activeElement?.closest("#rows tbody tr");
  const box = row?.querySelector("input");
  if (!row || !box) return;
  box.checked = !box.checked;
  mark(/** @type {HTMLTableRowElement} */ (row), box.checked);
}

/** Go to the order of the column after the present one. */
function sortNext() {
  const heads = [.../** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("#rows th a"))];
  const at = heads.findIndex((head) => head.closest("th")?.hasAttribute("aria-sort"));
  if (heads.length) location.assign(heads[(at + 1) % heads.length].href);
}

/** @param {HTMLTableRowElement} row @param {boolean} on */
function mark(row, on) {
  const id = row.dataset.id ?? "";
  if (on) selected.set(id, row.dataset.task ?? "");
  else selected.delete(id);
  show();
}

function show() {
  const bar = document.getElementById("selected");
  if (!bar) return;
  bar.hidden = selected.size === 0;
  const count = document.getElementById("selected-count");
  if (count) count.textContent = String(selected.size);
  for (const row of rows()) {
    const on = selected.has(row.dataset.id ?? "");
    row.setAttribute("aria-selected", String(on));
    const box = row.querySelector("input");
    if (box) box.checked = on;
  }
  const file = /** @type {HTMLAnchorElement | null} */ (document.getElementById("selected-export"));
  // An address of more ids would be too long: the file of the whole filter is in the head.
  if (file) {
    file.hidden = selected.size > 50;
    file.search = String(new URLSearchParams({ q: `id:${[...selected.keys()].join(",")}` }));
  }
  offerComparison();
}

/** Lead to the comparison of the selection's tasks, when they are two. */
function offerComparison() {
  const link = /** @type {HTMLAnchorElement | null} */ (document.getElementById("selected-compare"));
  if (!link) return;
  const [a, b, ...others] = new Set(selected.values());
  link.hidden = !a || !b || others.length > 0;
  link.search = link.hidden ? "" : String(new URLSearchParams({ a: `task:${a}`, b: `task:${b}` }));
}

/** @param {Event} event */
async function selectAll(event) {
  const button = /** @type {HTMLElement} */ (event.currentTarget);
  const answer = await fetch(button.dataset.ids ?? "");
  if (!answer.ok || answer.redirected) return;
  const { ids, tasks, more } = await answer.json();
  for (const [at, id] of ids.entries()) selected.set(id, tasks[at]);
  button.textContent = more ? `The first ${ids.length} are selected` : "All are selected";
  show();
}

/** @param {Event} event */
function fillTarget(event) {
  const form = /** @type {HTMLFormElement} */ (event.currentTarget);
  /** @type {HTMLInputElement} */ (form.elements.namedItem("target")).value = [...selected.keys()].join(",");
}
