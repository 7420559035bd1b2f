/**
 * The page of a verb: its simulated effect for the values of the form, and Esc, which goes back.
 * @module
 */

import "../lib/chrome.js";
import { bind } from "../lib/keys.js";
import { reach } from "../lib/scroll.js";

/** A question costs seconds of a core, so it is asked once typing has paused. */
const PAUSE_MS = 600;
const place = /** @type {HTMLElement | null} */ (document.getElementById("effect"));
const form = /** @type {HTMLFormElement | null} */ (document.querySelector("form.act"));
const back = /** @type {HTMLAnchorElement | null} */ (document.getElementById("back"));
let timer = 0;
let asked = 0;

/** The values of the form as a query, without what only confirms. */
function query() {
  const values = new URLSearchParams();
  for (const [name, value] of new FormData(form ?? undefined)) {
    if (typeof value === "string" && !["csrfmiddlewaretoken", "typed", "back"].includes(name)) values.append(name, value);
  }
  return values;
}

/** @param {string} text */
function say(text) {
  const line = document.createElement("p");
  line.className = "no-effect";
  line.textContent = text;
  place?.replaceChildren(line);
}

async function ask() {
  if (!place?.dataset.address) return;
  const number = ++asked;
  place.setAttribute("aria-busy", "true");
  const answer = await fetch(`${place.dataset.address}?${query()}`).catch(() => null);
  if (number !== asked) return; // a later question is under way
  place.removeAttribute("aria-busy");
  if (!answer?.ok || answer.redirected) return say("The effect cannot be simulated now: the server does not answer.");
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  place.replaceChildren(...read.body.childNodes);
  reach(place);
}

form?.addEventListener("input", (event) => {
  if (/** @type {HTMLInputElement} */ (event.target).name === "typed") return;
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
});
void ask();

bind("Escape", () => back?.click());
