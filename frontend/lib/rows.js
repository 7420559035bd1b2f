/**
 * Rows of tables by keys: `j` and `k` move, Enter opens (the link of the row has the focus), `x` selects,
 * `.` offers the verbs of the row or of the page, `s` the columns that can sort.
 * @module
 */

import { bind } from "./keys.js";
import { offerCommands, verbsIn, verbsOfPage } from "./palette.js";

/** @returns {HTMLTableRowElement[]} */
function rows() {
  const all = /** @type {NodeListOf<HTMLTableRowElement>} */ (document.querySelectorAll("main tbody tr"));
  return [...all].filter((row) => linkOf(row)?.checkVisibility());
}

/** The link that opens the object of a row. @param {Element | null | undefined} row @returns {HTMLAnchorElement | null} */
const linkOf = (row) => row?.querySelector("a.id, :is(th, td) a[href]:not(.term)") ?? null;

/** @returns {HTMLTableRowElement | null} */
const current = () => document.activeElement?.closest("main tbody tr") ?? null;

/** @param {number} by */
function walk(by) {
  const all = rows();
  const here = current();
  const at = here ? all.indexOf(here) : by > 0 ? -1 : all.length;
  linkOf(all[Math.min(all.length - 1, Math.max(0, at + by))])?.focus();
}

/** @returns {HTMLInputElement | null} */
const boxOf = () => current()?.querySelector('input[type="checkbox"]') ?? null;

/** @returns {HTMLInputElement[]} */
const checked = () => [...document.querySelectorAll('main tbody input[type="checkbox"]:checked')].map(
  (box) => /** @type {HTMLInputElement} */ (box),
);

/** Verbs of the row that has the focus; without any, those of the page. */
function verbs() {
  const row = current();
  const own = row ? verbsIn(row) : [];
  return own.length ? own : verbsOfPage();
}

/** @returns {HTMLElement[]} */
const sorts = () =>
  [...document.querySelectorAll("main thead th :is(a[href]:not(.term), button)")].map(
    (head) => /** @type {HTMLElement} */ (head),
  );

/** @param {HTMLElement} element */
const press = (element) => () => element.click();

bind("j", () => walk(1), "Next row", () => rows().length > 0);
bind("k", () => walk(-1), "Previous row", () => rows().length > 0);
bind("Enter", null, "Open the row", () => rows().length > 0);
bind("x", () => boxOf()?.click(), "Select the row", () => boxOf() !== null || hasBoxes());
bind("Escape", () => checked().forEach((box) => box.click()), "Close, or clear the selection", () => true);
bind(".", () => offerCommands("Verb", verbs()), "Verbs of the row, or of the page", () => {
  return verbs().length > 0 || rows().some((row) => verbsIn(row).length > 0);
});
bind(
  "s",
  () =>
    offerCommands(
      "Sort by",
      sorts().map((head) => ({ name: `Sort by ${head.textContent?.trim()}`, icon: "list", run: press(head) })),
    ),
  "Sort",
  () => sorts().length > 0,
);

function hasBoxes() {
  return document.querySelector('main tbody input[type="checkbox"]') !== null;
}
