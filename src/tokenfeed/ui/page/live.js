// A running loader: its speed, what it waits for, and charts over time. Asks for news once a second while it is
// visible.
import { ask, bytes, card, count, decimal, field, fine, h, select, share, short, table, tile } from "./dom.js";
import { makeCharts } from "./live_charts.js";
import { Track } from "./track.js";

const EVERY = 1000;
const WINDOWS = { "last minute": 60, "ten minutes": 600, all: Infinity };
const STATES = { runs: "running", ended: "ended", silent: "silent", gone: "killed" };
const ALL = "all ranks";
const EACH = "each rank";

export function showLive(section) {
  const state = { window: 60, ranks: ALL, isPaused: false, told: null, tracks: new Map(), gpus: new Map() };
  const view = makeView(state, look);
  section.replaceChildren(...view.elements);

  let isAsking = false;
  async function look() {
    if (isAsking || state.isPaused || document.hidden || section.hidden) return;
    isAsking = true;
    try {
      take(state, await ask("live", { after: state.told?.number }));
      view.problem("");
      view.draw();
    } catch (error) {
      view.problem(error instanceof TypeError ? "The server does not answer. Has it been stopped?" : error.message);
    } finally {
      isAsking = false;
    }
  }

  setInterval(look, EVERY);
  document.addEventListener("visibilitychange", look);
  section.setAttribute("aria-busy", "true");
  look().then(() => section.removeAttribute("aria-busy"));
}

// Append the news; drop loaders that the server no longer lists.
function take(state, told) {
  const add = (tracks, key, points) => {
    const track = tracks.get(key) ?? new Track();
    track.add(points);
    return [key, track];
  };
  told.loaders.sort((a, b) => a.rank - b.rank || a.id - b.id);
  state.told = told;
  state.tracks = new Map(told.loaders.map((one) => add(state.tracks, one.id, one.points)));
  state.gpus = new Map(told.gpus.map((one) => add(state.gpus, one.index, one.points)));
}

function makeView(state, look) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const words = h("div", { class: "words", role: "status" });
  const tiles = h("div", { class: "tiles" });
  const ranks = h("div");
  const charts = makeCharts();
  const choice = select([ALL, EACH], ALL, (value) => {
    state.ranks = value;
    draw();
  });
  const rankField = field("ranks", choice);
  const chartsCard = card(
    "Over time",
    h(
      "div",
      { class: "controls", role: "group", "aria-label": "What is shown" },
      timeButtons(state, draw),
      pauseButton(state, look),
      rankField,
    ),
    charts.element,
  );
  const ranksCard = card("Ranks", ranks);

  function draw() {
    const { told } = state;
    if (!told) return;
    const isEmpty = !told.loaders.length;
    for (const one of [tiles, chartsCard, ranksCard]) one.hidden = isEmpty;
    const present = told.loaders.filter((one) => !one.is_past);
    const name = namer(present);
    offer(choice, state, [ALL, EACH, ...present.map(name)]);
    const chosen = [ALL, EACH].includes(state.ranks) ? present : present.filter((one) => name(one) === state.ranks);
    say(words, isEmpty ? [tellMissing(told)] : sentences(chosen, name));
    if (isEmpty) return;
    rankField.hidden = present.length < 2;
    tiles.replaceChildren(...nowTiles(chosen));
    ranks.replaceChildren(...rankTable(present, told.loaders.length - present.length));
    const drawn = [ALL, EACH].includes(state.ranks) ? told.loaders : chosen;
    charts.draw(state, drawn, chosen, state.ranks === EACH);
  }

  const tellProblem = (text) => {
    problem.hidden = !text;
    if (problem.textContent !== text) problem.textContent = text;
  };
  return { elements: [problem, words, tiles, chartsCard, ranksCard], draw, problem: tellProblem };
}

function timeButtons(state, draw) {
  const buttons = Object.entries(WINDOWS).map(([name, seconds]) =>
    h("button", {
      type: "button",
      "aria-pressed": String(state.window === seconds),
      onclick: (event) => {
        state.window = seconds;
        for (const one of buttons) one.setAttribute("aria-pressed", String(one === event.currentTarget));
        draw();
      },
    }, name)
  );
  return h("div", { class: "segments", role: "group", "aria-label": "Time" }, buttons);
}

function pauseButton(state, look) {
  const press = (event) => {
    state.isPaused = !state.isPaused;
    event.currentTarget.setAttribute("aria-pressed", String(state.isPaused));
    look();
  };
  return h("button", { type: "button", "aria-pressed": "false", onclick: press }, "Pause");
}

const tellMissing = (told) =>
  told.missing
    ? `There is no ${told.missing} yet. The training script writes it if it calls observe.publish(loader, "${told.missing}")`
    : "The training script has published nothing yet.";

// "rank 3", with the process if one rank has several loaders.
const namer = (loaders) => (one) =>
  `rank ${one.rank}${loaders.filter((other) => other.rank === one.rank).length > 1 ? `, process ${one.pid}` : ""}`;

function offer(choice, state, names) {
  if ([...choice.options].map((one) => one.value).join() === names.join()) return;
  if (!names.includes(state.ranks)) state.ranks = ALL;
  choice.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === state.ranks }, name)));
}

// Ranks that are gone come first, then those that wait longest.
function sentences(loaders, name) {
  const weight = { gone: 3, silent: 2, runs: 1, ended: 0 };
  const order = [...loaders].sort((a, b) => weight[b.state] - weight[a.state] || b.wait_fraction - a.wait_fraction);
  const told = order.slice(0, 4).flatMap((one) =>
    one.words.map((text) => loaders.length > 1 ? `${name(one).replace("rank", "Rank")}: ${text}` : text)
  );
  return loaders.length > 4 ? [...told, `${count(loaders.length - 4)} more in the table.`] : told;
}

// Unchanged sentences are left alone, so that screen readers do not repeat them.
function say(place, texts) {
  if ([...place.children].map((child) => child.textContent).join("\n") === texts.join("\n")) return;
  place.replaceChildren(...texts.map((text) => h("p", {}, text)));
}

function nowTiles(loaders) {
  const running = loaders.filter((one) => one.state === "runs");
  const sum = (name, list) => list.reduce((total, one) => total + one[name], 0);
  const longest = Math.max(0, ...running.map((one) => one.wait_fraction));
  const ifRunning = (text) => running.length ? text : "–";
  const states = Object.entries(STATES)
    .map(([state, name]) => [loaders.filter((one) => one.state === state).length, name])
    .filter(([number]) => number);
  const isOne = loaders.length === 1;
  return [
    tile(
      "tokens a second",
      ifRunning(short(sum("items_per_second", running))),
      ifRunning(`${decimal(sum("samples_per_second", running))} samples a second`),
    ),
    tile(
      "waits for data",
      ifRunning(share(longest)),
      running.length > 1 ? "of the time, at most" : "of the time",
      running.length ? (longest >= 0.01 ? "warm" : "good") : null,
    ),
    tile("delivered", short(sum("items", loaders)), `tokens in ${count(sum("batches", loaders))} batches`),
    tile(
      isOne ? `rank ${loaders[0].rank} of ${count(loaders[0].world_size)}` : "ranks",
      states.map(([number, name]) => isOne ? name : `${number} ${name}`).join(", "),
      isOne ? `process ${loaders[0].pid}` : `${count(loaders.length)} loaders`,
    ),
  ];
}

function rankTable(loaders, past) {
  const rows = loaders.map((one) => {
    const ifRunning = (text) => one.state === "runs" ? text : "–";
    return [
      count(one.rank),
      h("span", { class: `state ${one.state}` }, STATES[one.state]),
      `${one.host} ${one.pid}`,
      ifRunning(short(one.items_per_second)),
      ifRunning(share(one.wait_fraction)),
      ifRunning(`${count(one.queued)} of ${count(one.prefetch)}`),
      ifRunning(`${fine(one.cpu)} of ${count(one.cores)}`),
      ifRunning(bytes(one.memory_bytes)),
      count(one.batches),
    ];
  });
  const heads = ["rank", "", "process", "tokens/s", "waits", "ready", "cores", "memory", "batches"];
  return [
    table(heads, rows, { numbers: [0, 3, 4, 5, 6, 7, 8], caption: "Ranks" }),
    h("p", { class: "hint" }, past ? `${count(past)} ended earlier, shown only in the charts.` : ""),
  ];
}
