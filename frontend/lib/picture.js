/**
 * Charts as pictures: a button that saves a chart as PNG, with its title and key.
 * @module
 */

import { color } from "./color.js";

/** @typedef {{ label: string, color: string }} Entry */

const EDGE = 12;
const TITLE = 24;
/** Style properties of an SVG shape that a picture of it needs. */
const STYLES = ["fill", "stroke", "stroke-width", "opacity", "font", "font-size", "font-family"];

/**
 * Put the button on the panel or card around `element`.
 * @param {Element} element @param {() => HTMLCanvasElement | SVGSVGElement | null} drawing
 * @param {() => Entry[]} [key]
 */
export function offer(element, drawing, key = () => []) {
  const panel = element.closest(".card, .panel");
  const head = panel?.querySelector("header");
  if (!panel || !head || head.querySelector(".save")) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link save";
  button.textContent = "PNG";
  const title = panel.querySelector("h2, .name")?.textContent?.trim() ?? "chart";
  button.title = `Save “${title}” as PNG`;
  button.setAttribute("aria-label", button.title);
  button.addEventListener("click", async () => {
    const drawn = drawing();
    if (drawn) await save(drawn, panel.querySelector("h2, .name")?.textContent?.trim() ?? "chart", key());
  });
  head.append(button);
}

/** @param {HTMLCanvasElement | SVGSVGElement} drawn @param {string} title @param {Entry[]} key */
async function save(drawn, title, key) {
  const { width, height } = drawn.getBoundingClientRect();
  const image = drawn instanceof HTMLCanvasElement ? drawn : await painted(drawn, width, height);
  const canvas = document.createElement("canvas");
  const scale = Math.max(2, devicePixelRatio);
  const below = key.length ? TITLE : 0;
  canvas.width = (width + 2 * EDGE) * scale;
  canvas.height = (height + 2 * EDGE + TITLE + below) * scale;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(scale, scale);
  context.fillStyle = color("--panel");
  context.fillRect(0, 0, width + 2 * EDGE, height + 2 * EDGE + TITLE + below);
  context.fillStyle = color("--text");
  context.font = "600 13px system-ui, sans-serif";
  context.fillText(`${title} · ${new Date().toISOString().slice(0, 19)}Z`, EDGE, EDGE + 10);
  context.drawImage(image, EDGE, EDGE + TITLE, width, height);
  drawKey(context, key, EDGE + TITLE + height + 16);
  canvas.toBlob((blob) => blob && download(blob, `${plain(title)}.png`), "image/png");
}

/** @param {CanvasRenderingContext2D} context @param {Entry[]} key @param {number} y */
function drawKey(context, key, y) {
  context.font = "12px system-ui, sans-serif";
  let x = EDGE;
  for (const { label, color: name } of key) {
    context.fillStyle = color(name);
    context.fillRect(x, y - 8, 10, 10);
    context.fillStyle = color("--text");
    context.fillText(label, x + 14, y + 1);
    x += 14 + context.measureText(label).width + 16;
  }
}

/** @param {SVGSVGElement} svg @param {number} width @param {number} height */
async function painted(svg, width, height) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const [from, to] = [[...svg.querySelectorAll("*")], [...copy.querySelectorAll("*")]];
  from.forEach((one, at) => {
    const style = getComputedStyle(one);
    for (const name of STYLES) to[at].setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const text = new XMLSerializer().serializeToString(copy);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  return image;
}

/** @param {Blob} blob @param {string} name */
function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** @param {string} title */
const plain = (title) => title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-") || "chart";

/** Add buttons for the SVG charts in `part`. @param {ParentNode} part */
export function offerDrawn(part) {
  for (const svg of part.querySelectorAll(".panel > svg")) {
    offer(svg, () => /** @type {SVGSVGElement} */ (svg));
  }
}
