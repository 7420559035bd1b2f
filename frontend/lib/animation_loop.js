/**
 * One animation loop for the page: components mark themselves dirty and are painted once a frame.
 * @module
 */

/** @typedef {{ paint(): void }} Paintable */

/** @type {Set<Paintable>} */
const waiting = new Set();
let asked = false;

/** Have `component` painted in the next animation frame. @param {Paintable} component */
export function dirty(component) {
  waiting.add(component);
  if (!asked) {
    asked = true;
    requestAnimationFrame(paintAll);
  }
}

function paintAll() {
  asked = false;
  const now = [...waiting];
  waiting.clear();
  for (const component of now) component.paint();
}
