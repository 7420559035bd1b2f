/**
 * Tables wider than their place can be scrolled by keys: their frame takes the focus while it must.
 * @module
 */

const observer = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const frame = target.closest(".scroll");
    if (frame) frame.toggleAttribute("tabindex", frame.scrollWidth > frame.clientWidth);
    if (frame?.hasAttribute("tabindex")) frame.setAttribute("tabindex", "0");
  }
});

/** Look after all tables of a part of the page. @param {ParentNode} part */
export function reach(part) {
  for (const frame of part.querySelectorAll(".scroll")) {
    observer.observe(frame);
    for (const table of frame.children) observer.observe(table);
  }
}
