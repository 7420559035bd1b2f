/**
 * Live rows: the page is loaded again every few seconds while it is visible; selection and focus stay.
 * @module
 */

import { replaceBanner } from "../lib/problem_banner.js";
import { bind } from "../lib/keys.js";

const EVERY_MS = 3000;
const KEPT = "tangram.explorer.live";

/** @param {() => void} shown called after new rows are shown */
export function followRows(shown) {
  const button = /** @type {HTMLButtonElement | null} */ (document.getElementById("live"));
  // Rows after a cursor are of the instant of the first page.
  if (!button || new URLSearchParams(location.search).has("after")) return;
  let on = sessionStorage.getItem(KEPT) !== "off";
  const say = () => button.setAttribute("aria-pressed", String(on));
  const turn = () => {
    on = !on;
    sessionStorage.setItem(KEPT, on ? "on" : "off");
    say();
  };
  button.hidden = false;
  button.addEventListener("click", turn);
  bind("p", turn, "Pause or follow the rows");
  say();
  const next = async () => {
    if (on && !document.hidden && !inUse()) await load(shown).catch(() => undefined);
    if (!document.getElementById("signed-out")) setTimeout(next, EVERY_MS);
  };
  setTimeout(next, EVERY_MS);
}

function inUse() {
  return getSelection()?.type === "Range" || document.querySelector(".ex-menu[open]") !== null;
}

/** @param {() => void} shown */
async function load(shown) {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  // Another page answers: the login.
  if (answer.status === 403 || new URL(answer.url).pathname !== location.pathname) signedOut();
  if (!answer.ok || answer.redirected) return;
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  replaceBanner(read);
  const fresh = read.getElementById("fresh");
  const part = document.getElementById("fresh");
  if (!fresh || !part) return;
  keepReasons(part, fresh);
  const focused = document.activeElement?.closest("#rows tbody tr");
  const held = focused instanceof HTMLElement ? focused.dataset.id : "";
  part.replaceWith(fresh);
  const above = read.getElementById("above");
  if (above) document.getElementById("above")?.replaceWith(above);
  if (held) {
    const row = [...document.querySelectorAll("#rows tbody tr")].find((each) => /** @type {HTMLElement} */ (each).dataset.id === held);
    /** @type {HTMLElement | null | undefined} */ (row?.querySelector("a.id"))?.focus({ preventScroll: true });
  }
  shown();
}

/** Show that the rows are not loaded any more. */
function signedOut() {
  const note = document.createElement("p");
  const link = document.createElement("a");
  note.id = "signed-out";
  note.className = "notice";
  note.setAttribute("role", "alert");
  link.href = location.href;
  link.textContent = "Sign in again";
  note.append("You are signed out; this page shows an earlier state. ", link);
  document.getElementById("main")?.prepend(note);
}

/** Show known reasons until the scheduler gives new ones. @param {Element} before @param {Element} after */
function keepReasons(before, after) {
  const known = new Map();
  for (const each of /** @type {NodeListOf<HTMLElement>} */ (before.querySelectorAll("[data-wait]"))) {
    known.set(each.dataset.wait, each.textContent);
  }
  for (const each of /** @type {NodeListOf<HTMLElement>} */ (after.querySelectorAll("[data-wait]"))) {
    each.textContent = known.get(each.dataset.wait) ?? each.textContent;
  }
}
