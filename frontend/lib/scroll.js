/**
 * Tables wider than their place can be scrolled by keys: their frame takes the focus while it must.
 * @module
 */

/** @param {Element} frame */
function judge(frame) {
  if (frame.scrollWidth > frame.clientWidth) frame.setAttribute("tabindex", "0");
  else frame.removeAttribute("tabindex");
}

const observer = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const frame = target.closest(".scroll");
    if (frame) judge(frame);
  }
});

/**
 * Look after all tables of a part of the page.
 *
 * Judged at once: the observer speaks first with the next frame, which a busy browser draws late.
 * @param {ParentNode} part
 */
export function reach(part) {
  const frames = [...part.querySelectorAll(".scroll")];
  for (const frame of frames) {
    judge(frame);
    observer.observe(frame);
    for (const table of frame.children) observer.observe(table);
  }
}
