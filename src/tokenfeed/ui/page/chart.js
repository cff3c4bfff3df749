// One chart, drawn without a library at the size it has on the screen, with its numbers in words and a cursor for mouse
// or arrow keys. Letters never shrink: the drawing is made again when its width changes.
import { h, s } from "./dom.js";

const [HEIGHT, LEFT, BOTTOM, TOP] = [150, 52, 22, 8];
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.redraw()));

// What `draw` is given: from, to (of the horizontal axis), lines of {name, points: [[x, value]], kind, colour}, whether
// they are stacked, how to write a value and a place on the axis, the ends of the scale, markers of {kind, x, text}, and
// the present in words.
export class Chart {
  #svg = s("svg", { role: "img", class: "plot", tabindex: "0" });
  #now = h("strong", {});
  #told = h("p", { class: "hint told" });
  #legend = h("p", { class: "legend" });
  #given = null;
  #cursor = null;

  constructor(title, { onmove, onpick }) {
    this.title = title;
    this.element = h(
      "figure",
      { class: "figure" },
      h("figcaption", {}, h("h3", {}, title), this.#now),
      this.#svg,
      this.#told,
      this.#legend,
    );
    this.element.chart = this;
    sizes.observe(this.element);
    const at = (event) => {
      const box = this.#svg.getBoundingClientRect();
      return this.#from + ((event.clientX - box.left - LEFT) / Math.max(1, box.width - LEFT)) * (this.#to - this.#from);
    };
    this.#svg.addEventListener("pointermove", (event) => onmove(at(event)));
    this.#svg.addEventListener("pointerleave", () => onmove(null));
    this.#svg.addEventListener("blur", () => onmove(null));
    if (onpick) {
      this.#svg.classList.add("picks");
      this.#svg.addEventListener("click", (event) => onpick(at(event)));
    }
    this.#svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") onmove(null);
      if (event.key === "Enter" && onpick && this.#cursor !== null) onpick(this.#cursor);
      if (!by) return;
      event.preventDefault();
      const width = (this.#to - this.#from) / 120;
      onmove(Math.max(this.#from, Math.min(this.#to, (this.#cursor ?? this.#to) + by * width)));
    });
  }

  get #from() {
    return this.#given?.from ?? 0;
  }

  get #to() {
    return this.#given?.to ?? 1;
  }

  draw(given) {
    this.#given = given;
    this.redraw();
  }

  redraw() {
    const width = Math.max(200, Math.round(this.element.clientWidth));
    if (!this.#given || !this.element.clientWidth) return;
    const { from, to, lines, write, top, bottom = 0, stacked, markers, now, note, axis } = this.#given;
    const x = (value) => LEFT + Math.max(0, Math.min(1, (value - from) / (to - from || 1))) * (width - LEFT);
    const y = (value) => HEIGHT - ((Math.max(bottom, Math.min(top, value)) - bottom) / (top - bottom || 1)) * (HEIGHT - TOP);
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT + BOTTOM}`);
    this.#svg.setAttribute("height", HEIGHT + BOTTOM);
    const grid = [0, 0.5, 1].map((share) => bottom + share * (top - bottom)).flatMap((value) => [
      s("line", { x1: LEFT, x2: width, y1: y(value), y2: y(value), class: "axis" }),
      s("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, write(value)),
    ]);
    const ticks = width < 420 ? [0, 1] : [0, 0.5, 1];
    const labels = ticks.map((share) =>
      s(
        "text",
        { x: LEFT + share * (width - LEFT), y: HEIGHT + 17, "text-anchor": ["start", "middle", "end"][share * 2] },
        axis(from + share * (to - from)),
      )
    );
    const below = new Map();
    const paths = lines.flatMap((line) => drawLine(line, x, y, stacked ? below : null));
    const marks = markers.map((one) => {
      const title = s("title", {}, one.text);
      if (one.kind === "start") return s("line", { class: "marker", x1: x(one.x), x2: x(one.x), y1: TOP, y2: HEIGHT }, title);
      return s("path", { class: `marker ${one.kind}`, d: `M${x(one.x)},${TOP + 2}l-4,-7h8z` }, title);
    });
    this.line = s("line", { class: "cursor", y1: TOP, y2: HEIGHT, visibility: "hidden" });
    this.#svg.replaceChildren(...grid, ...labels, ...marks, ...paths, this.line);
    this.#now.textContent = now;
    const named = lines.filter((line) => line.name);
    this.#legend.hidden = named.length < 2;
    this.#legend.replaceChildren(
      ...named.map((line) => h("span", {}, h("i", { class: `dot ${line.colour}` }), ` ${line.name}`)),
    );
    this.#note = note;
    this.#x = x;
    this.#tell();
  }
  #note = "";
  #x = null;

  // Place the cursor, at the same moment in all charts; null hides it.
  point(value) {
    this.#cursor = value;
    if (this.#given && this.line) this.#tell();
  }

  #tell() {
    const { lines, write, axis } = this.#given;
    const at = this.#cursor;
    this.line.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) {
      this.#told.textContent = [summary(lines, write), this.#note].filter(Boolean).join("; ");
      this.#svg.setAttribute("aria-label", `${this.title}: ${this.#now.textContent}; ${this.#told.textContent}`);
      return;
    }
    this.line.setAttribute("x1", this.#x(at));
    this.line.setAttribute("x2", this.#x(at));
    const values = lines.map((line) => {
      const near = nearest(line.points, at);
      return `${line.name ? `${line.name} ` : ""}${!near || near[1] === null ? "–" : write(near[1])}`;
    });
    this.#told.textContent = `${axis(at)}: ${values.join(", ")}`;
    this.#svg.setAttribute("aria-label", `${this.title}, ${this.#told.textContent}`);
  }
}

export function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  const [one, other] = [points[low], points[high]];
  if (!one || !other) return one ?? null;
  return Math.abs(one[0] - x) <= Math.abs(other[0] - x) ? one : other;
}

// A value of null interrupts the line. Stacked lines lie on those before them.
function drawLine(line, x, y, below) {
  const runs = [];
  let isOpen = false;
  for (const [at, value] of line.points) {
    if (value === null) {
      isOpen = false;
      continue;
    }
    if (!isOpen) runs.push([]);
    isOpen = true;
    const base = below?.get(at) ?? 0;
    below?.set(at, base + value);
    runs.at(-1).push([x(at), y(base + value), y(base)]);
  }
  return runs.flatMap((points) => {
    if (points.length === 1) points.push([points[0][0] + 1.5, points[0][1], points[0][2]]);
    const path = points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");
    const back = points.toReversed().map(([a, , c]) => `${a.toFixed(1)},${c.toFixed(1)}`).join("L");
    return [
      line.kind === "area" ? s("path", { class: `under ${below ? "solid" : ""} ${line.colour}`, d: `M${path}L${back}Z` }) : null,
      below ? null : s("path", { class: `line ${line.kind} ${line.colour}`, d: `M${path}` }),
    ].filter(Boolean);
  });
}

function summary(lines, write) {
  const values = lines.flatMap((line) => line.points.map(([, value]) => value).filter((value) => value !== null));
  if (!values.length) return "no data in this time";
  const [least, most, sum] = values.reduce(
    ([a, b, c], value) => [Math.min(a, value), Math.max(b, value), c + value],
    [Infinity, -Infinity, 0],
  );
  return `from ${write(least)} to ${write(most)}, mean ${write(sum / values.length)}`;
}

// The next round number, so that the scale does not change with every value.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * size).find((step) => step >= value * 0.9999);
}
