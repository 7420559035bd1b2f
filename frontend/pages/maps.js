/**
 * The maps: node → NUMA node → core, and node → GPU → chunk. `data-kind` of the page selects one.
 * @module
 */

import "../lib/chrome.js";
import "../elements/tg-coremap.js";
import "../elements/tg-live.js";
import "../elements/tg-rows.js";
import * as format from "../lib/format.js";
import { dirty, regularly } from "../lib/animation_loop.js";
import { showBanner } from "../lib/problem_banner.js";
import { expand, freeChunks, groupFinder, shorten } from "../lib/units.js";

/**
 * @typedef {import("../lib/live.js").Frame} Frame
 * @typedef {import("../lib/units.js").Holder} Holder
 * @typedef {{ name: string, pool: string, state: string, isolation: string, hindrance: string, hostname: string,
 *             version: string, oversubscribed: boolean, cores_held: number, cores_total: number, cores_kept?: number,
 *             cores_own?: number,
 *             cores: Uint8Array, groups: string[], memory_held_bytes: number,
 *             memory_total_bytes: number, environments: number, alarm?: string,
 *             loss?: { since: number, returned: number | null, says: string },
 *             gpus: { groups: string[], unhealthy: number[], memory_bytes: number,
 *                     oversubscribed: boolean, others?: string } }} Node
 * @typedef {{ node: string, gpus: string, chunk: string, busy_ratio: number | null, used_bytes: number | null,
 *             total_bytes: number | null, measured_at: number | null, says: string }} Use
 */

const EXCLUSIVE = 255;
/** Held by other projects, on a page of one project. */
const OTHERS = 254;

/** @param {string} id @returns {any} */
const get = (id) => document.getElementById(id);
const live = get("live")?.live;
const place = get("maps");
const kind = place.dataset.kind;
/** The chosen project as a query of addresses. */
const within = place.dataset.project ? `&project=${encodeURIComponent(place.dataset.project)}` : "";
const template = /** @type {HTMLTemplateElement} */ (place.querySelector("template"));

const page = {
  /** @type {Node[]} */
  nodes: [],
  /** @type {Map<string, { holders: Holder[], more: number }>} */
  holders: new Map(),
  /** What held chunks do, by node and GPUs. @type {Map<string, Use>} */
  chunks: new Map(),
  wall: 0,
  paint() {
    const shown = this.nodes.filter((node) => kind === "cpu" || node.gpus.groups.length > 0);
    const names = new Set(shown.map(({ name }) => name));
    for (const card of place.querySelectorAll(".card")) {
      if (!names.has(card.dataset.node)) forget(card);
    }
    for (const node of shown) fill(cardOf(node.name), node, this.holdersOf(node.name));
    place.querySelector(".empty").hidden = shown.length > 0 || !live;
    const nodes = [...names].join(" ");
    if (this.listed === this.holders && this.listedNodes === nodes) return;
    [this.listed, this.listedNodes] = [this.holders, nodes];
    this.list(shown);
  },
  /** The holders that the table shows, and their nodes. @type {Map<string, { holders: Holder[], more: number }> | null} */
  listed: null,
  listedNodes: "",
  /** @param {Node[]} shown */
  list(shown) {
    const every = shown.flatMap((node) => this.holdersOf(node.name).map((holder) => ({ node, holder })));
    const rows = most(every, ({ holder }) => holder.amount * (this.wall - holder.since));
    get("holders").show(rows.map(({ node, holder }) => this.rowOf(node, holder)));
    let hidden = every.length - rows.length;
    for (const node of shown) hidden += this.holders.get(node.name)?.more ?? 0;
    get("more").textContent = hidden ? `${format.count(hidden)} more are not listed` : "";
  },
  /** @param {string} name */
  holdersOf(name) {
    return (this.holders.get(name)?.holders ?? []).filter((holder) => holder.kind === kind);
  },
  /** @param {Node} node @param {Holder} holder */
  rowOf(node, holder) {
    return {
      ...holder,
      node: node.name,
      groups: groupsIn(node)(holder.units),
      held: this.wall - holder.since,
      use: this.chunks.get(`${node.name}/${holder.units}`),
    };
  },
};

/** Rows of the table, at most: those that hold most. */
const MOST_ROWS = 100;

/** Those of the greatest values, in their order. @template T @param {T[]} rows @param {(row: T) => number} value @returns {T[]} */
function most(rows, value) {
  if (rows.length <= MOST_ROWS) return rows;
  const least = rows.map(value).sort((one, other) => other - one)[MOST_ROWS - 1];
  return rows.filter((row) => value(row) >= least).slice(0, MOST_ROWS);
}

/** Finders by the ranges of a node's groups. @type {Map<string, (units: string) => number[]>} */
const finders = new Map();

/** @param {Node} node */
function groupsIn(node) {
  const groups = kind === "cpu" ? node.groups : node.gpus.groups;
  const key = groups.join(" ");
  const found = finders.get(key) ?? groupFinder(groups);
  finders.set(key, found);
  return found;
}

/** @type {Map<string, HTMLElement>} */
const nodeCards = new Map();

/** @param {string} name @returns {HTMLElement} */
function cardOf(name) {
  const found = nodeCards.get(name);
  if (found) return found;
  const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
  const card = /** @type {HTMLElement} */ (copy.firstElementChild);
  card.dataset.node = name;
  place.append(card);
  nodeCards.set(name, card);
  return card;
}

/** @param {HTMLElement} card */
function forget(card) {
  nodeCards.delete(card.dataset.node ?? "");
  card.remove();
}

/** @param {HTMLElement} card @param {Node} node @param {Holder[]} holders */
function fill(card, node, holders) {
  card.dataset.is = node.state;
  write(card, ".name", node.name);
  write(card, ".pool", `pool ${node.pool}`);
  write(card, ".state", node.state);
  /** @type {HTMLElement} */ (card.querySelector(".state")).dataset.is = node.state;
  const map = /** @type {any} */ (card.querySelector("tg-coremap"));
  if (kind === "cpu") {
    showCores(card, node, map);
    map.hold(holders.filter(({ shared }) => !shared));
  } else {
    showGpus(card, node, map, holders);
    map.hold(holders, node.gpus.unhealthy);
  }
}

/** @param {HTMLElement} card @param {Node} node @param {any} map */
function showCores(card, node, map) {
  mark(card, node.oversubscribed);
  let [alone, shared, others] = [0, 0, 0];
  for (const byte of node.cores) {
    if (byte === EXCLUSIVE) alone += 1;
    else if (byte === OTHERS) others += 1;
    else if (byte > 0) shared += 1;
  }
  const free = node.cores.length - alone - shared - others;
  const theirs = others ? `, ${others} held by other projects` : "";
  write(card, ".counts", `${alone} held by one action, ${shared} shared${theirs}, ${free} free`);
  write(card, ".groups", `${node.groups.length} NUMA node${node.groups.length === 1 ? "" : "s"}`);
  map.show(node.groups, node.cores);
}

/** @param {HTMLElement} card @param {Node} node @param {any} map @param {Holder[]} holders */
function showGpus(card, node, map, holders) {
  const { gpus } = node;
  mark(card, gpus.oversubscribed);
  const held = new Set(holders.flatMap(({ units }) => expand(units)));
  const others = new Set(expand(gpus.others ?? ""));
  const broken = new Set(gpus.unhealthy);
  const numbers = gpus.groups.flatMap(expand);
  const free = numbers.map((number) => !held.has(number) && !others.has(number) && !broken.has(number));
  const count = free.filter(Boolean).length;
  const theirs = others.size ? ` and ${others.size} by other projects` : "";
  write(card, ".counts", `${held.size} held${theirs}, ${count} free; free chunks ${freeChunks(free)}`);
  write(card, ".groups", gpus.memory_bytes ? `${format.bytes(gpus.memory_bytes)} each` : "");
  map.show(gpus.groups, Uint8Array.from(numbers, (number) => (held.has(number) ? EXCLUSIVE : others.has(number) ? OTHERS : 0)));
}

/** @param {HTMLElement} card @param {boolean} oversubscribed */
function mark(card, oversubscribed) {
  /** @type {HTMLElement} */ (card.querySelector(".oversubscribed")).hidden = !oversubscribed;
}

/** @param {HTMLElement} card @param {string} part @param {string} text */
function write(card, part, text) {
  const element = card.querySelector(part);
  if (element && element.textContent !== text) element.textContent = text;
}

/** The table of cards: of the present alone, since their use is not stored. */
const cards = get("gpu-cards");

/** @param {Use} use */
const utilisation = (use) => use.says || (use.busy_ratio === null ? "unknown" : format.percent(use.busy_ratio, 1));

/** @param {Use} use */
function memory({ used_bytes, total_bytes }) {
  return total_bytes && used_bytes !== null ? `${format.bytes(used_bytes)} of ${format.bytes(total_bytes)}` : used_bytes === null ? "–" : format.bytes(used_bytes);
}

/** @param {Use | undefined} use */
function useOfChunk(use) {
  if (!use) return "–";
  if (use.says) return use.says;
  const busy = use.busy_ratio === null ? "utilisation unknown" : utilisation(use);
  return use.used_bytes === null ? busy : `${busy}, ${memory(use)}`;
}

get("holders").columns = (/** @type {any} */ row) => [
  row.node,
  { text: `…${row.id.slice(-8)}`, href: `/actions/${row.id}/`, title: row.id },
  row.task || "–",
  row.trajectory ?? "–",
  shorten(expand(row.units)),
  format.amount(row.amount) + (row.shared ? " shared" : ""),
  row.groups.length > 1
    ? { text: `${row.groups.join(", ")}: across`, title: "Its cores lie on more than one NUMA node" }
    : row.groups.join(", "),
  format.duration(row.held),
  ...(cards ? [useOfChunk(row.use)] : []),
];

if (cards) {
  cards.columns = (/** @type {Use} */ row) => [
    row.node,
    shorten(expand(row.gpus)),
    utilisation(row),
    memory(row),
    shorten(expand(row.chunk)) || "–",
    row.measured_at ? format.clock(row.measured_at) : "–",
  ];
  live?.follow("gpus", (/** @type {any} */ frame) => {
    page.chunks = new Map(frame.chunks.map((/** @type {Use} */ row) => [`${row.node}/${row.gpus}`, row]));
    cards.show(frame.cards);
    page.listed = null;
    dirty(page);
  });
}

if (kind === "gpu") {
  get("residents").columns = (/** @type {any} */ row) => [
    row.node,
    row.service,
    shorten(expand(row.units)),
    format.duration(page.wall - row.since),
    `${format.duration(page.wall - row.used)} ago`,
    format.count(row.uses),
  ];
  get("log").columns = (/** @type {any} */ row) => [
    format.clock(row.at),
    { text: row.what, chip: row.what },
    row.service,
    row.node,
    shorten(expand(row.units)),
    row.seconds ? format.duration(row.seconds) : "–",
  ];
}

/** @param {{ name: string, holders: Holder[], more?: number }[]} nodes @param {number} wall @param {any} said */
function showHolders(nodes, wall, said) {
  page.holders = new Map(nodes.map((node) => [node.name, { more: 0, ...node }]));
  page.wall = wall;
  if (kind === "gpu") {
    get("residents").show(said.residents);
    get("log").show(said.log);
  }
  pending = true;
  if (!live || said.snapshot) dirty(page);
}

live?.follow("problems", (/** @type {any} */ frame) => showBanner(frame.health));
/** From so many units on, maps are drawn once a second instead of twice. */
const MANY_UNITS = 1000;
let pending = false;
let spared = false;

/** Draw the newest frames. */
function drawDue() {
  if (!pending) return;
  const units = page.nodes.reduce((sum, { cores }) => sum + cores.length, 0);
  spared = units >= MANY_UNITS && !spared;
  if (spared) return;
  pending = false;
  dirty(page);
}

if (live) regularly(drawDue, 0.5);
live?.follow("nodes", (/** @type {Frame} */ frame) => {
  page.nodes = frame.nodes;
  pending = true;
  if (frame.snapshot) dirty(page);
});
live?.follow("holders", (/** @type {Frame} */ frame) => showHolders(frame.nodes, frame.wall, frame));

const scrub = /** @type {HTMLInputElement | null} */ (document.getElementById("scrub"));

/** @param {number} wall */
const instant = (wall) => `${format.day(wall)}, ${format.clock(wall)}`;

/** Show the GPUs at an instant of the past, and put it into the address. @param {number} at wall clock */
async function showThen(at) {
  get("scrub-when").textContent = instant(at);
  const answer = await fetch(`/gpu/past.json?at=${at}${within}`).catch(() => null);
  if (at !== Number(scrub?.value)) return; // moved on meanwhile
  const said = answer && !answer.redirected ? await answer.json().catch(() => null) : null;
  const known = answer?.ok && said;
  get("scrub-note").textContent = known
    ? said.at < at ? `unchanged since ${format.clock(said.at)}` : "as it was then"
    : said?.detail ?? "The history cannot be read now.";
  page.nodes = known ? said.nodes : [];
  showHolders(page.nodes, at, known ? said : { residents: [], log: [] });
}

if (scrub?.dataset.frozen) {
  showThen(Number(scrub.value));
  scrub.addEventListener("input", () => {
    history.replaceState(null, "", `?at=${scrub.value}${within}`);
    showThen(Number(scrub.value));
  });
} else {
  // Leaving the live map is one step: from then on the time line moves in place.
  scrub?.addEventListener("change", () => location.assign(`?at=${scrub.value}${within}`));
  scrub?.addEventListener("input", () => {
    get("scrub-when").textContent = instant(Number(scrub.value));
  });
}
