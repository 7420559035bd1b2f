/**
 * Tables with the content of a canvas.
 * @module
 */

/** One line of a table. @param {"th" | "td"} tag @param {string[]} cells */
export function line(tag, cells) {
  const row = document.createElement("tr");
  for (const text of cells) {
    const cell = document.createElement(tag);
    if (tag === "th") cell.scope = "col";
    cell.textContent = text;
    row.append(cell);
  }
  return row;
}

/**
 * A table behind a small disclosure, open from the start where the page is wanted plain.
 * @param {HTMLTableElement} table @param {() => void} opened
 */
export function twin(table, opened) {
  const details = document.createElement("details");
  details.className = "twin";
  details.open = "plain" in document.documentElement.dataset;
  const summary = document.createElement("summary");
  summary.textContent = "As a table";
  details.append(summary, table);
  details.addEventListener("toggle", opened);
  return details;
}
