// The run as a line of steps: what was run, what is planned (hatched), what was rolled back, resumes, amendments,
// the present and a cursor.
import { colour, count, h, s } from "./dom.js";

const [HEIGHT, BAR, TOP, LANE] = [82, 22, 22, 9];
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.redraw()));

// `onpick` is called with a step. `marks` are sightings of a document: {step, planned}.
export function timeline(run, { step, marks = [], onpick }) {
  const present = run.step;
  const last = Math.max(present * 1.25, run.legs.at(-1).first_step * 1.1, step ?? 0, 10);
  const end = run.end_step ?? Math.max(last, ...marks.map((one) => one.step + 1));
  const svg = s("svg", {
    class: "timeline",
    id: "timeline",
    role: "slider",
    tabindex: "0",
    "aria-label": "Step of the run",
    "aria-valuemin": run.legs[0].first_step,
    "aria-valuemax": Math.ceil(end),
    "aria-valuenow": step,
    "aria-valuetext": `step ${count(step)}${step >= present ? ", planned" : ""}`,
  });
  const element = h("div", {}, svg);
  const first = run.legs[0].first_step;
  element.redraw = () => {
    const width = Math.max(240, element.clientWidth);
    if (!element.clientWidth) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("height", HEIGHT);
    const x = (value) => ((Math.min(value, end) - first) / Math.max(1, end - first)) * (width - 2) + 1;
    const legs = run.legs.flatMap((leg, number) => {
      const stop = leg.stop_step ?? end;
      const done = Math.min(stop, Math.max(leg.first_step, present));
      const told = `steps ${count(leg.first_step)} to ${leg.stop_step === null ? "…" : count(leg.stop_step)}: ${count(leg.world_size)} rank${leg.world_size === 1 ? "" : "s"}, batch size ${leg.batch_size}`;
      const bar = (from, to, kind) =>
        to > from
          ? s("rect", { x: x(from), y: TOP, width: Math.max(1, x(to) - x(from)), height: BAR, class: kind }, s("title", {}, told))
          : null;
      const wide = x(stop) - x(leg.first_step);
      return [
        bar(leg.first_step, done, colour(number)),
        bar(done, stop, "hatched"),
        number ? s("line", { x1: x(leg.first_step), x2: x(leg.first_step), y1: TOP - 4, y2: TOP + BAR + 4, class: "resume" }, s("title", {}, `resumed: ${told}`)) : null,
        wide > 90 ? s("text", { x: x(leg.first_step) + 6, y: TOP + 15, class: "inside" }, `${leg.world_size} × ${leg.batch_size}`) : null,
      ];
    });
    // Steps that were run, and run again after a return to a checkpoint, lie below those that count.
    const back = run.rolled_back.filter((one) => one.first_step < end).map((one) =>
      s(
        "rect",
        { x: x(one.first_step), y: TOP + BAR + 2, width: Math.max(2, x(one.stop_step) - x(one.first_step)), height: LANE, rx: 2, class: "back" },
        s("title", {}, `steps ${count(one.first_step)} to ${count(one.stop_step)} were run, then rolled back: the run went back to step ${count(one.first_step)}`),
      )
    );
    const amended = run.amendments.filter((one) => one.step <= end).map((one) =>
      s(
        "g",
        { class: "amended" },
        s("path", { d: `M${x(one.step)},${TOP - 3}l-5,-8h10z` }),
        s("title", {}, `${one.told}, from step ${count(one.step)} (sample ${count(one.sample)}) on`),
      )
    );
    const dots = marks.filter((one) => one.step <= end).slice(0, 400).map((one) =>
      s("circle", { cx: x(one.step), cy: TOP + BAR / 2, r: 4, class: one.planned ? "sighting planned" : "sighting" },
        s("title", {}, `document ${one.planned ? "planned" : "seen"} in step ${count(one.step)}`))
    );
    svg.replaceChildren(
      s("defs", {}, s("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        s("rect", { width: 6, height: 6, class: "hatchback" }), s("line", { x1: 0, x2: 0, y1: 0, y2: 6, class: "hatchline" }))),
      ...legs.flat().filter(Boolean),
      ...back,
      ...amended,
      ...dots,
      s("line", { x1: x(present), x2: x(present), y1: TOP - 8, y2: TOP + BAR + 8, class: "playhead" }, s("title", {}, `now: step ${count(present)}`)),
      s("text", { x: Math.max(28, Math.min(width - 28, x(present))), y: 11, "text-anchor": "middle" }, `now ${count(present)}`),
      step === null ? "" : s("path", { d: `M${x(step)},${TOP + BAR + 2 + (back.length ? LANE : 0)}l-6,10h12z`, class: "chosen" }, s("title", {}, `step ${count(step)}`)),
      s("text", { x: 0, y: HEIGHT - 3 }, count(first)),
      s("text", { x: width, y: HEIGHT - 3, "text-anchor": "end" }, run.end_step ? `end ${count(run.end_step)}` : "goes on"),
    );
  };
  const clamp = (value) => Math.max(first, run.end_step ? Math.min(value, run.end_step - 1) : value);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    onpick(clamp(Math.round(first + ((event.clientX - box.left) / box.width) * (end - first))));
  });
  svg.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round((end - first) / 20));
    const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: -page, PageUp: page }[event.key];
    if (!by) return;
    event.preventDefault();
    onpick(clamp((step ?? present) + by));
  });
  sizes.observe(element);
  return element;
}
