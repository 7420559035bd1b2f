/**
 * The page's websocket: topics in, newest frames out (see tangram_web/live/consumers.py).
 * @module
 */

import { regularly } from "./animation_loop.js";
import { decode } from "../vendor/msgpack-3.1.3/decode.mjs";

/**
 * @typedef {{ topic: string, seq: number, at: number, wall: number, snapshot: boolean,
 *             [member: string]: any }} Frame
 * @typedef {"connecting" | "live" | "paused" | "hidden" | "stale" | "signed-out"} Standing
 */

/** The server shows life every 2 s even when nothing happens; two missed signs are a silence. */
const STALE_MS = 5000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const SIGNED_OUT = 4401;

/** Follows topics over all disconnections. Fires `standing` when its standing may have changed. */
export class Live extends EventTarget {
  /** @type {Map<string, (frame: Frame) => void>} */
  #topics = new Map();
  /** @type {Map<string, number>} */
  #newest = new Map();
  /** @type {WebSocket | null} */
  #socket = null;
  #failures = 0;
  #paused = false;
  #signedOut = false;
  #heardAt = 0;
  /** @type {number[]} */
  #arrivals = [];
  /** Frames to deliver. @type {Frame[]} */
  #due = [];

  /**
   * @param {string} path @param {number} hz frames a second, at most
   * @param {string} project whose topics are followed; empty: all projects at once
   */
  constructor(path, hz, project = "") {
    super();
    this.path = path;
    this.project = project;
    this.hz = hz;
    document.addEventListener("visibilitychange", () => this.#ask());
    regularly(() => this.#due.length ? this.#deliver() : this.#changed(), 0.5);
  }

  /** @param {string} topic @param {(frame: Frame) => void} take */
  follow(topic, take) {
    this.#topics.set(this.#named(topic), take);
    this.#ask();
  }

  /** Request a snapshot after a missed frame. @param {string} topic */
  resync(topic) {
    this.#say({ resync: this.#named(topic) });
  }

  /** @param {string} topic */
  #named(topic) {
    return this.project ? `${topic}@${this.project}` : topic;
  }

  get paused() {
    return this.#paused;
  }

  set paused(paused) {
    this.#paused = paused;
    if (paused) this.#deliver();
    this.#ask();
    this.#changed();
  }

  /** @returns {Standing} */
  get standing() {
    if (this.#signedOut) return "signed-out";
    if (this.#paused) return "paused";
    if (document.hidden) return "hidden";
    if (this.#heardAt && performance.now() - this.#heardAt > STALE_MS) return "stale";
    return this.#socket?.readyState === WebSocket.OPEN && this.#heardAt ? "live" : "connecting";
  }

  /** Seconds since the newest frame came; null before the first. */
  get age() {
    return this.#heardAt ? (performance.now() - this.#heardAt) / 1000 : null;
  }

  /** Frames a second over the last five, all topics together. */
  get rate() {
    const since = performance.now() - 5000;
    this.#arrivals = this.#arrivals.filter((at) => at > since);
    return this.#arrivals.length / 5;
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.path}`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#failures = 0;
      this.#ask();
    };
    socket.onmessage = ({ data }) => this.#take(data);
    socket.onclose = ({ code }) => this.#retry(code);
    this.#socket = socket;
  }

  /** @param {number} code */
  #retry(code) {
    this.#signedOut = code === SIGNED_OUT;
    this.#changed();
    if (this.#signedOut) return;
    const wait = RETRY_MS[Math.min(this.#failures, RETRY_MS.length - 1)];
    this.#failures += 1;
    setTimeout(() => this.connect(), wait);
  }

  /** @param {ArrayBuffer | string} data */
  #take(data) {
    if (typeof data === "string") {
      console.warn("live:", JSON.parse(data).error);
      return;
    }
    const frame = /** @type {Frame} */ (decode(data));
    const seen = this.#newest.get(frame.topic) ?? -1;
    if (this.#paused || (frame.seq <= seen && !frame.snapshot)) return;
    this.#newest.set(frame.topic, frame.seq);
    this.#heardAt = performance.now();
    this.#arrivals.push(this.#heardAt);
    this.#due.push(frame);
    if (frame.snapshot) this.#deliver(); // the page waits for it
  }

  /** Deliver all due frames together, so that the page is laid out and drawn once for them. */
  #deliver() {
    const due = this.#due;
    this.#due = [];
    for (const frame of due) this.#topics.get(frame.topic)?.(frame);
    this.#changed();
  }

  /** Subscribe to the topics of the page; to none while it is paused or hidden. */
  #ask() {
    const wanted = this.#paused || document.hidden ? [] : [...this.#topics.keys()];
    this.#say({ sub: wanted, hz: this.hz });
  }

  /** @param {object} message */
  #say(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #changed() {
    this.dispatchEvent(new Event("standing"));
  }
}
