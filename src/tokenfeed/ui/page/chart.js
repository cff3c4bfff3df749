// One chart of lines over time, drawn without a library, with its numbers in words and a cursor for mouse or arrow keys.
import { h, s } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [440, 130, 46, 18];

// What `draw` is given: times (edges of bins, one more than values), lines of {name, values, kind, colour}, how to
// write a value, the end of the scale, and the current value in words. A value of null is a gap.
export class Chart {
  #svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + BOTTOM}`, role: "img", class: "plot", tabindex: "0" });
  #now = h("strong", {});
  #told = h("p", { class: "hint told" });
  #cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
  #drawn = null;

  constructor(title, onmove) {
    this.title = title;
    const caption = h("figcaption", {}, h("h3", {}, title), this.#now);
    this.element = h("figure", { class: "figure" }, caption, this.#svg, this.#told);
    this.#svg.addEventListener("pointermove", (event) => {
      const box = this.#svg.getBoundingClientRect();
      const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT);
      onmove(Math.floor(share * this.#bins));
    });
    this.#svg.addEventListener("pointerleave", () => onmove(null));
    this.#svg.addEventListener("blur", () => onmove(null));
    this.#svg.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") onmove(null);
      if (!to) return;
      event.preventDefault();
      onmove((this.#drawn?.cursor ?? this.#bins) + to);
    });
  }

  get #bins() {
    return this.#drawn ? this.#drawn.times.length - 1 : 0;
  }

  draw(found) {
    this.#drawn = found;
    const { times, lines, write, top } = found;
    const bins = times.length - 1;
    const x = (edge) => LEFT + (edge / bins) * (WIDTH - LEFT);
    const y = (value) => HEIGHT - Math.min(1, value / top) * (HEIGHT - 8);
    const grid = [0, 0.5, 1].map((share) => [
      s("line", { x1: LEFT, x2: WIDTH, y1: y(share * top), y2: y(share * top), class: "axis" }),
      s("text", { x: LEFT - 8, y: y(share * top) + 4, "text-anchor": "end" }, write(share * top)),
    ]);
    const [first, middle] = [times[0], times[Math.floor(bins / 2)]].map((time) => `−${duration(times[bins] - time)}`);
    const labels = [[0, first, "start"], [Math.floor(bins / 2), middle, "middle"], [bins, "now", "end"]].map(
      ([edge, text, anchor]) => s("text", { x: x(edge), y: HEIGHT + 15, "text-anchor": anchor }, text),
    );
    const paths = lines.map((line) => drawLine(line, x, y));
    this.#svg.replaceChildren(...grid.flat(), ...labels, ...paths.flat(), this.#cursor);
    this.#now.textContent = found.now;
    this.#tell();
  }

  // Place the cursor line, at the same time in all charts; null hides it.
  point(bin) {
    if (!this.#drawn) return;
    this.#drawn.cursor = bin;
    this.#tell();
  }

  #tell() {
    const { times, lines, write, cursor, note } = this.#drawn;
    const at = cursor === null || cursor === undefined ? null : Math.max(0, Math.min(cursor, this.#bins - 1));
    this.#cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) {
      this.#told.textContent = [summary(lines, write), note].filter(Boolean).join("; ");
      this.#svg.setAttribute("aria-label", `${this.title}: ${this.#now.textContent}; ${this.#told.textContent}`);
      return;
    }
    this.#drawn.cursor = at;
    const place = LEFT + ((at + 0.5) / this.#bins) * (WIDTH - LEFT);
    this.#cursor.setAttribute("x1", place);
    this.#cursor.setAttribute("x2", place);
    const values = lines.filter(isTold).map((line) => {
      const value = line.values[at];
      return `${line.name ? `${line.name} ` : ""}${value === null ? "–" : write(value)}`;
    });
    this.#told.textContent = `${duration(times[this.#bins] - times[at + 1])} before: ${values.join(", ")}`;
    this.#svg.setAttribute("aria-label", `${this.title}, ${this.#told.textContent}`);
  }
}

// Background areas are drawn, but not described in words.
const isTold = (line) => line.kind !== "back";

// Values are drawn at the middle of their bins; null interrupts the line.
function drawLine(line, x, y) {
  const runs = [];
  line.values.forEach((value, bin) => {
    if (value === null) return;
    if (bin === 0 || line.values[bin - 1] === null) runs.push([]);
    runs.at(-1).push([x(bin + 0.5), y(value)]);
  });
  return runs.map((points) => {
    if (points.length === 1) points.push([points[0][0] + 1.5, points[0][1]]);
    const path = points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");
    const area = ["area", "back"].includes(line.kind)
      ? s("path", { class: `under ${line.colour}`, d: `M${points[0][0]},${HEIGHT}L${path}V${HEIGHT}Z` })
      : null;
    const edge = line.kind === "back" ? null : s("path", { class: `line ${line.kind} ${line.colour}`, d: `M${path}` });
    return [area, edge].filter(Boolean);
  }).flat();
}

function summary(lines, write) {
  const told = lines.filter(isTold);
  const values = told.flatMap((line) => line.values.filter((value) => value !== null));
  if (!values.length) return "no data in this time";
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const each = told.length > 1 ? " each" : "";
  return `from ${write(Math.min(...values))} to ${write(Math.max(...values))}, mean ${write(mean)}${each}`;
}

export function duration(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

// The next round number, so that the scale does not change with every value.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * size).find((step) => step >= value);
}
