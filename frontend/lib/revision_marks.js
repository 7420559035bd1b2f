/**
 * Marks on charts at the start of a revision of the configuration.
 * @module
 */

import { color } from "./color.js";

/** Draw a dashed line and the revision's number at each mark within the chart. @param {any} plot @param {import("../elements/tg-series.js").Mark[]} marks */
export function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = color("--muted");
  ctx.fillStyle = color("--muted");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  for (const { at, revision } of marks) {
    if (at < plot.scales.x.min || at > plot.scales.x.max) continue;
    const x = Math.round(plot.valToPos(at, "x", true));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(`r${revision}`, x + 3 * devicePixelRatio, bbox.top + 10 * devicePixelRatio);
  }
  ctx.restore();
}
