/**
 * Live output of a command: follows `#live-output` from its start to its end, both streams apart.
 * The browser reconnects by itself and continues after the last event.
 * @module
 */

import "./auto_refresh.js";
import "../elements/tg-output.js";

/** Characters that the page keeps of each stream. */
const MOST = 262144;
/** Time for the row of the ended action to be written. */
const LOOK_MS = 500;

const panel = document.getElementById("live-output");

/** @param {{ text?: string, base64?: string }} data */
function textOf(data) {
  if (data.text !== undefined) return data.text;
  const bytes = Uint8Array.from(atob(data.base64 ?? ""), (c) => c.charCodeAt(0));
  return new TextDecoder().decode(bytes);
}

/**
 * @param {string} stream
 * @param {string} text
 */
function append(stream, text) {
  const shown = panel?.querySelector(`pre[data-stream="${stream}"]`);
  if (!(shown instanceof HTMLElement) || !panel) return;
  const follows = shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 4;
  shown.append(document.createTextNode(text));
  let size = shown.textContent?.length ?? 0;
  while (size > MOST && shown.firstChild && shown.firstChild !== shown.lastChild) {
    size -= shown.firstChild.textContent?.length ?? 0;
    shown.firstChild.remove();
  }
  shown.hidden = panel.hidden = false;
  const title = panel.querySelector(`[data-title="${stream}"]`);
  if (title instanceof HTMLElement) title.hidden = false;
  const tools = shown.closest("tg-output");
  if (tools instanceof HTMLElement) tools.hidden = false;
  if (follows) shown.scrollTop = shown.scrollHeight;
}

/** Hide the live output once the page shows what was kept. */
function giveWay() {
  if (panel && document.getElementById("kept-output")) panel.hidden = true;
  else setTimeout(giveWay, LOOK_MS);
}

function follow() {
  if (!panel?.dataset.source) return;
  const source = new EventSource(panel.dataset.source);
  for (const stream of ["stdout", "stderr"]) {
    source.addEventListener(stream, (event) => append(stream, textOf(JSON.parse(event.data))));
  }
  source.addEventListener("gap", (event) => {
    const { stream, bytes } = JSON.parse(event.data);
    append(stream, `\n[${bytes} bytes are missing here]\n`);
  });
  source.addEventListener("restart", (event) => {
    for (const shown of panel.querySelectorAll("pre")) shown.textContent = "";
    append("stdout", `[attempt ${JSON.parse(event.data).attempt}]\n`);
  });
  source.addEventListener("end", () => {
    source.close();
    const state = panel.querySelector("header .muted");
    if (state) state.textContent = "ended";
    giveWay();
  });
}

follow();
