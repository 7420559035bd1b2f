/**
 * `<tg-output name="…">`: the output of a command in a `<pre>`, with a field that finds text in it, lines that wrap or do not, and the text as a file.
 *
 * What is found is marked by the CSS Custom Highlight API, so the text itself stays as it was and live output may be appended meanwhile.
 * @module
 */

/** Places that are marked at once. */
const MOST = 1000;
const FOUND = "found";
const HERE = "found-here";

/** @type {Map<TgOutput, Range[]>} */
const marked = new Map();

/** Mark what all outputs of the page have found. */
function mark() {
  if (!("highlights" in CSS)) return;
  CSS.highlights.set(FOUND, new Highlight(...[...marked.values()].flat()));
}

/**
 * Return the places of a text in an element, whatever its case.
 * @param {Element} element @param {string} wanted
 */
function placesOf(element, wanted) {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  /** @type {{ node: Node, start: number }[]} */
  const nodes = [];
  let whole = "";
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    nodes.push({ node, start: whole.length });
    whole += node.nodeValue ?? "";
  }
  const inside = whole.toLowerCase();
  // A letter that is longer in lower case would shift all places behind it.
  if (!wanted || inside.length !== whole.length) return [];
  /** @type {Range[]} */
  const found = [];
  const sought = wanted.toLowerCase();
  for (let at = inside.indexOf(sought); at >= 0 && found.length < MOST; at = inside.indexOf(sought, at + sought.length)) {
    found.push(rangeOf(nodes, at, at + sought.length));
  }
  return found;
}

/** @param {{ node: Node, start: number }[]} nodes @param {number} from @param {number} to */
function rangeOf(nodes, from, to) {
  const range = document.createRange();
  const first = nodes.findLast((each) => each.start <= from) ?? nodes[0];
  const last = nodes.findLast((each) => each.start < to) ?? first;
  range.setStart(first.node, from - first.start);
  range.setEnd(last.node, to - last.start);
  return range;
}

export class TgOutput extends HTMLElement {
  #field = document.createElement("input");
  #count = document.createElement("span");
  #at = -1;

  connectedCallback() {
    if (this.querySelector(".output-tools")) return;
    const tools = document.createElement("div");
    tools.className = "output-tools";
    const name = this.getAttribute("name") ?? "output";
    Object.assign(this.#field, { type: "search", placeholder: "Find in the output" });
    this.#field.setAttribute("aria-label", `Find in ${name}`);
    this.#field.addEventListener("input", () => this.#find());
    this.#field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#go(event.shiftKey ? -1 : 1);
    });
    this.#count.className = "muted";
    this.#count.setAttribute("role", "status");
    tools.append(this.#field, this.#count, this.#button("Wrap lines", true, (on) => this.#wrap(on)), this.#raw(name));
    this.prepend(tools);
  }

  disconnectedCallback() {
    marked.delete(this);
    mark();
  }

  /** @param {string} label @param {boolean} on @param {(on: boolean) => void} press */
  #button(label, on, press) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.setAttribute("aria-pressed", String(on));
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(pressed));
      press(pressed);
    });
    return button;
  }

  /** @param {string} name */
  #raw(name) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Raw text";
    button.title = `Save ${name} as a file`;
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([this.#text?.textContent ?? ""], { type: "text/plain" }));
      link.download = `${name.replaceAll(" ", "-")}.txt`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    return button;
  }

  get #text() {
    return this.querySelector("pre");
  }

  /** @param {boolean} on */
  #wrap(on) {
    this.#text?.classList.toggle("unwrapped", !on);
  }

  #find() {
    const wanted = this.#field.value;
    const found = this.#text ? placesOf(this.#text, wanted) : [];
    marked.set(this, found);
    this.#at = -1;
    mark();
    if ("highlights" in CSS) CSS.highlights.delete(HERE);
    this.#count.textContent = wanted ? `${found.length}${found.length === MOST ? "+" : ""} found` : "";
    if (found.length) this.#go(1);
  }

  /** Show the next or the previous place. @param {number} by */
  #go(by) {
    const found = marked.get(this) ?? [];
    if (!found.length || !this.#text) return;
    this.#at = (this.#at + by + found.length) % found.length;
    const range = found[this.#at];
    if ("highlights" in CSS) CSS.highlights.set(HERE, new Highlight(range));
    const [place, box] = [range.getBoundingClientRect(), this.#text.getBoundingClientRect()];
    this.#text.scrollTop += place.top - box.top - box.height / 2;
    this.#text.scrollLeft += place.left - box.left - box.width / 2;
    this.#count.textContent = `${this.#at + 1} of ${found.length}${found.length === MOST ? "+" : ""}`;
  }
}

customElements.define("tg-output", TgOutput);
