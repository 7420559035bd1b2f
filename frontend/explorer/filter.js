/**
 * The filter bar: `/` or `f` focuses it; names of filters, then their values with counts are completed.
 * @module
 */

import { bindFilter } from "../lib/keys.js";

/** @typedef {{ text: string, says: string, count: number | null }} Option */

/** Wait until typing pauses before the server is asked. */
const PAUSE_MS = 120;

const form = /** @type {HTMLFormElement | null} */ (document.getElementById("filters"));
const input = /** @type {HTMLInputElement | null} */ (document.getElementById("filter"));
const list = /** @type {HTMLElement | null} */ (document.getElementById("completions"));
/** @type {Option[]} */
let options = [];
let chosen = -1;
let timer = 0;
let asked = 0;

export function completeFilter() {
  if (!form || !input || !list) return;
  bindFilter(() => input.focus());
  input.addEventListener("input", later);
  input.addEventListener("focus", later);
  input.addEventListener("blur", () => setTimeout(close, 150)); // a click on an option comes first
  input.addEventListener("keydown", press);
  list.addEventListener("pointerdown", ({ target }) => {
    const line = /** @type {HTMLElement} */ (target).closest("[data-at]");
    if (line) take(Number(/** @type {HTMLElement} */ (line).dataset.at));
  });
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(() => ask().catch(close), PAUSE_MS);
}

/** The word at the end, which is completed, and what is before it. */
function typed() {
  const text = /** @type {HTMLInputElement} */ (input).value;
  const at = /"[^"]*$/.test(text.replace(/"[^"]*"/g, "")) ? text.lastIndexOf(" ", text.lastIndexOf('"')) : text.lastIndexOf(" ");
  return { before: text.slice(0, at + 1), word: text.slice(at + 1) };
}

async function ask() {
  const number = (asked += 1);
  const { before, word } = typed();
  const known = /** @type {HTMLInputElement} */ (form?.elements.namedItem("q")).value;
  const query = new URLSearchParams({ q: `${known} ${before}`.trim(), typed: word });
  const answer = await fetch(`${form?.dataset.complete}?${query}`);
  if (!answer.ok || number !== asked || document.activeElement !== input) return;
  const { options: found, problem } = await answer.json();
  options = found;
  chosen = -1;
  draw(problem);
}

/** @param {string} problem */
function draw(problem) {
  if (!list || !input) return;
  const lines = options.map((option, at) => {
    const line = item("option");
    line.dataset.at = String(at);
    line.id = `completion-${at}`;
    const text = document.createElement("code");
    const says = document.createElement("span");
    const count = document.createElement("b");
    text.textContent = option.text;
    says.textContent = option.says;
    count.textContent = option.count === null ? "" : String(option.count);
    line.append(text, says, count);
    return line;
  });
  if (problem) {
    const line = item("presentation");
    line.className = "ex-no";
    line.textContent = problem;
    lines.push(line);
  }
  const help = item("presentation");
  help.className = "ex-help";
  help.textContent = "↑ ↓ choose · Tab take · Enter run · Esc close";
  list.replaceChildren(...lines, help);
  list.hidden = lines.length === 0;
  input.setAttribute("aria-expanded", String(!list.hidden));
}

/** @param {string} role */
function item(role) {
  const line = document.createElement("li");
  line.setAttribute("role", role);
  return line;
}

function close() {
  asked += 1;
  if (list) list.hidden = true;
  input?.setAttribute("aria-expanded", "false");
  input?.removeAttribute("aria-activedescendant");
}

/** @param {number} by */
function choose(by) {
  if (!options.length || list?.hidden) return;
  chosen = (chosen + by + options.length) % options.length;
  list?.querySelectorAll("[data-at]").forEach((line, at) => line.setAttribute("aria-selected", String(at === chosen)));
  input?.setAttribute("aria-activedescendant", `completion-${chosen}`);
}

/** Put an option into the input; one that names a field goes on with its values. @param {number} at */
function take(at) {
  const option = options[at];
  if (!option || !input) return;
  const { before } = typed();
  input.value = before + option.text + (option.text.endsWith(":") ? "" : " ");
  chosen = -1;
  setTimeout(() => {
    input.focus();
    later();
  });
}

/** @param {KeyboardEvent} event */
function press(event) {
  if (!input || !list) return;
  const open = !list.hidden;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    choose(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Tab" && open && options.length && input.value) {
    event.preventDefault();
    take(Math.max(0, chosen));
  } else if (event.key === "Enter" && open && chosen >= 0) {
    event.preventDefault();
    const ready = !options[chosen].text.endsWith(":");
    take(chosen);
    if (ready) form?.requestSubmit();
  } else if (event.key === "Escape") {
    if (open) close();
    else input.blur();
  } else if (event.key === "Backspace" && !input.value) {
    editLast(event);
  }
}

/** Bring the last term back into the input. @param {KeyboardEvent} event */
function editLast(event) {
  const chips = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".ex-chip"));
  const last = chips[chips.length - 1];
  if (!last || !input) return;
  event.preventDefault();
  const rest = new URLSearchParams(last.querySelector("a")?.search ?? "");
  /** @type {HTMLInputElement} */ (form?.elements.namedItem("q")).value = rest.get("q") ?? "";
  input.value = last.dataset.term ?? "";
  last.remove();
  later();
}
