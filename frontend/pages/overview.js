/**
 * The overview: frames in, figures, charts, maps and rows out.
 * @module
 */

import "../lib/chrome.js";
import "../elements/tg-coremap.js";
import "../elements/tg-live.js";
import "../elements/tg-rows.js";
import "../elements/tg-series.js";
import "../elements/tg-stat.js";
import * as format from "../lib/format.js";
import { chosen, loadRange } from "../lib/history_range.js";
import { Points, SPAN_SECONDS } from "../lib/points.js";
import { NodeCards } from "./nodes.js";

/** @typedef {import("../lib/live.js").Frame} Frame */

const SUMMARY_MS = 15_000;
const PHASES = /** @type {const} */ ([
  ["queue", "Queue"],
  ["overhead", "Overhead"],
  ["execution", "Execution"],
]);
const OUTCOMES = {
  completed: "Completed",
  timeout: "Timeout",
  expired: "Expired",
  cancelled: "Cancelled",
  oom_killed: "Out of memory",
  infra_failed: "Infrastructure",
  unknown: "Unknown",
};

/** @param {string} id @returns {any} */
const get = (id) => document.getElementById(id);
const { live } = get("live");
const points = new Points();
const past = chosen();
const CHARTS = ["throughput", "in-flight", "percentiles", "phases"];
/** Points of the past appear when 15 seconds are complete. */
const PAST_MS = 15_000;
const cards = new NodeCards(get("nodes"));
let summaryAt = -Infinity;

const rate = { show: format.amount };
const seconds = { show: format.duration, tick: format.tick };
/** Round durations, from a tenth of a millisecond to a day. */
const DECADES = [1e-4, 1e-3, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400];
const STEPS = [
  ...[1e-4, 1e-3, 0.01, 0.1, 1].flatMap((unit) => [unit, 2 * unit, 5 * unit]),
  ...[10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18_000, 36_000],
];
get("throughput").plan = {
  ...rate,
  lines: [
    { column: "finished", label: "Finished", color: "--green" },
    { column: "submitted", label: "Submitted", color: "--orange" },
  ],
};
get("in-flight").plan = {
  show: format.count,
  floor: 4,
  lines: [
    { column: "running", label: "Running", color: "--blue" },
    { column: "granted", label: "Granted", color: "--purple" },
    { column: "queued", label: "Queued", color: "--orange" },
  ],
};
get("percentiles").plan = {
  ...seconds,
  log: true,
  steps: DECADES,
  lines: [
    { column: "act_p99", label: "p99", color: "--vermillion" },
    { column: "act_p95", label: "p95", color: "--orange" },
    { column: "act_p50", label: "p50", color: "--blue" },
  ],
};
get("phases").plan = {
  ...seconds,
  stacked: true,
  steps: STEPS,
  floor: 0.001,
  lines: [
    { column: "queue_mean", label: "Queue", color: "--orange" },
    { column: "overhead_mean", label: "Overhead", color: "--purple" },
    { column: "execution_mean", label: "Execution", color: "--green" },
  ],
};

get("durations").columns = (/** @type {any} */ row) => [
  { text: row.name },
  format.duration(row.p50),
  format.duration(row.p95),
  format.duration(row.p99),
  format.duration(row.mean),
];
get("outcomes").columns = (/** @type {any} */ row) => [
  { text: OUTCOMES[/** @type {keyof typeof OUTCOMES} */ (row.outcome)], chip: row.outcome },
  format.count(row.lately),
  format.count(row.total),
];
get("pools").columns = (/** @type {any} */ pool) => [
  { text: pool.name },
  pool.paused ? { text: "paused", chip: "paused" } : pool.policy,
  format.count(pool.queued),
  format.count(pool.granted),
  format.count(pool.running),
  format.amount(pool.submitted_per_second),
  format.amount(pool.finished_per_second),
  format.duration(pool.oldest_seconds),
  `${format.amount(pool.cores_held)} of ${format.amount(pool.cores_total)}`,
  format.count(pool.nodes),
];
get("resources").columns = (/** @type {any} */ resource) => [
  resource.name,
  held(resource),
];
get("waiting").columns = (/** @type {any} */ action) => [
  link(action),
  action.task || "–",
  action.trajectory ?? "–",
  action.kind ?? "–",
  format.resources(action.asked),
  format.duration(action.waited_seconds),
];
get("finished").columns = (/** @type {any} */ action) => [
  link(action),
  action.task || "–",
  { text: action.outcome.replace("_", " "), chip: action.outcome, title: action.detail ?? "" },
  format.resources(action.units),
  format.duration(action.queue_seconds),
  format.duration(action.execution_seconds),
  format.duration(action.act_seconds),
];

/** @param {{ held: number, capacity: number, others?: number }} resource */
function held({ held: own, capacity, others }) {
  const beside = others ? ` + ${format.amount(others)} of other projects` : "";
  return `${format.amount(own)}${beside} of ${format.amount(capacity)}`;
}

/** Ids have a common beginning and differ at the end. @param {{ id: string }} action */
function link({ id }) {
  return { text: `…${id.slice(-8)}`, href: `/actions/${id}/`, title: id };
}

/** @param {Frame} frame */
function showOverview(frame) {
  if (!points.merge(frame.points, frame.snapshot)) live.resync("overview");
  showFigures(frame);
  totals = frame.outcomes;
  if (!past.seconds) {
    showDurations(frame.durations.phases, frame.durations.samples, "last minute");
    get("outcomes").show(frame.outcomes.filter(({ total }) => total > 0));
  } else if (ranged) showRanged();
  get("since").textContent = frame.since ? `total since ${format.clock(frame.since)}` : "";
  get("pools").show(frame.pools);
  get("resources").show(frame.resources);
  get("waiting").show(frame.waiting);
  get("finished").show(frame.finished);
  showPoints(frame.wall - frame.at);
  summarise(frame);
}

/** @type {{ outcome: string, lately: number, total: number }[]} */
let totals = [];
/** Outcomes in the chosen range, once it was read. @type {Record<string, number> | null} */
let ranged = null;

/** Outcomes of the range beside the totals of each frame. */
function showRanged() {
  get("outcomes").show(
    Object.keys(OUTCOMES)
      .map((outcome) => ({
        outcome,
        lately: ranged?.[outcome] ?? 0,
        total: totals.find((one) => one.outcome === outcome)?.total ?? 0,
      }))
      .filter(({ lately, total }) => lately + total > 0),
  );
}

/** @param {any} phases @param {number} samples @param {string} when */
function showDurations(phases, samples, when) {
  get("durations").show([
    ...PHASES.map(([key, name]) => ({ name, ...phases[key] })),
    { name: "ACT", ...phases.act },
  ]);
  get("samples").textContent = `${format.count(samples)} actions, ${when}`;
}

/** @param {Frame} frame */
function showFigures(frame) {
  const { counts, cores, durations } = frame;
  const act = durations.phases.act;
  const rest = counts.granted ? `+ ${format.count(counts.granted)} granted` : "none granted";
  const oldest = frame.oldest_seconds;
  get("stat-rate").show(
    format.amount(frame.finished_per_second),
    `${format.amount(frame.submitted_per_second)} submitted/s`,
  );
  get("stat-running").show(format.count(counts.running), rest);
  get("stat-queued").show(
    format.count(counts.queued),
    oldest == null ? "none waiting" : `oldest ${format.duration(oldest)}`,
  );
  for (const share of ["p50", "p95", "p99"]) {
    get(`stat-${share}`).show(format.duration(act[share]), spent(durations.phases, share));
  }
  get("stat-cores").show(
    percent(cores),
    `${format.amount(cores.held)} of ${format.amount(cores.total)}`,
  );
}

/** @param {{ held: number, total: number }} cores */
const percent = ({ held, total }) => format.percent(held, total);

/** Queue time and working time at one percentile. @param {any} phases @param {string} share */
function spent(phases, share) {
  if (phases.queue[share] == null) return "no action yet";
  return `queue ${format.duration(phases.queue[share])}`;
}

let drawnSecond = -1;

/** Charts change once a second, frames arrive more often. @param {number} wallOffset */
function showPoints(wallOffset) {
  if (points.newest === drawnSecond || past.seconds) return;
  drawnSecond = points.newest;
  const walls = points.seconds.map((second) => second + wallOffset);
  for (const id of CHARTS) get(id).show(walls, points.columns);
}

/** Show the chosen range; of the live range only its marks. */
async function showPast() {
  const range = past.seconds || SPAN_SECONDS;
  const found = await loadRange(range, past.to, live.project).catch(() => null);
  get("range-note").textContent = found ? past.seconds ? found.note : "" : "The history cannot be read now.";
  if (!found) return;
  for (const id of CHARTS) get(id).mark(found.marks);
  if (!past.seconds) return;
  const { whole, width, seconds, columns } = found;
  for (const id of CHARTS) get(id).show(seconds, columns);
  for (const note of document.querySelectorAll(".per-point")) {
    note.textContent = `by ${format.tick(width)}`;
  }
  const frozen = past.to ? ` to ${format.instant(past.to, Infinity)}` : "";
  showDurations(whole.phases, whole.finished, `${format.tick(range)}${frozen}`);
  get("lately").textContent = format.tick(range);
  ranged = whole.outcomes;
  showRanged();
}

if (past.seconds) for (const id of CHARTS) get(id).span = past.seconds;
get("freeze")?.addEventListener("click", (/** @type {MouseEvent} */ event) => {
  const link = /** @type {HTMLAnchorElement} */ (event.currentTarget);
  const query = new URLSearchParams(location.search);
  query.set("to", String(Math.floor(Date.now() / 1000)));
  link.href = `?${query}`;
});

/** Summarize the state in one sentence for screen readers, at a low rate. @param {Frame} frame */
function summarise(frame) {
  if (performance.now() - summaryAt < SUMMARY_MS) return;
  summaryAt = performance.now();
  const { counts, durations } = frame;
  get("summary").textContent =
    `${format.amount(frame.finished_per_second)} actions per second, ` +
    `${format.count(counts.running)} running, ${format.count(counts.queued)} queued, ` +
    `95th percentile of completion time ${format.duration(durations.phases.act.p95)}.`;
}

live.follow("overview", showOverview);
live.follow("nodes", (/** @type {Frame} */ frame) => cards.show(frame.nodes));

showPast();
if (!past.to) {
  setInterval(() => {
    if (!document.hidden && !live.paused) showPast();
  }, PAST_MS);
}
