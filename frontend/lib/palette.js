/**
 * Find field and command palette (Ctrl-K): verbs of the page, pages, files and themes by a few letters;
 * objects and verbs on them from the server (`tangram_web/operations/finder.py`).
 *
 * What the page itself knows is shown at once; answers of the server follow, and late ones are dropped.
 * @module
 */

import { icon } from "./icons.js";
import { setTheme, THEMES } from "./theme_choice.js";

/** @typedef {{ name: string, run: () => void, icon?: string, note?: string }} Command */

const dialog = /** @type {HTMLDialogElement | null} */ (document.getElementById("palette"));
const input = /** @type {HTMLInputElement | null} */ (document.getElementById("palette-input"));
const list = /** @type {HTMLElement | null} */ (document.getElementById("palette-list"));
const status = document.getElementById("palette-status");
const LONGEST = 200;
const WAIT_MS = 120;
const MOST_OWN = 8;
/** Links to a verb, see tangram_web/operations. */
const VERBS = 'a[href^="/act/"]:not([href^="/act/done/"])';
const PLACEHOLDER = input?.placeholder ?? "";
const ICONS = /** @type {Record<string, string>} */ ({
  verb: "verb", task: "task", trajectory: "path", action: "list", rollout: "running", node: "node",
  pool: "node", service: "chip", resource: "api", fleet: "node", selector: "bars",
});

/** @type {Command[]} */
let shown = [];
let chosen = 0;
/** Commands that are offered instead of everything. @type {Command[] | null} */
let offered = null;
/** @type {AbortController | null} */
let asked = null;
let timer = 0;
/** Whether Enter was pressed before the server answered. */
let awaited = false;

/** @param {string} href @returns {() => void} */
const go = (href) => () => location.assign(href);

/** Verbs in a part of the page, each with its target. @param {ParentNode} part @returns {Command[]} */
export function verbsIn(part) {
  return [...part.querySelectorAll(VERBS)].map((each) => {
    const link = /** @type {HTMLAnchorElement} */ (each);
    const target = new URL(link.href).searchParams.get("target") ?? "";
    const name = `${(link.textContent ?? "").trim().replace(/…$/, "")}: ${target}…`;
    return { name, icon: "verb", run: go(link.href) };
  });
}

/** Verbs of the object that the page is about. @returns {Command[]} */
export const verbsOfPage = () =>
  [...document.querySelectorAll("main > .titled, main > .verbs")].flatMap((part) => verbsIn(part));

/** @returns {Command[]} */
function pages() {
  return [...document.querySelectorAll(".side > a:not(.brand)")].map((link) => ({
    name: link.textContent?.trim() ?? "",
    note: "page",
    icon: link.querySelector("use")?.getAttribute("href")?.split("#")[1],
    run: go(/** @type {HTMLAnchorElement} */ (link).href),
  }));
}

/** @returns {Command[]} */
function files() {
  return [...document.querySelectorAll("a[download]")].map((link) => ({
    name: `Download ${link.textContent} of this page`,
    icon: "file",
    run: () => /** @type {HTMLAnchorElement} */ (link).click(),
  }));
}

/** @returns {Command[]} */
const themes = () =>
  /** @type {import("./theme_choice.js").Theme[]} */ (Object.keys(THEMES)).map((each) => ({
    name: THEMES[each].says,
    icon: THEMES[each].icon,
    run: () => setTheme(each),
  }));

/** Pages of whole ids, which may be too new for the server's rows. @param {string} text @returns {Command[]} */
function ids(text) {
  const [, kind] = /^(act|rol)_[0-9a-f]{8,64}$/.exec(text) ?? [];
  if (kind === "act") return [{ name: text, note: "action", icon: "list", run: go(`/actions/${text}/`) }];
  return kind ? [{ name: text, note: "rollout", icon: "running", run: go(`/rollouts/${text}/`) }] : [];
}

/** A filter of the Explorer. @param {string} text @returns {Command[]} */
const filters = (text) =>
  /^\w+:\S/.test(text)
    ? [{ name: `Actions with ${text}`, icon: "find", run: go(`/actions/?q=${encodeURIComponent(text)}`) }]
    : [];

/** How well a name fits: 2 where a word begins with the text, 1 with its letters in order, 0 not. @param {string} text @param {string} name */
function fits(text, name) {
  const lower = name.toLowerCase();
  if (lower.startsWith(text) || lower.includes(` ${text}`)) return 2;
  let at = 0;
  for (const letter of lower) if (letter === text[at]) at += 1;
  return at === text.length ? 1 : 0;
}

/** The best of `commands`. @param {Command[]} commands @param {string} text @param {number} least */
const best = (commands, text, least) => commands.filter(({ name }) => fits(text, name) === least);

function fill() {
  if (!input) return;
  asked?.abort();
  clearTimeout(timer);
  const text = input.value.trim().slice(0, LONGEST);
  const lower = text.toLowerCase();
  const own = offered ?? [...verbsOfPage(), ...pages(), ...files(), ...themes()];
  const good = best(own, lower, 2);
  const fair = best(own, lower.replaceAll(" ", ""), 1).filter((each) => !good.includes(each));
  if (offered || !text) return draw([...good, ...fair], text);
  const near = good.slice(0, MOST_OWN);
  const far = fair.slice(0, Math.max(0, MOST_OWN - near.length));
  const known = [...ids(text), ...filters(text), ...near];
  draw(known, null);
  timer = setTimeout(async () => {
    const found = await objects(text);
    if (found) draw([...known, ...found.filter(({ name }) => name !== known[0]?.name), ...far], text);
  }, WAIT_MS);
}

/** What the server knows; null when a later question was asked. @param {string} text @returns {Promise<Command[] | null>} */
async function objects(text) {
  asked = new AbortController();
  const { signal } = asked;
  try {
    const answer = await fetch(`/find.json?q=${encodeURIComponent(text)}`, { signal });
    if (!answer.ok || answer.redirected) return [];
    const { found } = await answer.json();
    return found.map((/** @type {{ kind: string, title: string, note: string, href: string }} */ one) => ({
      name: one.title,
      note: one.note,
      icon: ICONS[one.kind],
      run: go(one.href),
    }));
  } catch {
    return signal.aborted ? null : [];
  }
}

/** @param {Command[]} commands @param {string | null} text null: answers of the server are awaited */
function draw(commands, text) {
  const before = shown[chosen]?.name;
  shown = commands;
  chosen = text === null ? 0 : Math.max(0, commands.findIndex(({ name }) => name === before && chosen > 0));
  list?.replaceChildren(...commands.map(itemOf));
  if (status) {
    const short = text && text.length > 40 ? `${text.slice(0, 40)}…` : text;
    status.textContent = commands.length || text === null ? "" : `Nothing begins with “${short}”.`;
  }
  mark();
  if (text === null) awaited = false;
  else if (awaited && commands.length) choose(commands[0].run);
}

/** @param {Command} command @param {number} at */
function itemOf({ name, run, note, icon: symbol }, at) {
  const item = document.createElement("li");
  const title = document.createElement("span");
  item.id = `palette-${at}`;
  item.setAttribute("role", "option");
  title.textContent = name;
  item.append(icon(symbol ?? "list"), title);
  if (note) {
    const beside = document.createElement("span");
    beside.className = "note";
    beside.textContent = note;
    item.append(" ", beside);
  }
  item.addEventListener("click", () => choose(run));
  return item;
}

function mark() {
  [...(list?.children ?? [])].forEach((item, at) => {
    item.setAttribute("aria-selected", String(at === chosen));
    if (at === chosen) item.scrollIntoView({ block: "nearest" });
  });
  if (shown.length) input?.setAttribute("aria-activedescendant", `palette-${chosen}`);
  else input?.removeAttribute("aria-activedescendant");
}

/** @param {() => void} run */
function choose(run) {
  awaited = false;
  dialog?.close();
  run();
}

/** @param {KeyboardEvent} event */
function press(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by && shown.length) {
    chosen = (chosen + by + shown.length) % shown.length;
    mark();
  } else if (event.key === "Enter" && shown[chosen]) {
    choose(shown[chosen].run);
  } else if (event.key === "Enter") {
    awaited = true;
  } else {
    return;
  }
  event.preventDefault();
}

/** Let the reader choose among some commands. @param {string} what @param {Command[]} commands */
export function offerCommands(what, commands) {
  if (commands.length) show(what, commands);
}

export const open = () => show(PLACEHOLDER, null);

/** @param {string} what @param {Command[] | null} commands */
function show(what, commands) {
  if (!dialog || !input || dialog.open) return;
  offered = commands;
  awaited = false;
  shown = [];
  input.value = "";
  input.placeholder = what;
  dialog.showModal();
  fill();
}

input?.addEventListener("input", fill);
input?.addEventListener("keydown", press);
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open();
  }
});
