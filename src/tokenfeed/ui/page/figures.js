// Charts of a run over one axis, of time or of steps: what the training loop logs, tokens a second, waiting by cause.
import { Chart, nearest, roundUp } from "./chart.js";
import { bytes, count, duration, fine, h, mean, share, short, sum } from "./dom.js";
import { go } from "./place.js";
import { known, translate } from "./pulse.js";

const MOST_BINS = 120;

// Edges of bins are multiples of the width, so that bins do not move from second to second.
export function edges(window, told) {
  const firsts = [...known.tracks.values()].filter((one) => one.points.length).map((one) => one.points[0][0]);
  const whole = Math.max(10, told.now - Math.min(told.now, ...firsts));
  const seconds = window === Infinity ? whole : window ?? Math.min(whole, 600);
  const width = Math.max(1, Math.ceil(seconds / MOST_BINS));
  const bins = Math.ceil(seconds / width);
  // The last bin of a run that goes on is not whole yet.
  const stop = (told.verdict.ranks ? Math.floor(told.now / width) : Math.ceil(told.now / width)) * width;
  return Array.from({ length: bins + 1 }, (_, place) => stop - (bins - place) * width);
}

export function makeFigures(subject) {
  const charts = new Map();
  const place = h("div", { class: "figures" });
  const hint = h("p", { class: "hint" });
  const legend = h("p", { class: "legend" });
  const onmove = (at) => charts.forEach((chart) => chart.point(at));
  let byStep = false;
  // The step at a place of the axis, of a chart of logged values the nearest that was logged.
  const pick = (name) => (at) => {
    const logged = known.scalars.get(name);
    const step = logged ? nearest(logged.map(([step, , time]) => [byStep ? step : time, step]), at)?.[1] : byStep ? at : translate(at);
    if (step !== null && step !== undefined) go("trace", { step: Math.floor(step) });
  };
  const chart = (name) => {
    if (!charts.has(name)) {
      charts.set(name, new Chart(name, { onmove, onpick: subject.has_run ? pick(name) : null }));
      place.append(charts.get(name).element);
    }
    return charts.get(name);
  };

  function draw(state, told) {
    const times = edges(state.window, told);
    byStep = state.axis === "step" && known.clock.length > 1;
    const x = (time) => !byStep ? time : translate(Math.max(known.clock[0][0], Math.min(known.clock.at(-1)[0], time)));
    const inside = new Map([...known.scalars].map(([name, points]) => [name, points.filter(([, , time]) => time >= times[0] && time <= times.at(-1) + 2)]));
    const steps = byStep ? [...inside.values()].flatMap((points) => points.length ? [points[0][0], points.at(-1)[0]] : []) : [];
    const from = Math.min(x(times[0]), ...steps);
    const to = Math.max(x(times.at(-1)), from + (byStep ? 1 : 0), ...steps);
    const axis = byStep ? (at) => `step ${count(Math.round(at))}` : (at) => to - at < 1 ? "now" : `−${duration(to - at)}`;
    const found = told.loaders.map((one) => ({ ...one, bins: known.tracks.get(one.id).bins(times) }));
    // Two loaders of one process share its processor time and memory: in each bin, count them once.
    const isFirst = (one, place, list) => place === list.findIndex((other) => one.host === other.host && one.pid === other.pid);
    const running = told.loaders.filter((one) => !one.is_past && one.state === "runs");
    const middles = times.slice(1).map((stop, bin) => x((stop + times[bin]) / 2));
    const combine = (how, isCounted = () => true) =>
      middles.map((at, bin) => {
        const there = found.filter((one) => one.bins[bin] !== null).filter(isCounted).map((one) => one.bins[bin]);
        return [at, there.length ? how(there) : null];
      });
    // Growth of a counter over the part of the bin that any of them covers.
    const rate = (name) => (list) => sum(list, name) / (Math.max(...list.map((one) => one.to)) - Math.min(...list.map((one) => one.from)));
    const markers = marks(state.run, byStep).filter((one) => one.x >= from && one.x <= to);
    const draw = (name, given) => {
      const highest = Math.max(0, ...given.lines.flatMap((line) => line.points.map(([, value]) => value ?? 0)));
      chart(name).draw({ from, to, axis, markers, top: roundUp(highest), ...given });
    };
    // What the training loop logs comes first: a click leads to the rows of the step.
    for (const [name, points] of inside) {
      const values = points.map(([, value]) => value).filter((value) => value !== null);
      const [least, most] = [Math.min(...values), Math.max(...values)];
      const pad = (most - least) * 0.08 || Math.abs(most) * 0.05 || 1;
      draw(name, {
        lines: [{ name: "", points: byStep ? points.map(([step, value]) => [step, value]) : spread(points), kind: "thin", colour: "s0" }],
        write: number3,
        bottom: values.length ? least - pad : 0,
        top: values.length ? most + pad : 1,
        now: values.length ? number3(values.at(-1)) : "–",
        note: points.length ? `steps ${count(points[0][0])} to ${count(points.at(-1)[0])}; click for the rows of a step` : "",
      });
    }
    draw("Tokens a second", {
      lines: [{ name: "", points: combine(rate("items")), kind: "area", colour: "s0" }],
      write: short,
      now: running.length ? short(sum(running, "items_per_second")) : "–",
    });
    draw("Waiting, by cause", {
      lines: told.causes.map((cause, place) => ({
        name: cause,
        points: combine((list) => mean(list.map((one) => one.causes[place]))),
        kind: "area",
        colour: `s${[0, 5, 4, 1, 6][place]}`,
      })),
      stacked: true,
      top: 1,
      write: axisShare,
      now: running.length ? share(mean(running.map((one) => one.wait_fraction))) : "–",
    });
    draw("Cores busy", {
      lines: [{ name: "", points: combine(rate("cpu"), isFirst), kind: "area", colour: "s2" }],
      write: (value) => value ? fine(value) : "0",
      now: running.length ? fine(sum(running.filter(isFirst), "cpu")) : "–",
    });
    draw("Memory", {
      lines: [{ name: "", points: combine((list) => sum(list, "memory"), isFirst), kind: "area", colour: "s5" }],
      write: bytes,
      now: running.length ? bytes(sum(running.filter(isFirst), "memory_bytes")) : "–",
    });
    const kinds = Object.keys(MARKS).filter((kind) => markers.some((one) => one.kind === kind));
    legend.replaceChildren(...kinds.map((kind) => h("span", {}, h("i", { class: `mark ${kind}` }), ` ${MARKS[kind]}`)));
    hint.textContent = known.scalars.size
      ? "Point at a chart, or use arrow keys, to read the values at any moment."
      : "observe.log(step, loss=…) in the training script adds its numbers here. Point at a chart to read its values.";
  }
  return { element: h("div", { class: "chart" }, place, legend, hint), draw };
}

const number3 = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
const axisShare = (value) => value ? share(value) : "0%";

// Starts and amendments, each at its time or step.
const MARKS = { start: "start or resume", amendment: "amendment" };
function marks(run, byStep) {
  const at = (kind, one, text) => ({ kind, text, x: byStep ? one.step : one.time ?? translate(one.step, 1, 0) });
  return [
    ...(run?.starts ?? []).map((one) => at("start", one, `started at step ${count(one.step)}`)),
    ...(run?.amendments ?? []).map((one) => at("amendment", one, `${one.told}, from step ${count(one.step)} on`)),
  ].filter((one) => one.x !== null);
}

// Several steps of one snapshot have its time: spread them over the time since the one before.
function spread(points) {
  const found = [];
  for (let first = 0; first < points.length;) {
    let stop = first;
    while (stop < points.length && points[stop][2] === points[first][2]) stop++;
    const before = first ? points[first - 1][2] : points[first][2] - 1;
    for (let place = first; place < stop; place++) {
      found.push([before + ((points[first][2] - before) * (place - first + 1)) / (stop - first), points[place][1]]);
    }
    first = stop;
  }
  return found;
}
