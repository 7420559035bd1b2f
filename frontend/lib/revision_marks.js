/**
 * Marks on charts: grey dashes at the start of a revision of the configuration, red ones of a problem.
 * @module
 */

import { color } from "./color.js";

/** @typedef {import("../elements/tg-series.js").Mark} Mark */
/** @typedef {{ at: number, name: string }} Incident */

/** Draw a dashed line at each mark within the chart, and the numbers of those that are near as one range: `r3–r7`. @param {any} plot @param {Mark[]} marks */
export function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const seen = marks.filter(({ at }) => at >= plot.scales.x.min && at <= plot.scales.x.max);
  ctx.save();
  ctx.strokeStyle = color("--edge");
  ctx.fillStyle = color("--muted");
  ctx.lineWidth = scale;
  ctx.setLineDash([4 * scale, 3 * scale]);
  ctx.font = `${10 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  const places = seen.map(({ at, revision }) => ({ x: Math.round(plot.valToPos(at, "x", true)), revision }));
  for (const { x } of places) {
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  const width = (/** @type {string} */ text) => ctx.measureText(text).width + 8 * scale;
  for (const { x, text } of labelsOf(places, width)) {
    const left = Math.min(x + 3 * scale, bbox.left + bbox.width - width(text) + 8 * scale);
    ctx.fillText(text, left, bbox.top + 10 * scale);
  }
  ctx.restore();
}

/**
 * Draw a red dashed line since when each problem is there, with its subject below the marks of revisions.
 * @param {any} plot @param {Incident[]} incidents
 */
export function drawIncidents(plot, incidents) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = color("--crit");
  ctx.fillStyle = color("--muted");
  ctx.lineWidth = scale;
  ctx.setLineDash([2 * scale, 2 * scale]);
  ctx.font = `${10 * scale}px system-ui, sans-serif`;
  let end = -Infinity;
  for (const { at, name } of [...incidents].sort((one, other) => one.at - other.at)) {
    if (at < plot.scales.x.min || at > plot.scales.x.max) continue;
    const x = Math.round(plot.valToPos(at, "x", true));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(name).width;
    if (x < end || x + width > bbox.left + bbox.width) continue; // it would be written over another one
    ctx.fillText(name, x + 3 * scale, bbox.top + 22 * scale);
    end = x + width + 8 * scale;
  }
  ctx.restore();
}

/**
 * Labels that do not overlap: a mark within the label before it is part of that label.
 * @param {{ x: number, revision: number }[]} places from left to right @param {(text: string) => number} width
 * @returns {{ x: number, text: string }[]}
 */
export function labelsOf(places, width) {
  /** @type {{ x: number, first: number, last: number }[]} */
  const groups = [];
  for (const { x, revision } of places) {
    const open = groups.at(-1);
    if (open && x < open.x + width(textOf(open))) open.last = revision;
    else groups.push({ x, first: revision, last: revision });
  }
  return groups.map((group) => ({ x: group.x, text: textOf(group) }));
}

/** @param {{ first: number, last: number }} group */
const textOf = ({ first, last }) => (first === last ? `r${first}` : `r${first}–r${last}`);
