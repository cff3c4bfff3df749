// The heartbeat: asks how the run is, every second while somebody looks, and tells the header, the title and the icon.
import { ask, count, duration } from "./dom.js";
import { Track } from "./track.js";

const [EVERY, HIDDEN] = [1000, 10_000];
const WORDS = { good: "healthy", warn: "attention", bad: "trouble", idle: "not running" };
const ICONS = { bad: "icon-bad.svg", warn: "icon-warn.svg" };
const listeners = new Set();

// What is known: the last answer, and the points of all answers.
export const known = { told: null, tracks: new Map(), scalars: new Map(), clock: [], isPaused: false };
// Dead ranks that the user has dismissed, by loader; kept for the tab.
const dismissed = new Set(JSON.parse(sessionStorage.getItem("dismissed") ?? "[]"));
export const isDismissed = (one) => dismissed.has(`${one.host} ${one.pid} ${one.id}`);
export function dismiss(one) {
  dismissed.add(`${one.host} ${one.pid} ${one.id}`);
  sessionStorage.setItem("dismissed", JSON.stringify([...dismissed]));
  announce();
}

// Call back at every answer, and at once if there is one already.
export function listen(listener) {
  listeners.add(listener);
  if (known.told) listener(known);
}

let lastAsked = -Infinity;
let isAsking = false;
export async function beat() {
  if (isAsking || known.isPaused || (document.hidden && performance.now() - lastAsked < HIDDEN)) return;
  isAsking = true;
  lastAsked = performance.now();
  try {
    take(await ask("live", { after: known.told?.number }));
    announce();
  } catch {
    // The line at the top of the page tells.
  } finally {
    isAsking = false;
  }
}

export function start() {
  setInterval(beat, EVERY);
  document.addEventListener("visibilitychange", beat);
  return beat();
}

function take(told) {
  if (known.told && told.number < known.told.number) [known.clock, known.scalars] = [[], new Map()];
  told.loaders.sort((a, b) => a.rank - b.rank || a.id - b.id);
  known.told = told;
  known.tracks = new Map(told.loaders.map((one) => {
    const track = known.tracks.get(one.id) ?? new Track();
    track.add(one.points);
    return [one.id, track];
  }));
  for (const [name, points] of Object.entries(told.scalars)) {
    known.scalars.set(name, follow(known.scalars.get(name) ?? [], points, 0));
  }
  // When each step was: by the run, or else by what the training loop logs.
  const logged = [...known.scalars.values()].reduce((most, one) => one.length > most.length ? one : most, []);
  known.clock = told.clock ? follow(known.clock, told.clock, 1) : logged.map(([step, , time]) => [time, step]);
}

// Points with those that came, by their steps, which are in one place of each: a run that goes back to a checkpoint
// takes later ones with it.
function follow(kept, points, place) {
  for (const point of points) {
    while (kept.length && kept.at(-1)[place] >= point[place]) kept.pop();
    kept.push(point);
  }
  return kept.length > 8000 ? kept.filter((_, number) => number % 2 || number > 4000) : kept;
}

// The step at a time, or the time of a step (`from` 1, `to` 0), between the moments that are known; null outside.
export function translate(value, from = 0, to = 1) {
  const { clock } = known;
  if (clock.length < 2 || value < clock[0][from] || value > clock.at(-1)[from]) return null;
  let [low, high] = [0, clock.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (clock[middle][from] <= value) low = middle;
    else high = middle;
  }
  const [one, other] = [clock[low], clock[high]];
  return one[to] + (other[to] - one[to]) * (other[from] > one[from] ? (value - one[from]) / (other[from] - one[from]) : 0);
}

// The verdict, without the dead that were dismissed.
export function verdict() {
  const { verdict: given, loaders } = known.told;
  const dead = loaders.filter((one) => !one.is_past && ["gone", "silent"].includes(one.state));
  if (given.level !== "bad" || dead.some((one) => !isDismissed(one))) return given;
  return { ...given, level: given.ranks ? "warn" : "idle", words: `${given.ranks} of ${given.world_size} ranks run; the dead are dismissed.` };
}

let title = "tokenfeed";
export function setTitle(text) {
  title = text;
  announceTitle();
}

function announceTitle() {
  const level = known.told ? verdict().level : "idle";
  const mark = { bad: "✖ ", warn: "⚠ " }[level] ?? "";
  document.title = mark + title;
  const icon = document.getElementById("icon");
  const wanted = ICONS[level] ?? "icon.svg";
  if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
}

function announce() {
  const health = document.getElementById("health");
  const { level, words } = verdict();
  health.hidden = false;
  health.className = `pill ${level}`;
  if (health.textContent !== WORDS[level]) health.textContent = WORDS[level];
  health.title = words;
  const line = document.getElementById("progress");
  const { progress } = known.told;
  line.hidden = !progress;
  if (progress) line.textContent = tellProgress(progress);
  announceTitle();
  for (const listener of listeners) listener(known);
}

function tellProgress({ step, end_step: end, epoch, seconds_left: left }) {
  return [
    `step ${count(step)}${end ? ` of ${count(end)}` : ""}`,
    `epoch ${epoch.toFixed(2)}`,
    left ? `${duration(left)} left` : null,
  ].filter(Boolean).join(" · ");
}
