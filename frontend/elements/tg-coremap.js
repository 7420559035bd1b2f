/**
 * `<tg-coremap>`: one cell per core of a node, by NUMA node: outlined when free, half filled when
 * shared by light actions, filled when one action has it. The same numbers stand in a table.
 * @module
 */

import { color, onTheme } from "../lib/color.js";
import { dirty } from "../lib/loop.js";
import { line, twin } from "../lib/table.js";

const EXCLUSIVE = 255;
const GAP = 2;
const GROUP_GAP = 8;

/** @typedef {{ number: number, byte: number, x: number, y: number }} Place */

export class TgCoremap extends HTMLElement {
  #canvas = document.createElement("canvas");
  #table = document.createElement("table");
  /** @type {number[][]} */
  #groups = [];
  /** @type {Uint8Array} */
  #bytes = new Uint8Array();
  /** @type {Place[]} */
  #places = [];
  #cell = 16;

  connectedCallback() {
    if (this.contains(this.#canvas)) return;
    this.#canvas.setAttribute("role", "img");
    this.append(this.#canvas, twin(this.#table, () => dirty(this)));
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    new ResizeObserver(() => dirty(this)).observe(this);
    onTheme(() => dirty(this));
  }

  /** @param {string[]} groups core numbers by NUMA node, as ranges @param {Uint8Array} bytes */
  show(groups, bytes) {
    const same = bytes.length === this.#bytes.length && bytes.every((one, at) => one === this.#bytes[at]);
    if (same && groups.length === this.#groups.length) return;
    this.#groups = groups.map(expand);
    this.#bytes = bytes.slice();
    dirty(this);
  }

  paint() {
    this.#layOut();
    const context = /** @type {CanvasRenderingContext2D} */ (this.#canvas.getContext("2d"));
    const scale = devicePixelRatio;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    const colors = { line: color("--free-line"), one: color("--blue"), many: color("--sky") };
    for (const place of this.#places) drawCore(context, place, this.#cell, colors);
    this.#fillTable();
  }

  /** Give each core a place: rows as wide as the element, groups apart. */
  #layOut() {
    const width = Math.max(80, this.clientWidth);
    this.#cell = this.#bytes.length > 96 ? 10 : this.#bytes.length > 32 ? 14 : 18;
    const step = this.#cell + GAP;
    this.#places = [];
    const columns = inRow(width, step);
    let [x, y, at] = [0, 0, 0];
    for (const group of this.#groups) {
      const fits = x + Math.min(group.length, columns) * step - GAP <= width;
      if (x > 0 && !fits) [x, y] = [0, y + step + GROUP_GAP - GAP];
      const left = x;
      group.forEach((number, nth) => {
        if (nth > 0 && nth % columns === 0) [x, y] = [left, y + step];
        this.#places.push({ number, byte: this.#bytes[at] ?? 0, x, y });
        x += step;
        at += 1;
      });
      x += GROUP_GAP - GAP;
    }
    this.#size(width, y + step);
  }

  /** @param {number} width @param {number} height */
  #size(width, height) {
    const [wide, high] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
    if (this.#canvas.width === wide && this.#canvas.height === high) return;
    this.#canvas.width = wide;
    this.#canvas.height = high;
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${height}px`;
  }

  #fillTable() {
    const kinds = [
      { name: "One action", cores: this.#places.filter(({ byte }) => byte === EXCLUSIVE) },
      { name: "Shared", cores: this.#places.filter(({ byte }) => byte > 0 && byte < EXCLUSIVE) },
      { name: "Free", cores: this.#places.filter(({ byte }) => byte === 0) },
    ];
    this.#table.replaceChildren(
      line("th", ["Held by", "Cores", "Numbers"]),
      ...kinds.map(({ name, cores }) =>
        line("td", [name, String(cores.length), shorten(cores.map(({ number }) => number))]),
      ),
    );
    this.#canvas.setAttribute(
      "aria-label",
      kinds.map(({ name, cores }) => `${name}: ${cores.length} cores`).join(", "),
    );
  }

  /** Name the core under the pointer, found by arithmetic. @param {PointerEvent} event */
  #point(event) {
    const under = this.#places.find(
      ({ x, y }) =>
        event.offsetX >= x && event.offsetX < x + this.#cell &&
        event.offsetY >= y && event.offsetY < y + this.#cell,
    );
    this.#canvas.title = under ? describe(under) : "";
  }
}

/** Cores in a row: a multiple of eight where there is room, to count by eye. @param {number} width @param {number} step */
function inRow(width, step) {
  const most = Math.max(1, Math.floor((width + GAP) / step));
  return most > 8 ? most - (most % 8) : most;
}

/** @param {Place} place */
function describe({ number, byte }) {
  if (byte === 0) return `Core ${number}: free`;
  return byte === EXCLUSIVE
    ? `Core ${number}: held by one action`
    : `Core ${number}: shared by ${byte} light action${byte === 1 ? "" : "s"}`;
}

/**
 * @param {CanvasRenderingContext2D} context @param {Place} place @param {number} size
 * @param {{ line: string, one: string, many: string }} colors
 */
function drawCore(context, { byte, x, y }, size, colors) {
  if (byte === EXCLUSIVE) {
    context.fillStyle = colors.one;
    context.fillRect(x, y, size, size);
    return;
  }
  if (byte > 0) {
    context.fillStyle = colors.many;
    context.beginPath();
    context.moveTo(x, y + size);
    context.lineTo(x + size, y + size);
    context.lineTo(x + size, y);
    context.fill();
  }
  context.strokeStyle = byte > 0 ? colors.many : colors.line;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
}

/** `0-3,8` → numbers. @param {string} ranges @returns {number[]} */
function expand(ranges) {
  if (!ranges) return [];
  return ranges.split(",").flatMap((part) => {
    const [low, high = low] = part.split("-").map(Number);
    return Array.from({ length: high - low + 1 }, (_, at) => low + at);
  });
}

/** Numbers → `0–3, 8`. @param {number[]} numbers */
function shorten(numbers) {
  /** @type {number[][]} */
  const runs = [];
  for (const number of numbers) {
    const run = runs.at(-1);
    if (run && number === run[1] + 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ");
}

customElements.define("tg-coremap", TgCoremap);
