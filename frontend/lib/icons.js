/**
 * Symbols of `icons.svg`, for elements that scripts add; templates have the tag `icon`.
 * @module
 */

const SPRITE = new URL("../icons.svg", import.meta.url).pathname;
const NAMESPACE = "http://www.w3.org/2000/svg";

/** @param {string} name id of a symbol @returns {SVGSVGElement} */
export function icon(name) {
  const svg = document.createElementNS(NAMESPACE, "svg");
  const use = document.createElementNS(NAMESPACE, "use");
  svg.setAttribute("class", "i");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `${SPRITE}#${name}`);
  svg.append(use);
  return svg;
}

/** Replace the symbol of `svg`. @param {Element | null | undefined} svg @param {string} name */
export function redraw(svg, name) {
  svg?.querySelector("use")?.setAttribute("href", `${SPRITE}#${name}`);
}
