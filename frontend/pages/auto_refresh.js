/**
 * Refresh of pages with answers of the scheduler: `#fresh` is loaded again every few seconds while the
 * page is visible. Not while it is in use: a selection, an open disclosure and the focus would be lost.
 * The top bar says so, beside the button that pauses it.
 * @module
 */

import "../lib/chrome.js";
import { replaceBanner } from "../lib/problem_banner.js";
import { clock } from "../lib/format.js";
import { icon, redraw } from "../lib/icons.js";
import { bind } from "../lib/keys.js";
import { offerDrawn } from "../lib/picture.js";
import { reach } from "../lib/scroll.js";

const EVERY_MS = 3000;
let paused = false;
/** The last markup of the server; the page itself changes it a little. */
let said = document.getElementById("fresh")?.innerHTML;

const state = document.createElement("span");
const word = document.createElement("span");
const button = document.createElement("button");
const verb = document.createElement("span");

/** Put the state and its button into the top bar, unless a live element is there. */
function announce() {
  const place = document.getElementById("state");
  if (!place || place.querySelector("tg-live")) return;
  const sign = document.createElement("span");
  state.className = "refreshes";
  sign.className = "sign";
  word.className = verb.className = "says";
  button.type = "button";
  button.append(icon("pause"), verb);
  button.addEventListener("click", toggle);
  state.append(sign, word, button);
  place.replaceChildren(state);
  tell(`Refreshes every ${EVERY_MS / 1000} s`);
}

/** @param {string} text */
function tell(text) {
  if (word.textContent === text) return;
  word.textContent = text;
  state.dataset.is = paused ? "paused" : "live";
  verb.textContent = paused ? "Resume" : "Pause";
  button.setAttribute("aria-label", verb.textContent);
  redraw(button.querySelector(".i"), paused ? "running" : "pause");
}

function toggle() {
  paused = !paused;
  tell(paused ? `Paused at ${clock(Date.now() / 1000)}` : `Refreshes every ${EVERY_MS / 1000} s`);
}

function inUse() {
  const part = document.getElementById("fresh");
  return (
    document.hidden ||
    !part ||
    part.contains(document.activeElement) ||
    part.querySelector("details[open]") !== null ||
    getSelection()?.type === "Range"
  );
}

/** Show once that the content is not refreshed any more. */
function signedOut() {
  if (document.getElementById("signed-out")) return;
  const note = document.createElement("p");
  const link = document.createElement("a");
  note.id = "signed-out";
  note.className = "notice";
  note.setAttribute("role", "alert");
  link.href = location.href;
  link.textContent = "Sign in again";
  note.append("You are signed out; this page shows an earlier state. ", link);
  document.getElementById("main")?.prepend(note);
  paused = true;
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected || answer.status === 403) signedOut();
  if (!answer.ok || answer.redirected) return;
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  replaceBanner(read);
  const fresh = read.getElementById("fresh");
  const part = document.getElementById("fresh");
  if (fresh && part && !inUse() && fresh.innerHTML !== said) {
    said = fresh.innerHTML;
    part.replaceWith(fresh);
    reach(fresh);
    offerDrawn(fresh);
    if (fresh.dataset.over === undefined) return;
    paused = true; // nothing changes any more
    state.remove();
  }
}

async function turn() {
  // After an error the page keeps its content and tries again later.
  const held = inUse();
  if (!paused) tell(held && !document.hidden ? "Held still while in use" : `Refreshes every ${EVERY_MS / 1000} s`);
  if (!paused && !held) await refresh().catch(() => undefined);
  setTimeout(turn, EVERY_MS);
}

offerDrawn(document);
announce();
bind("p", toggle, "Pause or resume the refreshes");
setTimeout(turn, EVERY_MS);
