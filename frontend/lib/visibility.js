/**
 * Visibility of elements: a callback for each change, so that hidden elements are not drawn.
 * @module
 */

/** @type {WeakMap<Element, (seen: boolean) => void>} */
const callbacks = new WeakMap();

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) callbacks.get(target)?.(isIntersecting);
});

/** @param {Element} element @param {(seen: boolean) => void} callback called soon, and at each change */
export function whenSeen(element, callback) {
  callbacks.set(element, callback);
  observer.observe(element);
}
