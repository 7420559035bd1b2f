/**
 * `<tg-trace source="/trace/…?form=rows">`: a trace in place. A row for each trajectory, its
 * actions above their phases. Wheel or `+` and `-` zoom, dragging or the arrows move, a click or
 * Enter selects; a table has the same content.
 * @module
 */

import { color, onTheme } from "../lib/color.js";
import * as format from "../lib/format.js";
import { dirty } from "../lib/animation_loop.js";
import { offer } from "../lib/picture.js";
import { line, twin } from "../lib/table.js";
import { read, seen, within, zoom } from "../lib/trace.js";

/** @typedef {import("../lib/trace.js").Slice} Slice @typedef {import("../lib/trace.js").Row} Row */

const ROW = 18;
const AXIS = 24;
const NAMES = 150;
const MOST_HIGH = 560;
const TABLE_ROWS = 200;
/** Time without a movement after which the address follows. */
const SETTLED_MS = 300;
const COLORS = { action: "--q2", queue: "--queue", overhead: "--over", execution: "--exec" };
const FONT = "11px system-ui, sans-serif";

export class TgTrace extends HTMLElement {
  #canvas = document.createElement("canvas");
  #scroller = document.createElement("div");
  #space = document.createElement("div");
  #said = document.createElement("p");
  #facts = document.createElement("dl");
  #table = document.createElement("table");
  /** @type {Row[]} */
  #rows = [];
  #seconds = 1;
  #settled = 0;
  /** @type {[number, number]} */
  #span = [0, 1];
  /** @type {Slice | null} */
  #chosen = null;
  /** @type {{ x: number, span: [number, number], moved: boolean } | null} */
  #drag = null;
  #wide = 0;

  connectedCallback() {
    this.#scroller.className = "scroller";
    this.#facts.className = "facts-list";
    this.#said.className = "muted";
    this.#said.setAttribute("role", "status");
    this.#canvas.tabIndex = 0;
    this.#canvas.setAttribute("role", "application");
    this.#canvas.setAttribute("aria-label", "Trace: arrows move, plus and minus zoom, n and b select");
    this.#scroller.append(this.#canvas, this.#space);
    this.append(this.#scroller, this.#said, this.#facts, twin(this.#table, () => dirty(this)));
    this.#listen();
    offer(this, () => this.#canvas);
    this.#load();
  }

  #listen() {
    const canvas = this.#canvas;
    canvas.addEventListener("wheel", (event) => this.#turn(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.#drag = { x: event.offsetX, span: [...this.#span], moved: false };
    });
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => {
      if (this.#drag && !this.#drag.moved) this.#choose(this.#under(event));
      this.#drag = null;
    });
    canvas.addEventListener("keydown", (event) => this.#press(event));
    this.#scroller.addEventListener("scroll", () => dirty(this));
    new ResizeObserver(([entry]) => {
      this.#wide = entry.contentRect.width;
      dirty(this);
    }).observe(this.#scroller);
    onTheme(() => dirty(this));
  }

  async #load() {
    this.#said.textContent = "Loading …";
    const answer = await fetch(this.getAttribute("source") ?? "").catch(() => null);
    if (!answer?.ok || answer.redirected) {
      this.#said.textContent = "The trace cannot be read now. Reload to try again.";
      return;
    }
    const trace = await answer.json();
    const { rows, seconds } = read(trace);
    this.#rows = rows;
    this.#seconds = Math.max(seconds, 1e-6);
    this.#span = this.#remembered();
    const count = rows.reduce((sum, row) => sum + (row.depth ? 0 : row.slices.length), 0);
    const cut = trace.cut ? `, the first ${trace.most_actions} of more` : "";
    const start = trace.start ? ` from ${trace.start}` : "";
    this.#said.textContent = count
      ? `${format.count(count)} actions over ${format.duration(seconds)}${start}${cut}`
      : "No action was submitted in that time.";
    dirty(this);
  }

  get #high() {
    return Math.min(MOST_HIGH, AXIS + this.#rows.length * ROW + 4);
  }

  get #names() {
    return this.#wide < 600 ? 72 : NAMES;
  }

  /** Seconds at a place. @param {number} x */
  #at(x) {
    const [from, to] = this.#span;
    return from + ((x - this.#names) / Math.max(1, this.#wide - this.#names)) * (to - from);
  }

  /** @param {number} second */
  #x(second) {
    const [from, to] = this.#span;
    return this.#names + ((second - from) / (to - from)) * (this.#wide - this.#names);
  }

  /** @param {WheelEvent} event */
  #turn(event) {
    if (event.shiftKey) return; // scrolls the rows
    event.preventDefault();
    this.#look(zoom(this.#span, this.#at(event.offsetX), event.deltaY > 0 ? 1.25 : 0.8, this.#seconds));
  }

  /** @param {PointerEvent} event */
  #move(event) {
    const drag = this.#drag;
    if (!drag) {
      const slice = this.#under(event);
      this.#canvas.title = slice ? `${slice.name} ${format.duration(slice.seconds)}` : "";
      return;
    }
    if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
    const [from, to] = drag.span;
    const by = ((drag.x - event.offsetX) / Math.max(1, this.#wide - this.#names)) * (to - from);
    this.#look(within(from + by, to - from, this.#seconds));
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const [from, to] = this.#span;
    const wide = to - from;
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowLeft: () => this.#look(within(from - wide / 5, wide, this.#seconds)),
      ArrowRight: () => this.#look(within(from + wide / 5, wide, this.#seconds)),
      ArrowUp: () => this.#scroller.scrollBy(0, -ROW * 2),
      ArrowDown: () => this.#scroller.scrollBy(0, ROW * 2),
      "+": () => this.#look(zoom(this.#span, (from + to) / 2, 0.5, this.#seconds)),
      "-": () => this.#look(zoom(this.#span, (from + to) / 2, 2, this.#seconds)),
      0: () => this.#look([0, this.#seconds]),
      n: () => this.#step(1),
      b: () => this.#step(-1),
      Enter: () => this.#open(),
    };
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** @param {[number, number]} span */
  #look(span) {
    this.#span = span;
    dirty(this);
    clearTimeout(this.#settled);
    this.#settled = setTimeout(() => this.#remember(), SETTLED_MS);
  }

  /** Put the stretch that is shown into the address: a link shows it again. */
  #remember() {
    const address = new URL(location.href);
    const source = new URL(this.getAttribute("source") ?? "", location.href).searchParams;
    for (const name of ["range", "to"]) {
      if (source.has(name)) address.searchParams.set(name, source.get(name) ?? "");
    }
    const [from, to] = this.#span;
    if (from <= 0 && to >= this.#seconds) address.searchParams.delete("zoom");
    else address.searchParams.set("zoom", `${from.toFixed(3)}-${to.toFixed(3)}`);
    history.replaceState(null, "", address);
  }

  /** The stretch in the address, within the whole. @returns {[number, number]} */
  #remembered() {
    const zoom = new URLSearchParams(location.search).get("zoom") ?? "";
    const [from, to] = zoom.split("-").map(Number);
    if (!(from >= 0 && to > from && from < this.#seconds)) return [0, this.#seconds];
    return [from, Math.min(to, this.#seconds)];
  }

  /** Select the next or the previous action. @param {number} by */
  #step(by) {
    const all = this.#rows.filter(({ depth }) => depth === 0).flatMap(({ slices }) => slices);
    if (!all.length) return;
    const at = this.#chosen ? all.indexOf(this.#chosen) : by > 0 ? -1 : all.length;
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    const [from, to] = this.#span;
    if (next.at > to || next.at + next.seconds < from) {
      this.#span = within(next.at + next.seconds / 2 - (to - from) / 2, to - from, this.#seconds);
    }
    this.#choose(next);
  }

  #open() {
    const id = this.#chosen?.args.id;
    if (id) location.assign(`/actions/${encodeURIComponent(id)}/`);
  }

  /** @param {Slice | null | undefined} slice */
  #choose(slice) {
    this.#chosen = slice ?? null;
    this.#facts.replaceChildren(...(slice ? facts(slice) : []));
    dirty(this);
  }

  /** @param {MouseEvent} event */
  #under({ offsetX, offsetY }) {
    if (offsetX < this.#names || offsetY < AXIS) return null;
    const row = this.#rows[Math.floor((offsetY - AXIS + this.#scroller.scrollTop) / ROW)];
    const second = this.#at(offsetX);
    const slack = (this.#span[1] - this.#span[0]) / Math.max(1, this.#wide);
    return row?.slices.find(({ at, seconds }) => at - slack <= second && second <= at + seconds + slack);
  }

  paint() {
    const [wide, high, scale] = [this.#wide, this.#high, devicePixelRatio];
    if (!wide) return;
    this.#scroller.style.height = `${high}px`;
    this.#space.style.height = `${Math.max(0, AXIS + this.#rows.length * ROW + 4 - high)}px`;
    if (this.#canvas.width !== Math.round(wide * scale) || this.#canvas.height !== Math.round(high * scale)) {
      this.#canvas.width = Math.round(wide * scale);
      this.#canvas.height = Math.round(high * scale);
      this.#canvas.style.width = `${wide}px`;
      this.#canvas.style.height = `${high}px`;
    }
    const context = /** @type {CanvasRenderingContext2D} */ (this.#canvas.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, wide, high);
    context.font = FONT;
    const first = Math.floor(this.#scroller.scrollTop / ROW);
    const top = AXIS - (this.#scroller.scrollTop % ROW);
    for (let at = 0; top + at * ROW < high && first + at < this.#rows.length; at += 1) {
      this.#drawRow(context, this.#rows[first + at], top + at * ROW);
    }
    this.#drawAxis(context, wide);
    if (this.#table.closest("details")?.open) this.#fillTable();
  }

  /** @param {CanvasRenderingContext2D} context @param {Row} row @param {number} y */
  #drawRow(context, row, y) {
    const [from, to] = this.#span;
    const pixel = (to - from) / Math.max(1, this.#wide - this.#names);
    for (const slice of seen(row.slices, from, to, pixel)) {
      const left = Math.max(this.#names, this.#x(slice.at));
      const right = Math.min(this.#wide, Math.max(left + 1, this.#x(slice.at + slice.seconds)));
      context.fillStyle = color(COLORS[/** @type {keyof typeof COLORS} */ (slice.kind)] ?? "--q3");
      context.globalAlpha = 0.9;
      context.fillRect(left, y + 1, right - left, ROW - 2);
      context.globalAlpha = 1;
      if (slice === this.#chosen) {
        context.strokeStyle = color("--text");
        context.lineWidth = 2;
        context.strokeRect(left, y + 1, right - left, ROW - 2);
      }
      if (slice.kind === "action" && right - left > 32) write(context, slice.name, left + 4, y, right - left - 6, "--text");
    }
    if (row.depth === 0) write(context, row.thread, 0, y, this.#names - 8, "--muted");
  }

  /** @param {CanvasRenderingContext2D} context @param {number} wide */
  #drawAxis(context, wide) {
    const [from, to] = this.#span;
    context.fillStyle = color("--panel");
    context.fillRect(0, 0, wide, AXIS - 2);
    const count = Math.max(2, Math.floor((wide - this.#names) / 120));
    const raw = (to - from) / count;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= raw) ?? raw;
    for (let second = Math.ceil(from / step) * step; second <= to; second += step) {
      const x = this.#x(second);
      context.fillStyle = color("--line");
      context.fillRect(x, AXIS - 6, 1, 4);
      const text = second < step / 2 ? "0" : format.duration(second, 4);
      write(context, text, Math.min(x - 2, wide - 52), 0, 100, "--muted");
    }
  }

  #fillTable() {
    const [from, to] = this.#span;
    /** @type {Slice[]} */
    const shown = [];
    for (const row of this.#rows) {
      if (row.depth === 0 && shown.length <= TABLE_ROWS) shown.push(...seen(row.slices, from, to, 0));
    }
    const rows = shown.slice(0, TABLE_ROWS).map(({ row, name, at, seconds, args }) =>
      line("td", [row.thread, name, format.duration(at), format.duration(seconds), String(args.outcome ?? args.state ?? ""), String(args.id ?? "")]),
    );
    if (shown.length > TABLE_ROWS) rows.push(line("td", ["… zoom in for more", "", "", "", "", ""]));
    this.#table.replaceChildren(line("th", ["Trajectory", "Action", "After", "Took", "End", "Id"]), ...rows);
  }
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y @param {number} room @param {string} hue */
function write(context, text, x, y, room, hue) {
  const most = Math.max(1, Math.floor(room / 6));
  context.fillStyle = color(hue);
  context.fillText(text.length > most ? `${text.slice(0, most - 1)}…` : text, x, y + 13);
}

/** @param {Slice} slice @returns {Node[]} */
function facts(slice) {
  /** @type {[string, string | Node][]} */
  const pairs = [
    ["Selected", slice.name],
    ["Trajectory", `${slice.row.thread} of ${slice.row.process}`],
    ["After", format.duration(slice.at)],
    ["Took", format.duration(slice.seconds)],
  ];
  const { id, state, outcome, units, node } = slice.args;
  if (id) {
    const link = document.createElement("a");
    link.href = `/actions/${encodeURIComponent(id)}/`;
    link.textContent = id;
    pairs.push(["Action", link], ["State", outcome ?? state], ["Units", format.resources(units ?? {})], ["Node", node ?? "–"]);
  }
  return pairs.flatMap(([name, value]) => {
    const [term, what] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    what.append(value);
    return [term, what];
  });
}

customElements.define("tg-trace", TgTrace);
