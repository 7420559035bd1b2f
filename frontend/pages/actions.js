/**
 * Lists with filters: a choice is applied at once.
 * @module
 */

import "../lib/chrome.js";

document.getElementById("filters")?.addEventListener("change", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (target.matches("select")) /** @type {HTMLFormElement} */ (event.currentTarget).requestSubmit();
});
