// The frame: the views, the one shown, the search box, light or dark.
import { ask, count, h } from "./dom.js";
import { showCompare } from "./compare.js";
import { showData } from "./data.js";
import { showNow } from "./now.js";
import { showPanel } from "./panel.js";
import { asCode, copyButton, go, href, read } from "./place.js";
import { showPlan } from "./plan.js";
import { beat, setTitle, start } from "./pulse.js";
import { showSample } from "./sample.js";
import { showText } from "./text.js";
import { showTrace } from "./trace.js";

const KINDS = { store: "store", run: "run", stats: "running loader", text: "folder of text" };
const VIEWS = [
  { id: "now", title: "Now", show: showNow, if: (subject) => subject.has_live },
  { id: "trace", title: "Trace", show: showTrace, if: (subject) => subject.has_run },
  { id: "text", title: "Text", show: showText, if: (subject) => subject.has_text },
  { id: "data", title: "Data", show: showData, if: (subject) => subject.has_store },
  { id: "sample", title: "Sample", show: showSample, if: (subject) => subject.has_store },
  { id: "plan", title: "Plan", show: showPlan, if: () => true },
  { id: "compare", title: "Compare", show: showCompare, if: (subject) => subject.has_run && subject.other },
];

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").textContent = isDark ? "☀" : "☾";
  document.dispatchEvent(new Event("themechange"));
  return isDark;
}

function startTheme() {
  let isDark = setTheme(localStorage.getItem("theme"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener(
    "change",
    () => (isDark = setTheme(localStorage.getItem("theme"))),
  );
  document.getElementById("theme").addEventListener("click", () => {
    const wanted = isDark ? "light" : "dark";
    localStorage.setItem("theme", wanted);
    isDark = setTheme(wanted);
  });
}

// Parameters that the panel shows; a view is not drawn again for them.
const PANEL = ["document", "of", "row"];
const withoutPanel = (given) => [...given].filter(([name]) => !PANEL.includes(name)).join("&");

function startViews(subject) {
  const views = VIEWS.filter((view) => view.if(subject));
  let shown = null;

  function follow() {
    const { view: wanted, given } = read();
    const current = views.find((view) => view.id === wanted) ?? views[0];
    for (const view of VIEWS) document.getElementById(view.id).hidden = view !== current;
    document.getElementById("nav").replaceChildren(
      ...views.map((view) =>
        h("a", { href: href(view.id), "aria-current": view === current ? "page" : null }, view.title)
      ),
    );
    setTitle(`${current.title} · ${subject.name} · tokenfeed`);
    // Sightings are on the timeline of Trace, and a row alone says which step.
    const marks = current.id === "trace" ? [given.get("document"), given.has("step") ? "" : given.get("row")] : "";
    const state = `${current.id} ${withoutPanel(given)} ${marks}`;
    if (state !== shown) current.show(document.getElementById(current.id), subject, given);
    shown = state;
    showPanel(subject);
  }

  addEventListener("hashchange", follow);
  follow();
  const copies = document.getElementById("copies");
  copies.hidden = false;
  copies.append(
    copyButton(h, "Copy link", () => location.href),
    copyButton(h, "Python", () => asCode(subject)[0]),
    copyButton(h, "Command", () => asCode(subject)[1]),
  );
}

function startSearch(subject) {
  const [form, input, choices] = ["search", "query", "choices"].map((id) => document.getElementById(id));
  form.hidden = !subject.has_run && !subject.has_store;
  const options = () => {
    const text = input.value.trim();
    const digits = /^(step|sample|doc|document)?\s*#?([\d,]+)$/i.exec(text);
    const number = digits ? Number(digits[2].replaceAll(",", "")) : null;
    const word = digits?.[1]?.toLowerCase();
    return [
      number !== null && subject.has_run && (!word || word === "step")
        ? [`Step ${count(number)}`, href("trace", { step: number, row: null, rank: null, first: null })]
        : null,
      number !== null && subject.has_run && word === "sample" ? [`Sample ${count(number)}`, href("trace", { row: number })] : null,
      number !== null && (!word || word.startsWith("doc"))
        ? [`Document ${count(number)}`, href(read().view || "data", { document: number })]
        : null,
      text && subject.has_store && !word ? [`Text “${text}”`, href("data", { q: text })] : null,
    ].filter(Boolean);
  };
  const offer = () => {
    const found = options();
    choices.hidden = !found.length || !form.contains(document.activeElement);
    choices.replaceChildren(...found.map(([label, to]) => h("a", { href: to, onclick: () => (choices.hidden = true) }, label)));
  };
  input.addEventListener("input", offer);
  input.addEventListener("focus", offer);
  form.addEventListener("focusout", () => setTimeout(() => form.contains(document.activeElement) || (choices.hidden = true), 150));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [first] = options();
    if (first) location.hash = first[1];
    choices.hidden = true;
  });
  addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape" && form.contains(event.target)) input.blur();
    if (isTyping || event.metaKey || event.ctrlKey || event.altKey) return;
    const views = VIEWS.filter((view) => view.if(subject));
    if (event.key === "/" && !form.hidden) {
      event.preventDefault();
      input.focus();
    } else if (views[Number(event.key) - 1]) go(views[Number(event.key) - 1].id, {});
  });
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});

// A run that has not begun: look again until it has.
async function waitForRun() {
  const found = await ask("subject").catch(() => null);
  if (found?.has_run) location.reload();
  else setTimeout(waitForRun, 2000);
}

// Take the token out of the address bar, so that bookmarks and copied addresses do not hold it: the tab keeps it.
const token = new URLSearchParams(location.search).get("token");
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
startTheme();
try {
  if (token) {
    sessionStorage.setItem("token", token);
    sessionStorage.setItem("token", (await ask("enter")).token);
  }
  const subject = await ask("subject");
  document.getElementById("loading").remove();
  document.getElementById("name").textContent = subject.name;
  document.getElementById("kind").textContent = KINDS[subject.kind];
  if (subject.has_live) start();
  startViews(subject);
  startSearch(subject);
  if (subject.kind === "run" && !subject.has_run) waitForRun();
  addEventListener("online", beat);
} catch (error) {
  document.getElementById("main").replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
}
document.documentElement.dataset.ready = "";
