/**
 * Numbers as text, of stable width where figures change often.
 * @module
 */

const MISSING = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clockTime = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23", timeZone: "UTC" });

/** @param {number | null | undefined} value @returns {string} */
export function count(value) {
  return value == null || Number.isNaN(value) ? MISSING : whole.format(value);
}

/** A rate or a fractional amount: one decimal below a hundred. @param {number | null | undefined} value */
export function amount(value) {
  if (value == null || Number.isNaN(value)) return MISSING;
  return Math.abs(value) < 100 ? tenths.format(value) : whole.format(value);
}

/**
 * A duration in the unit that fits: `0.34 ms`, `12 ms`, `1.2 s`, `2m 05s`, `3h 12m`.
 * @param {number | null | undefined} seconds
 * @param {number} [digits] significant digits below a minute
 */
export function duration(seconds, digits = 2) {
  if (seconds == null || Number.isNaN(seconds)) return MISSING;
  if (seconds < 1e-4) return "<0.1 ms";
  if (seconds < 0.9995) return `${significant(seconds * 1000, digits)} ms`;
  if (seconds < 59.95) return `${significant(seconds, digits)} s`;
  const whole = Math.round(seconds);
  const [high, low, units] = whole < 3600 ? [60, 1, "ms"] : [3600, 60, "hm"];
  const rest = Math.floor((whole % high) / low);
  return `${Math.floor(whole / high)}${units[0]} ${String(rest).padStart(2, "0")}${units[1]}`;
}

/** A round duration on an axis: `0`, `10 ms`, `30 s`, `2 min`. @param {number} seconds */
export function tick(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 1) return `${round(seconds * 1000)} ms`;
  if (seconds < 60) return `${round(seconds)} s`;
  return seconds < 3600 ? `${round(seconds / 60)} min` : `${round(seconds / 3600)} h`;
}

/** Without the dust of binary fractions. @param {number} value */
const round = (value) => Number(value.toPrecision(3));

/** @param {number} value @param {number} digits */
function significant(value, digits) {
  const before = Math.max(1, Math.floor(Math.log10(Math.max(value, 1e-9))) + 1);
  return value.toFixed(Math.max(0, digits - before));
}

/** @param {number | null | undefined} part @param {number} all */
export function percent(part, all) {
  return part == null || !all ? MISSING : `${Math.round((100 * part) / all)} %`;
}

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value == null) return MISSING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (value >= 1024 && step < units.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${step && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[step]}`;
}

/** Time of day in UTC, as in the top bar. @param {number} wall seconds since the epoch */
export function clock(wall) {
  return clockTime.format(new Date(wall * 1000));
}

const dayOfYear = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", timeZone: "UTC" });

/** Day in UTC: `Nov 21`. @param {number} wall seconds since the epoch */
export function day(wall) {
  return dayOfYear.format(new Date(wall * 1000));
}

/** Time of day, and the day where a range has several. @param {number} wall @param {number} span seconds */
export function instant(wall, span) {
  return span < 86_400 ? clock(wall) : `${day(wall)} ${clock(wall).slice(0, 5)}`;
}

/** Unit counts as text: `1–8`, `1, 2, 4`. @param {number[]} counts */
export function choices(counts) {
  const contiguous = counts.every((one, at) => at === 0 || one === counts[at - 1] + 1);
  return contiguous && counts.length > 2 ? `${counts[0]}–${counts.at(-1)}` : counts.join(", ");
}

/** `cpu 4, api:search 1`. @param {Record<string, number | number[]>} resources */
export function resources(resources) {
  const parts = Object.entries(resources).map(([name, held]) =>
    Array.isArray(held) ? `${name} ${choices(held)}` : `${name} ${amount(held)}`,
  );
  return parts.join(" · ") || MISSING;
}
