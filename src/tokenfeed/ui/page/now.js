// How the run is now: a verdict in words, the ranks heard of, charts on one axis of time, and a strip for every rank.
import { Chart, nearest, roundUp } from "./chart.js";
import { ask, bytes, card, colour, count, decimal, duration, fine, h, s, share, short, show, tile } from "./dom.js";
import { documentLink } from "./panel.js";
import { go, href, keep } from "./place.js";
import { beat, dismiss, isDismissed, known, listen, verdict } from "./pulse.js";

const WINDOWS = { minute: 60, "10 min": 600, all: Infinity };
const STATES = { runs: "running", ended: "ended", silent: "silent", gone: "dead" };
const MOST_BINS = 120;
const MOST_STRIPS = 16;
const WEIGHT = { gone: 3, silent: 2, runs: 1, ended: 0 };
let view = null;

export function showNow(section, subject, given) {
  const state = { window: WINDOWS[given.get("time")] ?? null, all: given.has("ranks") };
  if (!view) {
    view = makeView(subject, section);
    section.replaceChildren(...view.elements);
    listen(() => section.hidden || view.draw());
  }
  view.set(state);
  if (known.told) view.draw();
  if (subject.has_run) {
    ask("run").then((run) => {
      view.state.run = run;
      if (run.sources?.length > 1) view.drawShares();
      view.drawRows();
    }).catch(() => {});
  }
}

function makeView(subject, section) {
  const words = h("div", { class: "words", role: "status" }, h("div", { class: "skeleton line" }));
  const tiles = h("div", { class: "tiles" });
  const [strips, gpus, shares, rows] = [h("div"), h("div"), h("div"), h("div")];
  const figures = makeFigures(subject);
  const buttons = h("div", { class: "segments", role: "group", "aria-label": "Time" });
  const pause = h("button", {
    type: "button",
    "aria-pressed": "false",
    onclick: () => {
      known.isPaused = !known.isPaused;
      pause.setAttribute("aria-pressed", String(known.isPaused));
      beat();
    },
  }, "Pause");
  const chartsCard = card("Over time", h("div", { class: "controls" }, buttons, pause), figures.element);
  const stripsCard = card("Ranks", strips, gpus);
  const sharesCard = card("Sources", shares);
  const rowsCard = card("Being trained on now", rows);
  sharesCard.hidden = rowsCard.hidden = true;
  const self = {
    state: {},
    elements: [words, tiles, chartsCard, sharesCard, rowsCard, stripsCard],
    set(state) {
      self.state = { ...self.state, ...state };
      buttons.replaceChildren(...Object.entries(WINDOWS).map(([name, seconds]) =>
        h("button", {
          type: "button",
          "aria-pressed": String(self.state.window === seconds),
          onclick: () => {
            keep({ time: name });
            self.set({ window: seconds });
            self.draw();
          },
        }, name)
      ));
    },
    draw() {
      const { told } = known;
      if (!told) return;
      const isEmpty = !told.loaders.length;
      for (const one of [tiles, chartsCard, stripsCard]) one.hidden = isEmpty;
      const present = told.loaders.filter((one) => !one.is_past && !isDismissed(one));
      say(words, isEmpty ? "idle" : verdict().level, isEmpty ? [tellMissing(told)] : sentences(present));
      if (isEmpty) return;
      tiles.replaceChildren(...nowTiles(told, present));
      figures.draw(self.state, told);
      drawStrips(strips, self, told, present);
      drawGpus(gpus, self, told);
    },
    drawShares() {
      sharesCard.hidden = false;
      show(shares, async () => sharesPicture(await ask("ledger")));
    },
    drawRows() {
      rowsCard.hidden = false;
      show(rows, async () => rowsNow(await ask("trace", { step: known.told?.progress?.step, count: 4 })));
    },
  };
  setInterval(() => section.hidden || document.hidden || !self.state.run || known.isPaused || self.drawRows(), 10_000);
  return self;
}

const tellMissing = (told) =>
  told.missing
    ? `There is no ${told.missing} yet. The training script writes it if it calls observe.publish(loader, "${told.missing}")`
    : "The training script has published nothing yet.";

// The verdict, then what the worst ranks say.
function sentences(present) {
  const order = [...present].sort((a, b) => WEIGHT[b.state] - WEIGHT[a.state] || b.wait_fraction - a.wait_fraction);
  const told = order.slice(0, 3).flatMap((one) => one.words.map((text) => present.length > 1 ? `Rank ${one.rank}: ${text}` : text));
  return [verdict().words, ...told.filter((text) => text !== verdict().words)];
}

// Unchanged sentences are left alone, so that screen readers do not repeat them.
function say(place, level, texts) {
  place.className = `words ${level}`;
  if ([...place.children].map((child) => child.textContent).join("\n") === texts.join("\n")) return;
  place.replaceChildren(...texts.map((text, place) => h("p", { class: place ? "hint" : "verdict" }, text)));
}

const sum = (list, name) => list.reduce((total, one) => total + one[name], 0);
const mean = (list) => list.reduce((total, value) => total + value, 0) / Math.max(1, list.length);

function nowTiles(told, present) {
  const running = present.filter((one) => one.state === "runs");
  const longest = Math.max(0, ...running.map((one) => one.wait_fraction));
  const ifRunning = (text) => running.length ? text : "–";
  const { progress, verdict: { ranks, world_size: size } } = told;
  return [
    tile("ranks heard", `${count(ranks)} of ${count(size)}`, tellStates(present), running.length ? (ranks < size ? "bad" : "good") : null),
    tile(
      "tokens a second",
      ifRunning(short(sum(running, "items_per_second"))),
      ifRunning(`${decimal(sum(running, "samples_per_second"))} samples/s`),
    ),
    tile(
      "waits for data",
      ifRunning(share(longest)),
      running.length > 1 ? "of the time, the worst rank" : "of the time",
      running.length ? (longest >= 0.05 ? "warm" : "good") : null,
    ),
    tile("delivered", short(sum(told.loaders, "items")), `tokens in ${count(sum(told.loaders, "batches"))} batches`),
    progress
      ? tile(
        "step",
        count(progress.step),
        [progress.end_step ? `of ${count(progress.end_step)}` : null, progress.seconds_left ? `${duration(progress.seconds_left)} left` : null]
          .filter(Boolean).join(", ") || `${short(progress.samples)} samples`,
      )
      : null,
    progress ? tile("epoch", progress.epoch.toFixed(2), progress.sources.length > 1 ? "of the source seen most" : "of the data") : null,
  ].filter(Boolean);
}

const tellStates = (present) =>
  Object.entries(STATES).map(([state, name]) => [present.filter((one) => one.state === state).length, name])
    .filter(([number]) => number).map(([number, name]) => `${number} ${name}`).join(", ");

// Edges of bins are multiples of the width, so that bins do not move from second to second.
function edges(window, told) {
  const firsts = [...known.tracks.values()].filter((one) => one.points.length).map((one) => one.points[0][0]);
  const whole = Math.max(10, told.now - Math.min(told.now, ...firsts));
  const seconds = window === Infinity ? whole : window ?? Math.min(whole, 600);
  const width = Math.max(1, Math.ceil(seconds / MOST_BINS));
  const bins = Math.ceil(seconds / width);
  // The last bin of a run that goes on is not whole yet.
  const stop = (told.verdict.ranks ? Math.floor(told.now / width) : Math.ceil(told.now / width)) * width;
  return Array.from({ length: bins + 1 }, (_, place) => stop - (bins - place) * width);
}

function makeFigures(subject) {
  const charts = new Map();
  const place = h("div", { class: "figures" });
  const onmove = (at) => charts.forEach((chart) => chart.point(at));
  const hint = h("p", { class: "hint" });
  const chart = (name, onpick) => {
    if (!charts.has(name)) {
      charts.set(name, new Chart(name, { onmove, onpick }));
      place.append(charts.get(name).element);
    }
    return charts.get(name);
  };

  function draw(state, told) {
    const times = edges(state.window, told);
    const [from, to] = [times[0], times.at(-1)];
    const found = told.loaders.map((one) => ({ ...one, bins: known.tracks.get(one.id).bins(times) }));
    const running = told.loaders.filter((one) => !one.is_past && one.state === "runs");
    const middles = times.slice(1).map((stop, bin) => (stop + times[bin]) / 2);
    const combine = (list, value, how) =>
      middles.map((at, bin) => {
        const there = list.map((one) => one.bins[bin]).filter((one) => one !== null).map(value);
        return [at, there.length ? how(there) : null];
      });
    const total = (values) => values.reduce((all, value) => all + value, 0);
    const markers = (state.run?.starts ?? []).map((start) => ({ x: start.time, text: `started at step ${count(start.step)}` }));
    const draw = (name, given, onpick) => {
      const highest = Math.max(0, ...given.lines.flatMap((line) => line.points.map(([, value]) => value ?? 0)));
      chart(name, onpick).draw({ from, to, markers, top: roundUp(highest), ...given });
    };
    // What the training loop logs comes first: a click leads to the rows of the step.
    for (const [name, points] of known.scalars) {
      const inside = points.filter(([, , time]) => time >= from && time <= to + 2);
      const values = inside.map(([, value]) => value).filter((value) => value !== null);
      const [least, most] = [Math.min(...values), Math.max(...values)];
      const pad = (most - least) * 0.08 || Math.abs(most) * 0.05 || 1;
      draw(name, {
        lines: [{ name: "", points: spread(inside), kind: "thin", colour: "s0" }],
        markers: [...markers, ...amendments(state.run, points)],
        write: number3,
        bottom: values.length ? least - pad : 0,
        top: values.length ? most + pad : 1,
        now: values.length ? number3(values.at(-1)) : "–",
        note: inside.length ? `steps ${count(inside[0][0])} to ${count(inside.at(-1)[0])}; click for the rows of a step` : "",
      }, subject.has_run
        ? (at) => {
          const near = nearest(points.map(([step, , time]) => [time, step]), at);
          if (near) go("trace", { step: near[1] });
        }
        : null);
    }
    draw("Tokens a second", {
      lines: [{ name: "", points: combine(found, (one) => one.items, total), kind: "area", colour: "s0" }],
      write: short,
      now: running.length ? short(sum(running, "items_per_second")) : "–",
    });
    draw("Waiting, by cause", {
      lines: told.causes.map((cause, place) => ({
        name: cause,
        points: combine(found, (one) => one.causes[place], mean),
        kind: "area",
        colour: `s${[0, 5, 4, 1, 6][place]}`,
      })),
      stacked: true,
      top: 1,
      write: axisShare,
      now: running.length ? share(mean(running.map((one) => one.wait_fraction))) : "–",
    });
    draw("Cores busy", {
      lines: [{ name: "", points: combine(processes(found), (one) => one.cpu, total), kind: "area", colour: "s2" }],
      write: (value) => value ? fine(value) : "0",
      now: running.length ? fine(sum(processes(running), "cpu")) : "–",
    });
    draw("Memory", {
      lines: [{ name: "", points: combine(processes(found), (one) => one.memory, total), kind: "area", colour: "s5" }],
      write: bytes,
      now: running.length ? bytes(sum(processes(running), "memory_bytes")) : "–",
    });
    hint.textContent = known.scalars.size
      ? "Point at a chart, or use arrow keys, to read the values at any moment."
      : "observe.log(step, loss=…) in the training script adds its numbers here. Point at a chart to read its values.";
  }
  return { element: h("div", { class: "chart" }, place, hint), draw };
}

const number3 = (value) => Number(value.toPrecision(4)).toLocaleString("en");
const axisShare = (value) => value ? share(value) : "0%";

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

// Amendments, at the time that the step was logged where they begin.
const amendments = (run, points) =>
  (run?.amendments ?? []).flatMap((one) => {
    const at = points.find(([step]) => step >= one.step);
    return at && one.step >= points[0][0] ? [{ x: at[2], text: `${one.told}, from step ${count(one.step)} on` }] : [];
  });

// Two loaders of one process share its processor time and memory: count them once.
const processes = (loaders) =>
  loaders.filter((one, place) => place === loaders.findIndex((other) => one.host === other.host && one.pid === other.pid));

// One heat strip for each rank: how much it waited, over time. The worst come first.
function drawStrips(place, view, told, present) {
  const times = edges(view.state.window, told);
  const order = [...present].sort((a, b) => WEIGHT[b.state] - WEIGHT[a.state] || b.wait_fraction - a.wait_fraction || a.rank - b.rank);
  const shown = view.state.all ? order : order.slice(0, MOST_STRIPS);
  const past = told.loaders.filter((one) => one.is_past).length;
  place.replaceChildren(
    h(
      "ul",
      { class: "strips", "aria-label": "Ranks, the worst first" },
      shown.map((one) => {
        const bins = known.tracks.get(one.id).bins(times);
        const isRunning = one.state === "runs";
        return h(
          "li",
          {},
          h("span", { class: "who" }, `rank ${one.rank}`, h("span", { class: `state ${one.state}` }, STATES[one.state])),
          strip(bins.map((bin) => bin?.wait ?? null), `rank ${one.rank}: waits ${share(one.wait_fraction)}`),
          h(
            "small",
            {},
            isRunning
              ? `${short(one.items_per_second)} tokens/s · waits ${share(one.wait_fraction)} · ${count(one.queued)} of ${count(one.prefetch)} ready · ${bytes(one.memory_bytes)}`
              : `last heard ${duration(Math.max(0, told.now - one.last))} ago, after ${count(one.batches)} batches`,
            ` · ${one.host} ${one.pid}`,
          ),
          ["gone", "silent"].includes(one.state)
            ? h("button", { type: "button", class: "small", onclick: () => dismiss(one) }, "Dismiss")
            : null,
        );
      }),
    ),
    h(
      "p",
      { class: "legend" },
      h("span", {}, h("i", { class: "heat" }), " never waits to always waits"),
      order.length > MOST_STRIPS
        ? h("button", {
          type: "button",
          class: "small",
          onclick: () => {
            view.state.all = !view.state.all;
            keep({ ranks: view.state.all ? "all" : null });
            view.draw();
          },
        }, view.state.all ? `Only the worst ${MOST_STRIPS}` : `All ${count(order.length)} ranks`)
        : null,
      past ? h("span", {}, `${count(past)} earlier, shown only in the charts`) : null,
    ),
  );
}

// Heat from the colour of good to that of bad; nothing where nothing is known.
function strip(values, label, colours = ["--good-soft", "--warm", "--bad"]) {
  const canvas = h("canvas", { width: values.length, height: 1, class: "strip", role: "img", "aria-label": label });
  const context = canvas.getContext("2d");
  const shades = palette(colours);
  values.forEach((value, place) => {
    if (value === null) return;
    context.fillStyle = shades[Math.round(Math.min(1, Math.sqrt(value)) * (shades.length - 1))];
    context.fillRect(place, 0, 1, 1);
  });
  return canvas;
}

// Shades of the present theme between three colours: a canvas knows neither variables nor light-dark().
const palettes = new Map();
document.addEventListener("themechange", () => palettes.clear());
function palette(names) {
  if (palettes.has(names[0])) return palettes.get(names[0]);
  const probe = h("i", { hidden: true });
  document.body.append(probe);
  const shades = Array.from({ length: 33 }, (_, place) => {
    const [low, high] = place < 16 ? [names[0], names[1]] : [names[1], names[2]];
    probe.style.color = `color-mix(in srgb, var(${high}) ${((place % 16) / 16 + (place === 32 ? 1 : 0)) * 100}%, var(${low}))`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  palettes.set(names[0], shades);
  return shades;
}

function drawGpus(place, view, told) {
  if (!told.gpus.length) {
    place.replaceChildren(h("p", { class: "hint" }, `No GPUs: no training host reports any, and here ${told.no_gpus || "there is none"}.`));
    return;
  }
  const times = edges(view.state.window, told);
  const list = told.gpus.map((one) => ({ ...one, points: known.gpus.get(`${one.host} ${one.index}`).points }))
    .map((one) => ({ ...one, busy: one.points.at(-1)?.[1] ?? 0, used: one.points.at(-1)?.[2] ?? 0 }))
    .sort((a, b) => a.busy - b.busy || a.index - b.index);
  place.replaceChildren(
    h("h3", {}, told.gpus.some((one) => one.host) ? "GPUs of the training hosts" : "GPUs of the machine that serves this page"),
    h(
      "ul",
      { class: "strips", "aria-label": "GPUs, the idlest first" },
      list.slice(0, view.state.all ? 512 : MOST_STRIPS).map((one) =>
        h(
          "li",
          {},
          h("span", { class: "who" }, `GPU ${one.index}`),
          strip(sampled(one.points, times, 1), `GPU ${one.index}: busy ${axisShare(one.busy)}`, ["--empty", "--c0", "--accent"]),
          h("small", {}, `busy ${axisShare(one.busy)} · ${bytes(one.used)} of ${bytes(one.total_bytes)} · ${[one.host, one.name].filter(Boolean).join(" ")}`),
        )
      ),
    ),
  );
}

// Mean of the values in each bin; in an empty bin, the previous value if it is less than five seconds old.
function sampled(points, times, place) {
  return times.slice(1).map((stop, bin) => {
    const there = points.filter(([time]) => time >= times[bin] && time < stop).map((point) => point[place]);
    if (there.length) return mean(there);
    const before = points.findLast(([time]) => time < stop);
    return before && stop - before[0] < 5 ? before[place] : null;
  });
}

// Realised against target shares, over the run so far, and epochs of every source.
function sharesPicture(found) {
  const total = Math.max(1, found.samples);
  const grown = found.points.slice(1).map((point, place) => point.slice(1).map(([samples, target], source) => {
    const [before, due] = found.points[place][source + 1];
    const width = point[0] - found.points[place][0];
    return [(samples - before) / width, (target - due) / width];
  }));
  const targetSum = Math.max(1e-9, found.sources.reduce((all, one) => all + one.target, 0));
  return h(
    "div",
    { class: "ledger" },
    found.sources.slice(0, 64).map((one, number) =>
      h(
        "div",
        {},
        h("a", { href: href("data", { source: one.name }) }, h("i", { class: `dot ${colour(number)}` }), ` ${one.name}`),
        s(
          "svg",
          { viewBox: `0 0 ${Math.max(1, grown.length)} 20`, preserveAspectRatio: "none", role: "img", "aria-label": `share of ${one.name} over the run` },
          grown.map((shares, at) => s("rect", { x: at, y: 20 - 20 * shares[number][0], width: 1.05, height: 20 * shares[number][0], class: colour(number) })),
          s("path", {
            class: "target",
            d: `M${grown.map((shares, at) => `${at},${(20 - 20 * shares[number][1]).toFixed(2)}H${at + 1}`).join("L")}`,
          }),
        ),
        h("small", {}, `${share(one.samples / total)} of samples, target ${share(one.target / targetSum)} · ${one.epochs.toFixed(2)} epochs`),
      )
    ),
  );
}

// Rows of the present step, as text.
function rowsNow(found) {
  return [
    h("p", { class: "hint" }, "Step ", h("a", { href: href("trace", { step: found.step }) }, count(found.step)), ` has ${count(found.num_rows)} rows; the first are`),
    h(
      "ul",
      { class: "rowlist" },
      found.rows.map((row) =>
        h(
          "li",
          {},
          h("p", { class: "clip", dir: "auto" }, row.text || `sample ${count(row.index)}`),
          h(
            "small",
            {},
            `rank ${row.rank}${row.source ? ` · ${row.source}` : ""} · `,
            h("a", { href: href("trace", { step: found.step, row: row.sample }) }, "the row"),
            row.documents.slice(0, 3).map((one) => [" · ", documentLink(one.number, row.source, `document ${count(one.number)}`)]),
          ),
        )
      ),
    ),
  ];
}
