/**
 * Tooltips of glossary terms: shown on hover and keyboard focus, hidden by Escape. The text is the
 * title of the link, which the browser itself shows without scripts.
 * @module
 */

const GAP = 6;
const tip = document.createElement("div");
tip.id = "term-tip";
tip.className = "tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
// Within a landmark, so that readers who go from landmark to landmark reach it.
(document.querySelector("main") ?? document.body).append(tip);

/** @type {HTMLAnchorElement | null} */
let shown = null;

/** @param {EventTarget | null} target */
const termAt = (target) =>
  target instanceof Element ? /** @type {HTMLAnchorElement | null} */ (target.closest("a.term")) : null;

function hide() {
  if (!shown) return;
  shown.title = tip.textContent ?? "";
  shown.removeAttribute("aria-describedby");
  shown = null;
  tip.hidden = true;
}

/** @param {HTMLAnchorElement} link */
function show(link) {
  if (shown === link) return;
  hide();
  shown = link;
  tip.textContent = link.title;
  link.removeAttribute("title"); // the browser would show a tooltip of its own
  link.setAttribute("aria-describedby", tip.id);
  tip.hidden = false;
  const place = link.getBoundingClientRect();
  const left = Math.min(place.left, innerWidth - tip.offsetWidth - GAP);
  const below = place.bottom + GAP;
  const fits = below + tip.offsetHeight <= innerHeight;
  tip.style.left = `${Math.max(GAP, left)}px`;
  tip.style.top = `${fits ? below : Math.max(GAP, place.top - GAP - tip.offsetHeight)}px`;
}

/** @param {Event} event */
function enter(event) {
  const link = termAt(event.target);
  if (link) show(link);
  else if (shown && !shown.isConnected) hide(); // a refresh replaced it under the pointer
}

/** @param {MouseEvent | FocusEvent} event */
function leave(event) {
  const next = event.relatedTarget;
  if (next === tip || (shown && termAt(next) === shown)) return;
  if (document.activeElement !== shown || event.type === "focusout") hide();
}

document.addEventListener("mouseover", enter);
document.addEventListener("focusin", enter);
document.addEventListener("mouseout", leave);
document.addEventListener("focusout", leave);
document.addEventListener("scroll", hide, { capture: true, passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});
