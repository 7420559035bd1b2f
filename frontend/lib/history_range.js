/**
 * A range of the past: points and totals (see tangram_web/dashboard/history_query.py).
 * @module
 */

/**
 * @typedef {{ width: number, seconds: number[], columns: Record<string, (number | null)[]>,
 *             whole: { seconds: number, submitted: number, finished: number,
 *                      phases: Record<string, any>, outcomes: Record<string, number> },
 *             marks: import("../elements/tg-series.js").Mark[], note: string }} Past
 */

/** The range in the address: `?range=3600`, and `&to=…` when it is frozen. */
export function chosen() {
  const query = new URLSearchParams(location.search);
  const [seconds, to] = [Number(query.get("range")), Number(query.get("to"))];
  return { seconds: seconds > 0 ? seconds : 0, to: to > 0 ? to : 0 };
}

/**
 * @param {number} seconds @param {number} [to] wall clock; 0 or none: now
 * @param {string} [project] none: all projects
 * @returns {Promise<Past | null>}
 */
export async function loadRange(seconds, to = 0, project = "") {
  const query = new URLSearchParams({
    range: String(seconds),
    ...(to && { to: String(to) }),
    ...(project && { project }),
  });
  const answer = await fetch(`/history.json?${query}`);
  return answer.ok && !answer.redirected ? await answer.json() : null;
}
