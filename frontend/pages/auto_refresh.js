/**
 * Refresh of pages with answers of the scheduler: `#fresh` is loaded again every few seconds while the
 * page is visible. Not while it is in use: a selection, an open disclosure and the focus would be lost.
 * @module
 */

import "../lib/chrome.js";
import { bind } from "../lib/keys.js";
import { offerDrawn } from "../lib/picture.js";
import { reach } from "../lib/scroll.js";

const EVERY_MS = 3000;
let paused = false;
/** The last markup of the server; the page itself changes it a little. */
let said = document.getElementById("fresh")?.innerHTML;

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
  const fresh = read.getElementById("fresh");
  const part = document.getElementById("fresh");
  if (fresh && part && !inUse() && fresh.innerHTML !== said) {
    said = fresh.innerHTML;
    part.replaceWith(fresh);
    reach(fresh);
    offerDrawn(fresh);
    paused ||= fresh.dataset.over !== undefined; // nothing changes any more
  }
}

async function turn() {
  // After an error the page keeps its content and tries again later.
  if (!paused && !inUse()) await refresh().catch(() => undefined);
  setTimeout(turn, EVERY_MS);
}

offerDrawn(document);
bind("p", () => (paused = !paused));
setTimeout(turn, EVERY_MS);
