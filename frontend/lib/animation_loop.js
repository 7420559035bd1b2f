/**
 * One animation loop for the page: components mark themselves dirty and are painted once a frame. Those that
 * others mark while they are painted are painted in the same frame.
 * @module
 */

/** @typedef {{ paint(): void }} Paintable */

/** What changes without a user does so twice a second, all at once: the page is laid out and drawn once for all of it. */
const TICK_MS = 500;
/** @type {{ task: () => void, ticks: number }[]} */
const regular = [];
let tick = 0;

/** Do `task` every half or whole second, together with all others. @param {() => void} task @param {0.5 | 1} seconds */
export function regularly(task, seconds) {
  if (!regular.length) setInterval(doRegular, TICK_MS);
  regular.push({ task, ticks: (1000 * seconds) / TICK_MS });
}

function doRegular() {
  tick += 1;
  for (const { task, ticks } of regular) if (tick % ticks === 0) task();
}

/** @type {Set<Paintable>} */
const waiting = new Set();
let asked = false;

/** Have `component` painted in the next animation frame. @param {Paintable} component */
export function dirty(component) {
  waiting.add(component);
  if (!asked) ask();
}

function ask() {
  asked = true;
  requestAnimationFrame(paintAll);
}

function paintAll() {
  /** @type {Set<Paintable>} */
  const painted = new Set();
  try {
    for (let now = [...waiting]; now.length; now = [...waiting].filter((each) => !painted.has(each))) {
      for (const component of now) {
        waiting.delete(component);
        painted.add(component);
        component.paint();
      }
    }
  } finally {
    asked = false;
    if (waiting.size) ask();
  }
}
