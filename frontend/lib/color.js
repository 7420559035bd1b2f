/**
 * Colours of the theme, for canvas: it cannot read custom properties by itself.
 * @module
 */

const probe = document.createElement("i");
probe.hidden = true;

/** @type {Map<string, string>} */
let known = new Map();
/** @type {Set<() => void>} */
const listeners = new Set();

/** @param {string} name custom property, `--queue` @returns {string} */
export function color(name) {
  let value = known.get(name);
  if (value === undefined) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    value = getComputedStyle(probe).color;
    known.set(name, value);
  }
  return value;
}

/** Call `listener` when the theme changes. @param {() => void} listener @returns {() => void} undo */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed() {
  known = new Map();
  for (const listener of listeners) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
new MutationObserver(changed).observe(document.documentElement, { attributeFilter: ["data-theme"] });
