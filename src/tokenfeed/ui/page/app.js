// The frame: the views, and the one shown.
import { ask, h } from "./dom.js";
import { showData } from "./data.js";
import { showNow } from "./now.js";
import { showPanel } from "./panel.js";
import { go, href, read } from "./place.js";
import { beat, setTitle, start } from "./pulse.js";
import { showSample } from "./sample.js";
import { showTrace } from "./trace.js";

const KINDS = { store: "store", run: "run", stats: "running loader" };
const VIEWS = [
  { id: "now", title: "Now", show: showNow, if: (subject) => subject.has_live },
  { id: "trace", title: "Trace", show: showTrace, if: (subject) => subject.has_run },
  { id: "data", title: "Data", show: showData, if: (subject) => subject.has_store },
  { id: "sample", title: "Sample", show: showSample, if: (subject) => subject.has_store },
];

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
  addEventListener("keydown", (event) => {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.metaKey || event.ctrlKey || event.altKey) return;
    const wanted = views[Number(event.key) - 1];
    if (wanted) go(wanted.id, {});
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
  if (subject.kind === "run" && !subject.has_run) waitForRun();
  addEventListener("online", beat);
} catch (error) {
  document.getElementById("main").replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
}
document.documentElement.dataset.ready = "";
