/**
 * The theme: as the system, light or dark. Buttons `.theme` go on to the next; `theme.js` applies the
 * choice before the first paint.
 * @module
 */

import { redraw } from "./icons.js";

/** @typedef {"auto" | "light" | "dark"} Theme */

/** @type {Record<Theme, { says: string, icon: string, next: Theme }>} */
export const THEMES = {
  auto: { says: "Theme: as the system", icon: "auto", next: "light" },
  light: { says: "Theme: light", icon: "sun", next: "dark" },
  dark: { says: "Theme: dark", icon: "moon", next: "auto" },
};

/** @returns {Theme} */
export function theme() {
  const chosen = localStorage.getItem("tangram.theme");
  return chosen === "light" || chosen === "dark" ? chosen : "auto";
}

/** @param {Theme} chosen */
export function setTheme(chosen) {
  if (chosen === "auto") {
    localStorage.removeItem("tangram.theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("tangram.theme", chosen);
    document.documentElement.dataset.theme = chosen;
  }
  show();
}

const buttons = document.querySelectorAll("button.theme");

function show() {
  const { says, icon } = THEMES[theme()];
  for (const button of buttons) {
    redraw(button.querySelector(".i"), icon);
    const word = button.querySelector(".says");
    if (word) word.textContent = says;
    else button.setAttribute("aria-label", says);
    button.setAttribute("title", says);
  }
}

for (const button of buttons) button.addEventListener("click", () => setTheme(THEMES[theme()].next));
addEventListener("storage", ({ key }) => {
  if (key === "tangram.theme") setTheme(theme()); // chosen in another tab
});
show();
