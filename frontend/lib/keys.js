/**
 * Keyboard: single keys, and `g` followed by a letter to go somewhere. Ignored in text fields.
 *
 * A binding says what it does and when it can: the help lists exactly the keys that work now. An element
 * with `data-hotkey="f"` is pressed by that key, a field takes the focus; its name is the text of the help.
 * @module
 */

/** @typedef {{ keys: string, act: (() => void) | null, says: string, when: () => boolean }} Binding */

/** @type {Map<string, Binding>} */
const bindings = new Map();
let prefix = "";
let prefixTimer = 0;

/**
 * @param {string} keys one key, or `g` and one key
 * @param {(() => void) | null} act null: the browser does it
 * @param {string} [says] what it does, for the help; nothing there without one
 * @param {() => boolean} [when] whether it can now
 */
export function bind(keys, act, says = "", when = () => true) {
  bindings.set(keys, { keys, act, says, when });
}

/**
 * Let `/` and `f` focus the filter of the page.
 * @param {() => void} focus
 * @param {() => boolean} [when] whether the page has one
 */
export function bindFilter(focus, when = () => true) {
  for (const key of ["/", "f"]) bind(key, focus, "Filter", when);
}

/** The element that a key presses. @param {string} key @returns {HTMLElement | null} */
function hotElement(key) {
  if (key.length !== 1 || key === '"' || key === "\\") return null;
  const all = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(`[data-hotkey="${key}"]`));
  return [...all].find((one) => one.checkVisibility()) ?? null;
}

/** @param {HTMLElement} element */
function use(element) {
  if (element.matches("input:not([type=checkbox]), select, textarea")) element.focus();
  else element.click();
}

/** What works on this page now. @returns {{ keys: string, says: string }[]} */
export function known() {
  const bound = [...bindings.values()].filter(({ says, when }) => says && when());
  const hot = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-hotkey]"));
  const pressed = [...hot]
    .filter((one) => one.checkVisibility())
    .map((one) => ({ keys: one.dataset.hotkey ?? "", says: nameOf(one) }));
  const first = new Map([...pressed, ...bound].map(({ keys, says }) => [keys, says]).reverse());
  return [...first].reverse().map(([keys, says]) => ({ keys, says }));
}

/** @param {HTMLElement} element */
function nameOf(element) {
  const label = /** @type {HTMLInputElement} */ (element).labels?.[0];
  const said = element.getAttribute("aria-label") ?? label?.textContent ?? element.textContent ?? "";
  return said.trim().replaceAll(/\s+/g, " ");
}

/** @param {KeyboardEvent} event */
function press(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) {
    if (event.key === "Escape" && !target.closest("dialog, [popover]")) target.blur();
    return;
  }
  if (target.closest("dialog[open]") && event.key !== "?") return;
  const element = prefix ? null : hotElement(event.key);
  const binding = bindings.get(prefix + event.key);
  const act = element ? () => use(element) : binding?.when() ? binding.act : null;
  clearTimeout(prefixTimer);
  prefix = "";
  if (act) {
    if (event.key !== "Escape") event.preventDefault();
    act();
  } else if (event.key === "g") {
    prefix = "g";
    prefixTimer = setTimeout(() => (prefix = ""), 1500);
  }
}

document.addEventListener("keydown", press);
