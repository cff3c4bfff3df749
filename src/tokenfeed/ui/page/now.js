// How the run is now: a verdict in words, the ranks heard of, charts on one axis, and a strip for every rank.
import { ask, card, count, decimal, duration, h, segments, share, short, show, sum, tile } from "./dom.js";
import { makeFigures } from "./figures.js";
import { documentLink } from "./panel.js";
import { href, keep } from "./place.js";
import { beat, isDismissed, known, listen, verdict } from "./pulse.js";
import { drawStrips, STATES, worstFirst } from "./strips.js";

const WINDOWS = { minute: 60, "10 min": 600, all: Infinity };
let view = null;

export function showNow(section, subject, given) {
  if (!view) {
    view = makeView(subject, section);
    section.replaceChildren(...view.elements);
    listen(() => section.hidden || view.draw());
  }
  view.set({ window: WINDOWS[given.get("time")] ?? null, axis: given.get("axis") ?? "time", all: given.has("ranks") });
  if (known.told) view.draw();
  view.refresh();
}

function makeView(subject, section) {
  const words = h("div", { class: "words", role: "status" }, h("div", { class: "skeleton line" }));
  const tiles = h("div", { class: "tiles" });
  const [strips, rows] = [h("div"), h("div")];
  const figures = makeFigures(subject);
  const [windows, axes] = [h("div"), h("div")];
  const pause = h("button", {
    type: "button",
    "aria-pressed": "false",
    onclick: () => {
      known.isPaused = !known.isPaused;
      pause.setAttribute("aria-pressed", String(known.isPaused));
      beat();
    },
  }, "Pause");
  const chartsCard = card("The run", h("div", { class: "controls" }, windows, axes, pause), figures.element);
  const stripsCard = card("Ranks", strips);
  const rowsCard = card("Last rows trained on", rows);
  rowsCard.hidden = true;
  const choose = (change, address) => {
    keep(address);
    self.set(change);
    self.draw();
  };
  const self = {
    state: {},
    elements: [words, tiles, chartsCard, rowsCard, stripsCard],
    set(state) {
      self.state = { ...self.state, ...state };
      const window = Object.keys(WINDOWS).find((name) => WINDOWS[name] === self.state.window);
      windows.replaceChildren(segments("Time", Object.keys(WINDOWS), window, (name) => choose({ window: WINDOWS[name] }, { time: name })));
      axes.replaceChildren(segments("Axis", ["time", "step"], self.state.axis, (name) => choose({ axis: name }, { axis: name === "time" ? null : name })));
    },
    draw() {
      const { told } = known;
      if (!told) return;
      const isEmpty = !told.loaders.length;
      for (const one of [tiles, chartsCard, stripsCard]) one.hidden = isEmpty;
      const present = told.loaders.filter((one) => !one.is_past && !isDismissed(one));
      say(words, isEmpty ? "idle" : verdict().level, isEmpty ? [tellMissing(told)] : sentences(present));
      rowsCard.querySelector("h2").textContent = isNow() ? "Being trained on now" : "Last rows trained on";
      if (isEmpty) return;
      axes.hidden = known.clock.length < 2;
      tiles.replaceChildren(...nowTiles(told, present));
      figures.draw(self.state, told);
      drawStrips(strips, self, told, present);
    },
    // What follows from the run file, which changes more slowly.
    async refresh() {
      const run = self.state.run = subject.has_run ? await ask("run").catch(() => null) : null;
      if (!run?.plan) return;
      const { progress } = known.told ?? {};
      rowsCard.hidden = false;
      // The batch that the loop has is the last that was delivered; the step that is counted comes after it.
      const step = Math.max(run.legs[0].first_step, (progress?.step ?? run.step) - 1);
      show(rows, async () => rowsNow(await ask("trace", { step, count: 4 })));
    },
  };
  setInterval(() => section.hidden || document.hidden || known.isPaused || self.refresh(), 10_000);
  return self;
}

// Whether the rows delivered last are being trained on: not where no rank runs, nor where one is dead.
const isNow = () => known.told.verdict.ranks > 0 && verdict().level !== "bad";

const tellMissing = (told) =>
  told.missing
    ? `There is no ${told.missing} yet. The training script writes it if it calls observe.publish(loader, "${told.missing}")`
    : "The training script has published nothing yet.";

// The verdict, then what the worst ranks say.
function sentences(present) {
  const told = worstFirst(present).slice(0, 3).flatMap((one) => one.words.map((text) => present.length > 1 ? `Rank ${one.rank}: ${text}` : text));
  return [verdict().words, ...told.filter((text) => text !== verdict().words)];
}

// Unchanged sentences are left alone, so that screen readers do not repeat them.
function say(place, level, texts) {
  place.className = `words ${level}`;
  if ([...place.children].map((child) => child.textContent).join("\n") === texts.join("\n")) return;
  place.replaceChildren(...texts.map((text, place) => h("p", { class: place ? "hint" : "verdict" }, text)));
}

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

// Rows of the present step, as text.
function rowsNow(found) {
  return [
    h("p", { class: "hint" }, "Step ", h("a", { href: href("trace", { step: found.step }) }, count(found.step)), ` has ${count(found.num_rows)} row${found.num_rows === 1 ? "" : "s"}${found.num_rows > found.rows.length ? "; the first are" : ""}`),
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
