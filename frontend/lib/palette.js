/**
 * The command palette (Ctrl-K): pages, searches and choices by a few letters. An action's id or a
 * word leads to its page or to a search.
 * @module
 */

/** @typedef {{ name: string, run: () => void }} Command */

const dialog = /** @type {HTMLDialogElement | null} */ (document.getElementById("palette"));
const input = /** @type {HTMLInputElement | null} */ (document.getElementById("palette-input"));
const list = /** @type {HTMLElement | null} */ (document.getElementById("palette-list"));
const LONGEST = 200;

/** @type {Command[]} */
let shown = [];
let chosen = 0;

/** @param {string} href @returns {() => void} */
const go = (href) => () => location.assign(href);

/** @returns {Command[]} */
function pages() {
  return [...document.querySelectorAll(".bar nav a")].map((link) => ({
    name: `Go to ${link.textContent}`,
    run: go(/** @type {HTMLAnchorElement} */ (link).href),
  }));
}

/** @returns {Command[]} */
function files() {
  return [...document.querySelectorAll("a[download]")].map((link) => ({
    name: `Download ${link.textContent} of this page`,
    run: () => /** @type {HTMLAnchorElement} */ (link).click(),
  }));
}

/** @returns {Command[]} */
function choices() {
  const theme = /** @type {HTMLSelectElement | null} */ (document.getElementById("theme"));
  return [...(theme?.options ?? [])].map((option) => ({
    name: `Theme: ${option.text}`,
    run: () => {
      if (!theme) return;
      theme.value = option.value;
      theme.dispatchEvent(new Event("change"));
    },
  }));
}

/** @param {string} text @returns {Command[]} */
function searches(text) {
  if (!text) return [];
  const value = encodeURIComponent(text);
  const short = text.length > 40 ? `${text.slice(0, 40)}…` : text;
  if (/^act_[0-9a-f]+$/.test(text)) return [{ name: `Open action ${short}`, run: go(`/actions/${value}/`) }];
  if (/^rol_[0-9a-f]+$/.test(text)) return [{ name: `Open rollout ${short}`, run: go(`/rollouts/${value}/`) }];
  return [
    { name: `Actions of task ${short}`, run: go(`/actions/?task=${value}`) },
    { name: `Actions of trajectory ${short}`, run: go(`/actions/?trajectory=${value}`) },
    { name: `Trajectories of task ${short}`, run: go(`/trajectories/?task=${value}`) },
  ];
}

/** Whether `name` contains the letters of `text` in their order. @param {string} text @param {string} name */
function fits(text, name) {
  let at = 0;
  for (const letter of name.toLowerCase()) if (letter === text[at]) at += 1;
  return at === text.length;
}

function fill() {
  if (!input || !list) return;
  const text = input.value.trim().slice(0, LONGEST);
  const letters = text.toLowerCase().replaceAll(" ", "");
  const known = [...pages(), ...files(), ...choices()].filter(({ name }) => fits(letters, name));
  shown = [...known.slice(0, 8), ...searches(text)];
  chosen = 0;
  list.replaceChildren(
    ...shown.map(({ name, run }, at) => {
      const item = document.createElement("li");
      item.id = `palette-${at}`;
      item.setAttribute("role", "option");
      item.textContent = name;
      item.addEventListener("click", () => choose(run));
      return item;
    }),
  );
  mark();
}

function mark() {
  [...(list?.children ?? [])].forEach((item, at) => {
    item.setAttribute("aria-selected", String(at === chosen));
    if (at === chosen) item.scrollIntoView({ block: "nearest" });
  });
  input?.setAttribute("aria-activedescendant", shown.length ? `palette-${chosen}` : "");
}

/** @param {() => void} run */
function choose(run) {
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
  } else {
    return;
  }
  event.preventDefault();
}

export function open() {
  if (!dialog || !input || dialog.open) return;
  input.value = "";
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
