/**
 * Lists of the explorer: filter with completion, facets and heatmap after the rows, selection, keys, live rows.
 * Without scripts the page is complete but for these.
 * @module
 */

import "../lib/chrome.js";
import { showCounts } from "../explorer/counts.js";
import { completeFilter } from "../explorer/filter.js";
import { followRows } from "../explorer/live_rows.js";
import { explainWaits } from "../explorer/reasons.js";
import { selectRows } from "../explorer/selection.js";
import { offerDrawn } from "../lib/picture.js";

offerDrawn(document);
completeFilter();
selectRows();
showCounts();
explainWaits();
followRows(() => {
  selectRows();
  explainWaits();
});

for (const form of document.querySelectorAll("#columns form")) {
  const boxes = /** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll('[type="checkbox"]'));
  form.addEventListener("change", () => {
    const shown = [...boxes].filter((box) => box.checked).map((box) => box.value);
    /** @type {HTMLInputElement} */ (form.querySelector('[name="columns"]')).value = shown.join(",");
  });
}
// One menu at a time, closed by a click elsewhere and by Esc.
const menus = /** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll(".ex-menu"));
document.addEventListener("click", ({ target }) => {
  for (const menu of menus) if (!menu.contains(/** @type {Node} */ (target))) menu.open = false;
});
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") for (const menu of menus) menu.open = false;
});
