/**
 * `<tg-coremap>`: one cell per core of a node, by NUMA node: outlined when free, half filled when
 * shared by light actions, filled when one action has it. A table has the same numbers.
 *
 * Where holders are given, cells of one holder have one colour and are joined, the pointer names
 * it and a click opens it. `noun="GPU"` makes it a map of GPUs, `labels` names the groups, `cell`
 * is the side of a cell in pixels.
 * @module
 */

import { color, onTheme } from "../lib/color.js";
import { dirty } from "../lib/animation_loop.js";
import { offer } from "../lib/picture.js";
import { whenSeen } from "../lib/visibility.js";
import { line, twin } from "../lib/table.js";
import { expand, huesOf, shorten } from "../lib/units.js";

const EXCLUSIVE = 255;
/** Held by other projects, on a page of one project. */
const OTHERS = 254;
const GAP = 2;
const GROUP_GAP = 8;
const LABEL = 16;

/**
 * @typedef {import("../lib/units.js").Holder} Holder
 * @typedef {{ number: number, byte: number, x: number, y: number, holder?: Holder, hue: string, broken: boolean,
 *             joined: boolean, drawn: string }} Place
 * `joined`: to the next one, of the same holder; `drawn`: what the canvas shows of it.
 * @typedef {{ x: number, y: number, text: string }} Label
 */

export class TgCoremap extends HTMLElement {
  #canvas = document.createElement("canvas");
  #table = document.createElement("table");
  /** @type {number[][]} */
  #groups = [];
  #names = "";
  /** The holders and the unavailable units, to see whether they changed. */
  #said = "";
  /** @type {Uint8Array} */
  #bytes = new Uint8Array();
  /** @type {Map<number, Holder>} */
  #holders = new Map();
  /** @type {Map<string, string>} */
  #hues = new Map();
  /** @type {Set<number>} */
  #broken = new Set();
  /** @type {Place[]} */
  #places = [];
  /** @type {Label[]} */
  #labels = [];
  #cell = 16;
  /** Whether places are to be found again. */
  #moved = true;
  /** The area that units take. */
  #wanted = { width: 80, height: 0 };
  #wide = 0;
  #seen = true;
  #label = "";

  connectedCallback() {
    if (this.contains(this.#canvas)) return;
    this.append(this.#canvas, twin(this.#table, () => dirty(this)));
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.#canvas.addEventListener("click", (event) => {
      const holder = this.#under(event)?.holder;
      if (holder) location.assign(`/actions/${holder.id}/`);
    });
    offer(this, () => this.#canvas);
    // The observer reports the width: reading it between writes would force a layout.
    new ResizeObserver(([entry]) => {
      this.#wide = entry.contentRect.width;
      this.#moved = true;
      dirty(this);
    }).observe(this);
    whenSeen(this, (seen) => {
      this.#seen = seen;
      if (seen) dirty(this);
    });
    onTheme(() => {
      this.#moved = true;
      dirty(this);
    });
  }

  /** @param {string[]} groups core numbers by NUMA node, as ranges @param {Uint8Array} bytes */
  show(groups, bytes) {
    const same = bytes.length === this.#bytes.length && bytes.every((one, at) => one === this.#bytes[at]);
    const moved = bytes.length !== this.#bytes.length || groups.join(" ") !== this.#names;
    if (same && !moved) return;
    if (moved) {
      this.#names = groups.join(" ");
      this.#groups = groups.map(expand);
      this.#moved = true;
    }
    this.#bytes = bytes.slice();
    dirty(this);
  }

  /** Name the holders of the units. @param {Holder[]} holders @param {number[]} broken unavailable */
  hold(holders, broken = []) {
    const said = [...holders.map(({ id, units }) => `${id} ${units}`), ...broken].join(";");
    if (said === this.#said) return;
    this.#said = said;
    this.#holders = new Map();
    for (const holder of holders) {
      for (const number of expand(holder.units)) this.#holders.set(number, holder);
    }
    this.#hues = huesOf(holders);
    this.#broken = new Set(broken);
    dirty(this);
  }

  get #noun() {
    return this.getAttribute("noun") ?? "core";
  }

  paint() {
    if (!this.#seen) return; // brought up to date when it comes into sight
    const moved = this.#moved;
    if (moved) this.#layOut();
    this.#fillPlaces();
    this.#fillTable();
    const context = /** @type {CanvasRenderingContext2D} */ (this.#canvas.getContext("2d"));
    if (moved) this.#clear(context);
    for (const place of this.#places) {
      const look = lookOf(place);
      if (look === place.drawn) continue;
      place.drawn = look;
      context.clearRect(place.x, place.y, this.#cell + GAP, this.#cell);
      draw(context, place, this.#cell);
    }
  }

  /** Begin with the labels alone. @param {CanvasRenderingContext2D} context */
  #clear(context) {
    const { width, height } = this.#wanted;
    const scale = devicePixelRatio;
    this.#size(width, height);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.fillStyle = color("--muted");
    context.font = "11px system-ui, sans-serif";
    for (const { x, y, text } of this.#labels) context.fillText(text, x, y);
  }

  /** Give each unit a place: rows as wide as the element, groups apart. */
  #layOut() {
    this.#moved = false;
    const width = Math.max(80, this.#wide);
    const many = this.#bytes.length;
    this.#cell = Number(this.getAttribute("cell")) || (many > 96 ? 10 : many > 32 ? 14 : 18);
    const step = this.#cell + GAP;
    const top = this.hasAttribute("labels") ? LABEL : 0;
    this.#places = [];
    this.#labels = [];
    const columns = inRow(width, step);
    let [x, y] = [0, top];
    this.#groups.forEach((group, index) => {
      const fits = x + Math.min(group.length, columns) * step - GAP <= width;
      if (x > 0 && !fits) [x, y] = [0, y + step + GROUP_GAP - GAP + top];
      const left = x;
      if (top) this.#labels.push({ x, y: y - 5, text: `${this.getAttribute("labels")} ${index}` });
      group.forEach((number, nth) => {
        if (nth > 0 && nth % columns === 0) [x, y] = [left, y + step];
        this.#places.push({ number, byte: 0, x, y, hue: "--q4", broken: false, joined: false, drawn: "" });
        x += step;
      });
      x += GROUP_GAP - GAP + (top ? LABEL : 0);
    });
    this.#wanted = { width, height: y + step };
  }

  /** Say what each unit does now. */
  #fillPlaces() {
    this.#places.forEach((place, at) => {
      place.byte = this.#bytes[at] ?? 0;
      place.holder = this.#holders.get(place.number);
      place.hue = (place.holder && this.#hues.get(place.holder.id)) ?? "--q4";
      place.broken = this.#broken.has(place.number);
      const before = this.#places[at - 1];
      if (before) before.joined = isJoined(before, place, this.#cell);
    });
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
    const noun = this.#noun;
    const kinds = [
      { name: "One action", held: this.#places.filter(({ byte }) => byte === EXCLUSIVE) },
      { name: "Shared", held: this.#places.filter(({ byte }) => byte > 0 && byte < OTHERS) },
      { name: "Other projects", held: this.#places.filter(({ byte }) => byte === OTHERS) },
      { name: "Free", held: this.#places.filter(({ byte, broken }) => byte === 0 && !broken) },
      { name: "Unavailable", held: this.#places.filter(({ broken }) => broken) },
    ].filter(({ name, held }) => held.length > 0 || name === "Free");
    const label = kinds.map(({ name, held }) => `${name}: ${held.length} ${noun}s`).join(", ");
    if (label !== this.#label) {
      this.#canvas.setAttribute("role", "img"); // not before it has a name
      this.#canvas.setAttribute("aria-label", label);
    }
    this.#label = label;
    if (!this.#table.closest("details")?.open) return;
    this.#table.replaceChildren(
      line("th", ["Held by", `${noun[0].toUpperCase()}${noun.slice(1)}s`, "Numbers"]),
      ...kinds.map(({ name, held }) =>
        line("td", [name, String(held.length), shorten(held.map(({ number }) => number))]),
      ),
    );
  }

  /** The unit under the pointer, found by arithmetic. @param {MouseEvent} event */
  #under(event) {
    return this.#places.find(
      ({ x, y }) =>
        event.offsetX >= x && event.offsetX < x + this.#cell &&
        event.offsetY >= y && event.offsetY < y + this.#cell,
    );
  }

  /** @param {MouseEvent} event */
  #point(event) {
    const under = this.#under(event);
    this.#canvas.title = under ? describe(under, this.#noun) : "";
    this.#canvas.style.cursor = under?.holder ? "pointer" : "";
  }
}

/** Units in a row: a multiple of eight where there is room, to count by eye. @param {number} width @param {number} step */
function inRow(width, step) {
  const most = Math.max(1, Math.floor((width + GAP) / step));
  return most > 8 ? most - (most % 8) : most;
}

/** @param {Place} place @param {string} noun */
function describe({ number, byte, holder, broken }, noun) {
  const name = `${noun[0].toUpperCase()}${noun.slice(1)} ${number}`;
  if (broken) return `${name}: unavailable`;
  if (byte === 0) return `${name}: free`;
  if (byte === OTHERS) return `${name}: held by another project`;
  if (byte !== EXCLUSIVE) return `${name}: shared by ${byte} light action${byte === 1 ? "" : "s"}`;
  if (!holder) return `${name}: held by one action`;
  return `${name}: …${holder.id.slice(-8)} of ${holder.task || "an unknown task"}`;
}

/** Whether two neighbours in a row have one holder. @param {Place} place @param {Place} next @param {number} size */
function isJoined({ holder, x, y }, next, size) {
  return holder !== undefined && next.holder === holder && next.y === y && next.x === x + size + GAP;
}

/** What is drawn of a unit. @param {Place} place */
function lookOf({ byte, hue, broken, joined }) {
  const held = byte === EXCLUSIVE ? `${hue} ${joined}` : byte === OTHERS ? "others" : byte > 0 ? "shared" : "free";
  return broken ? `${held} broken` : held;
}

/** @param {CanvasRenderingContext2D} context @param {Place} place @param {number} size */
function draw(context, { byte, x, y, hue, broken, joined }, size) {
  if (byte === EXCLUSIVE) {
    context.fillStyle = color(hue);
    context.fillRect(x, y, joined ? size + GAP : size, size);
  } else if (byte === OTHERS) {
    context.fillStyle = color("--q2");
    context.fillRect(x, y, size, size);
  } else if (byte > 0) {
    context.fillStyle = color("--q3");
    context.beginPath();
    context.moveTo(x, y + size);
    context.lineTo(x + size, y + size);
    context.lineTo(x + size, y);
    context.fill();
  }
  if (byte !== EXCLUSIVE) {
    context.strokeStyle = color("--q3");
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  }
  if (broken) {
    context.strokeStyle = color("--crit");
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y);
    context.lineTo(x, y + size);
    context.stroke();
  }
}

customElements.define("tg-coremap", TgCoremap);
