/**
 * Pages that only have the common head, and pictures of what the server drew.
 * @module
 */

import "../lib/chrome.js";
import { offer } from "../lib/picture.js";

for (const svg of document.querySelectorAll(".panel > svg")) {
  offer(svg, () => /** @type {SVGSVGElement} */ (svg));
}
