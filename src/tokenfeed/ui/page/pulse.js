// The heartbeat: asks how the run is, every second while somebody looks, and tells the header, the title and the icon.
import { ask, count, duration } from "./dom.js";
import { Track } from "./track.js";

const [EVERY, HIDDEN] = [1000, 10_000];
const WORDS = { good: "healthy", warn: "attention", bad: "trouble", idle: "not running" };
const ICONS = { bad: "icon-bad.svg", warn: "icon-warn.svg" };
const listeners = new Set();

// What is known: the last answer, and the points of all answers.
export const known = { told: null, tracks: new Map(), gpus: new Map(), scalars: new Map(), isPaused: false };
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
  if (known.told && told.number < known.told.number) known.scalars.clear();
  const add = (tracks, key, points) => {
    const track = tracks.get(key) ?? new Track();
    track.add(points);
    return [key, track];
  };
  told.loaders.sort((a, b) => a.rank - b.rank || a.id - b.id);
  known.told = told;
  known.tracks = new Map(told.loaders.map((one) => add(known.tracks, one.id, one.points)));
  known.gpus = new Map(told.gpus.map((one) => add(known.gpus, `${one.host} ${one.index}`, one.points)));
  for (const [name, points] of Object.entries(told.scalars)) {
    const kept = known.scalars.get(name) ?? [];
    for (const point of points) {
      while (kept.length && kept.at(-1)[0] >= point[0]) kept.pop(); // the run went back to a checkpoint
      kept.push(point);
    }
    known.scalars.set(name, kept.length > 8000 ? kept.filter((_, place) => place % 2 || place > 4000) : kept);
  }
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

export function tellProgress({ step, end_step: end, epoch, seconds_left: left }) {
  return [
    `step ${count(step)}${end ? ` of ${count(end)}` : ""}`,
    `epoch ${epoch.toFixed(2)}`,
    left ? `${duration(left)} left` : null,
  ].filter(Boolean).join(" · ");
}
