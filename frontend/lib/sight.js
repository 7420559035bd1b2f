/**
 * What somebody can see: elements ask to be told when they come in sight and when they leave it, so
 * that nothing is drawn for nobody.
 * @module
 */

/** @type {WeakMap<Element, (seen: boolean) => void>} */
const told = new WeakMap();

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) told.get(target)?.(isIntersecting);
});

/** @param {Element} element @param {(seen: boolean) => void} tell called soon, and at every change */
export function whenSeen(element, tell) {
  told.set(element, tell);
  observer.observe(element);
}
