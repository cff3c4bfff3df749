// The charts of a running loader: counters become lines, for all ranks together or for each.
import { Chart, duration, roundUp } from "./chart.js";
import { bytes, count, decimal, fine, h, share, short } from "./dom.js";

const MOST_BINS = 120;

export function makeCharts() {
  let cursor = null;
  const move = (bin) => {
    cursor = bin;
    for (const chart of Object.values(charts)) chart.point(bin);
  };
  const charts = {
    tokens: new Chart("Tokens a second", move),
    wait: new Chart("Waiting for data", move),
    queue: new Chart("Batches ready", move),
    cpu: new Chart("Cores busy", move),
    memory: new Chart("Memory", move),
    gpu: new Chart("GPU busy", move),
    gpuMemory: new Chart("GPU memory", move),
  };
  const legend = h("p", { class: "legend" });
  const gpuHint = h("span", { id: "gpu-hint" });
  const figures = h("div", { class: "figures" }, Object.values(charts).map((chart) => chart.element));
  const hint = h("p", { class: "hint" }, "Point at a chart, or use arrow keys, to read the values at any moment. ", gpuHint);

  // `loaders` are drawn; `present` are those that still run.
  function draw(state, loaders, present, isApart) {
    const { told, tracks } = state;
    const times = edges(state.window, told.now, loaders.map((one) => tracks.get(one.id)));
    const width = times[1] - times[0];
    const note = width > 1.5 ? `means of ${duration(width)}` : "";
    const found = loaders.map((one) => ({ ...one, bins: tracks.get(one.id).bins(times) }));
    const running = present.filter((one) => one.state === "runs");
    const lines = (list, name, combine) => isApart ? apart(list, name) : [together(list, name, combine)];
    const now = (list, name, combine, write) => list.length ? write(combine(list.map((one) => one[name]))) : "–";
    const show = (chart, given) =>
      charts[chart].draw({ times, note, cursor, top: roundUp(highest(given.lines)), ...given });

    show("tokens", {
      lines: lines(found, "items", sum),
      write: short,
      now: now(running, "items_per_second", sum, short),
    });
    const waits = lines(found, "wait", mean);
    show("wait", {
      lines: isApart ? waits : [computing(waits[0]), { ...waits[0], colour: "s1" }],
      write: axisShare,
      top: 1,
      now: now(running, "wait_fraction", mean, share),
    });
    const prefetch = Math.max(1, ...loaders.map((one) => one.prefetch));
    show("queue", {
      lines: lines(found, "queued", mean),
      write: decimal,
      top: prefetch,
      now: now(running, "queued", mean, (value) => `${decimal(value)} of ${count(prefetch)}`),
    });
    show("cpu", {
      lines: lines(processes(found), "cpu", sum),
      write: axisFine,
      now: now(processes(running), "cpu", sum, fine),
    });
    show("memory", {
      lines: lines(processes(found), "memory", sum),
      write: bytes,
      now: now(processes(running), "memory_bytes", sum, bytes),
    });
    drawGpus(state, times, show);
    const ranks = isApart ? [...new Set(loaders.map((one) => one.rank))] : [];
    legend.hidden = !isApart;
    const entry = (rank) => h("span", {}, h("i", { class: `dot s${rank % 8}` }), ` rank ${rank}`);
    legend.replaceChildren(...ranks.map(entry));
  }

  function drawGpus({ told, gpus }, times, show) {
    const isThere = told.gpus.length > 0;
    charts.gpu.element.hidden = charts.gpuMemory.element.hidden = !isThere;
    gpuHint.textContent = isThere ? "GPUs of the machine that serves this page." : `No GPUs: ${told.no_gpus}.`;
    if (!isThere) return;
    const all = told.gpus.map((one) => ({ ...one, points: gpus.get(one.index).points }));
    const lines = (place) =>
      all.map((one) => ({
        name: all.length > 1 ? `GPU ${one.index}` : "",
        values: sampled(one.points, times, place),
        kind: all.length > 1 ? "thin" : "area",
        colour: `s${one.index % 8}`,
      }));
    const now = (place, write) => all.map((one) => write(one.points.at(-1)[place])).join(", ");
    show("gpu", { lines: lines(1), write: axisShare, top: 1, now: now(1, axisShare) });
    const total = Math.max(...all.map((one) => one.total_bytes));
    show("gpuMemory", { lines: lines(2), write: bytes, top: total, now: now(2, bytes) });
  }

  return { element: h("div", { class: "chart" }, legend, figures, hint), draw };
}

// Null stays null.
const axisShare = (value) => value ? share(value) : "0%";
const axisFine = (value) => value ? fine(value) : "0";
const sum = (list) => list.reduce((total, value) => total + value, 0);
const mean = (list) => sum(list) / Math.max(1, list.length);
const highest = (lines) => Math.max(0, ...lines.flatMap((line) => line.values.map((value) => value ?? 0)));

// Two loaders of one process share its processor time and memory: count them once.
const processes = (loaders) =>
  loaders.filter((one, place) =>
    place === loaders.findIndex((other) => one.host === other.host && one.pid === other.pid)
  );

// Edges of bins are multiples of the width, so that bins do not move from second to second.
function edges(window, now, tracks) {
  const first = Math.min(now, ...tracks.filter((one) => one.points.length).map((one) => one.points[0][0]));
  const seconds = window === Infinity ? Math.max(10, now - first) : window;
  const width = Math.max(1, Math.ceil(seconds / MOST_BINS));
  const bins = Math.ceil(seconds / width);
  const stop = Math.floor(now / width) * width;
  return Array.from({ length: bins + 1 }, (_, place) => stop - (bins - place) * width);
}

function together(loaders, name, combine) {
  const values = (loaders[0]?.bins ?? []).map((_, bin) => {
    const there = loaders.map((one) => one.bins[bin]).filter((one) => one !== null).map((one) => one[name]);
    return there.length ? combine(there) : null;
  });
  return { name: "", values, kind: "area", colour: "s0" };
}

const apart = (loaders, name) =>
  loaders.map((one) => ({
    name: `rank ${one.rank}`,
    values: one.bins.map((bin) => bin === null ? null : bin[name]),
    kind: "thin",
    colour: `s${one.rank % 8}`,
  }));

// Time not spent waiting is spent computing: the rest of the height.
const computing = (waits) => ({
  ...waits,
  kind: "back",
  colour: "s2",
  values: waits.values.map((value) => value === null ? null : 1),
});

// Mean of the values in each bin; in an empty bin, the previous value if it is less than three seconds old.
function sampled(points, times, place) {
  return times.slice(1).map((stop, bin) => {
    const there = points.filter(([time]) => time >= times[bin] && time < stop).map((point) => point[place]);
    if (there.length) return mean(there);
    const before = points.findLast(([time]) => time < stop);
    return before && stop - before[0] < 3 ? before[place] : null;
  });
}
