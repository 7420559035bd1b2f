/**
 * Keyboard: single keys, and `g` followed by a letter to go somewhere. Ignored in text fields.
 * @module
 */

/** @type {Map<string, () => void>} */
const bindings = new Map();
let prefix = "";
let prefixTimer = 0;

/** @param {string} keys one key, or `g` and one key @param {() => void} act */
export function bind(keys, act) {
  bindings.set(keys, act);
}

/** @param {KeyboardEvent} event */
function press(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.closest("input, textarea, select, [contenteditable]")) return;
  if (target.closest("dialog[open]") && event.key !== "?") return;
  const act = bindings.get(prefix + event.key);
  clearTimeout(prefixTimer);
  prefix = "";
  if (act) {
    event.preventDefault();
    act();
  } else if (event.key === "g") {
    prefix = "g";
    prefixTimer = setTimeout(() => (prefix = ""), 1500);
  }
}

document.addEventListener("keydown", press);
