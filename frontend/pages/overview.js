/**
 * The overview: frames in, health, problems, resources, charts and rows out.
 * @module
 */

import "../lib/chrome.js";
import "../elements/tg-live.js";
import "../elements/tg-rows.js";
import "../elements/tg-series.js";
import { regularly } from "../lib/animation_loop.js";
import * as format from "../lib/format.js";
import { chosen, loadRange } from "../lib/history_range.js";
import { Points, SPAN_SECONDS } from "../lib/points.js";
import { showBanner } from "../lib/problem_banner.js";
import { loadTrends, ResourceStrip } from "../lib/resource_strip.js";
import { showSituation } from "../lib/situation.js";

/** @typedef {import("../lib/live.js").Frame} Frame */

const SUMMARY_MS = 15_000;
const PHASES = /** @type {const} */ ([
  ["queue", "Queue"],
  ["overhead", "Overhead"],
  ["execution", "Execution"],
]);
const OUTCOMES = {
  completed: "Completed",
  failed: "Exit code not 0",
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
const CHARTS = ["throughput", "percentiles", "phases"];
/** Points of the past appear when 15 seconds are complete. */
const PAST_MS = 15_000;
const strip = new ResourceStrip(get("resources"));
/** Range of the trends in seconds, as in `?trend=10800`; 0: the last half hour, which frames have. */
const trend = Number(new URLSearchParams(location.search).get("trend")) || 0;
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
    { column: "finished", label: "Finished", color: "--q5" },
    { column: "submitted", label: "Submitted", color: "--q3" },
  ],
};
get("percentiles").plan = {
  ...seconds,
  log: true,
  steps: DECADES,
  lines: [
    { column: "act_p99", label: "p99", color: "--q5" },
    { column: "act_p95", label: "p95", color: "--q4" },
    { column: "act_p50", label: "p50", color: "--q3" },
  ],
};
get("phases").plan = {
  ...seconds,
  stacked: true,
  steps: STEPS,
  floor: 0.001,
  lines: [
    { column: "queue_mean", label: "Queue", color: "--queue" },
    { column: "overhead_mean", label: "Overhead", color: "--over" },
    { column: "execution_mean", label: "Execution", color: "--exec" },
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
  ended(action),
  format.resources(action.units),
  format.duration(action.queue_seconds),
  format.duration(action.execution_seconds),
  format.duration(action.act_seconds),
];

/** @param {{ outcome: string, exit_code: number | null, detail: string | null }} action */
function ended({ outcome, exit_code: code, detail }) {
  if (outcome === "completed" && code) return { text: `exit ${code}`, chip: "failed" };
  return { text: outcome.replace("_", " "), chip: outcome, title: detail ?? "" };
}

/** Ids have a common beginning and differ at the end. @param {{ id: string }} action */
function link({ id }) {
  return { text: `…${id.slice(-8)}`, href: `/actions/${id}/`, title: id };
}

/** The newest frame, until charts and tables show it. @type {Frame | null} */
let newest = null;

/** @param {Frame} frame */
function showOverview(frame) {
  if (!points.merge(frame.points, frame.snapshot)) live.resync("overview");
  showFigures(frame);
  summarise(frame);
  newest = frame;
  if (frame.snapshot) showSecond();
}

/** Charts and tables change once a second: frames come more often than they are read. */
function showSecond() {
  const frame = newest;
  if (!frame) return;
  newest = null;
  totals = frame.outcomes;
  if (!past.seconds) {
    showDurations(frame.durations.phases, frame.durations.samples, "last minute");
    get("outcomes").show(frame.outcomes.filter(({ total }) => total > 0));
  } else if (ranged) showRanged();
  get("since").textContent = frame.since ? `total since ${format.clock(frame.since)}` : "";
  get("waiting").show(frame.waiting);
  get("finished").show(frame.finished);
  showPoints(frame.wall - frame.at);
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

/** The big numbers above the charts: of now, over the last minute. @param {Frame} frame */
function showFigures(frame) {
  const { act, ...phases } = frame.durations.phases;
  write("big-finished", format.amount(frame.finished_per_second));
  write("big-submitted", format.amount(frame.submitted_per_second));
  for (const share of ["p50", "p95", "p99"]) write(`big-${share}`, format.duration(act[share]));
  for (const [phase] of PHASES) write(`big-${phase}`, format.duration(phases[phase].mean));
}

/** @param {string} id @param {string} text */
function write(id, text) {
  const element = get(id);
  if (element.textContent !== text) element.textContent = text;
}

/** @param {number} wallOffset */
function showPoints(wallOffset) {
  if (past.seconds) return;
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
regularly(showSecond, 1);
/** Since when a problem is there, and its subject: `serper` of `api:serper`. @param {any} row */
const incidentOf = ({ since, condition }) => ({ at: since, name: condition.subject.split(/[:/]/).at(-1) });

live.follow("problems", (/** @type {any} */ frame) => {
  showBanner(frame.health);
  showSituation(frame);
  write("all-waiting", `${format.count(frame.waiting)} ${frame.waiting === 1 ? "action waits" : "actions wait"}`);
  for (const id of CHARTS) get(id).incidents = frame.rows.map(incidentOf);
});
live.follow("resources", (/** @type {any} */ frame) => strip.show(frame.rows));

async function showTrends() {
  const found = await loadTrends(trend);
  if (found) strip.showTrends(found);
}

if (trend && !live.project) {
  showTrends();
  setInterval(() => {
    if (!document.hidden && !live.paused) showTrends();
  }, PAST_MS);
}

showPast();
if (!past.to) {
  setInterval(() => {
    if (!document.hidden && !live.paused) showPast();
  }, PAST_MS);
}
