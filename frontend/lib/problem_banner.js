/**
 * The banner above every page while a problem is critical, and the number of problems in the side bar: the
 * server writes them, live pages keep them current.
 * @module
 */

import { icon } from "./icons.js";

/** @typedef {{ banner: string, count: number, critical: number }} Health */

const place = document.getElementById("problem-banner");

/** Show the banner and the number of problems of a frame. @param {Health} health */
export function showBanner({ banner, count, critical }) {
  showCount(count, critical);
  if (!place || (place.querySelector(".says")?.textContent ?? "") === banner) return;
  place.replaceChildren(...(banner ? [bannerOf(banner)] : []));
}

/** Take over the banner of a page that was loaded again. @param {Document} read */
export function replaceBanner(read) {
  const fresh = read.getElementById("problem-banner");
  if (place && fresh && place.textContent !== fresh.textContent) {
    place.replaceChildren(...fresh.childNodes);
  }
  const number = read.querySelector(".side .count");
  showCount(Number(number?.textContent ?? 0), number?.classList.contains("crit") ? 1 : 0);
}

/** @param {string} says */
function bannerOf(says) {
  const banner = document.createElement("p");
  const text = document.createElement("span");
  const link = document.createElement("a");
  banner.className = "notice alarm";
  text.className = "says";
  text.textContent = says;
  link.href = place?.dataset.overview ?? "/";
  link.textContent = "Open the Overview";
  banner.append(icon("crit"), text, " ", link);
  return banner;
}

/** @param {number} count @param {number} critical */
function showCount(count, critical) {
  const link = document.querySelector('.side a[data-key="o"]');
  let number = link?.querySelector(".count");
  if (!count) number?.remove();
  if (!link || !count) return;
  if (!number) {
    number = document.createElement("b");
    number.setAttribute("title", "problems");
    link.append(number);
  }
  number.className = critical ? "count crit" : "count";
  if (number.textContent !== String(count)) number.textContent = String(count);
}
