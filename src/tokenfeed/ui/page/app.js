// The frame: the list of sections, the one shown, light or dark.
import { ask, h } from "./dom.js";
import { showLive } from "./live.js";
import { showOrder } from "./order.js";
import { showOverview } from "./overview.js";
import { showPacking } from "./packing.js";
import { showRun } from "./run.js";
import { showSamples } from "./samples.js";
import { showText } from "./text.js";

const KINDS = { store: "store", run: "run", stats: "running loader", text: "folder of text" };
const SECTIONS = [
  { id: "run", title: "Run", show: showRun, if: (subject) => subject.has_run },
  { id: "live", title: "Live", show: showLive, if: (subject) => subject.has_live },
  { id: "overview", title: "Overview", show: showOverview, if: (subject) => subject.has_store },
  { id: "text", title: "Text to batch", show: showText, if: (subject) => subject.has_text },
  { id: "samples", title: "Samples", show: showSamples, if: (subject) => subject.has_store },
  { id: "packing", title: "Packing", show: showPacking, if: (subject) => subject.has_store },
  { id: "order", title: "Order", show: showOrder, if: () => true },
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

function startSections(subject) {
  const sections = SECTIONS.filter((section) => section.if(subject));
  const shown = new Set();
  const links = sections.map((section) => h("a", { href: `#/${section.id}` }, section.title));
  document.getElementById("nav").replaceChildren(...links);

  function go() {
    const [wanted, query] = location.hash.slice(2).split("?");
    const current = sections.find((section) => section.id === wanted) ?? sections[0];
    sections.forEach((section, place) => {
      const isCurrent = section === current;
      document.getElementById(section.id).hidden = !isCurrent;
      if (isCurrent) links[place].setAttribute("aria-current", "page");
      else links[place].removeAttribute("aria-current");
    });
    document.title = `${current.title} · ${subject.name} · tokenfeed`;
    const parameters = new URLSearchParams(query);
    if (!shown.has(current.id) || [...parameters].length) {
      shown.add(current.id);
      current.show(document.getElementById(current.id), subject, parameters);
    }
  }

  addEventListener("hashchange", go);
  go();
}

// Take the token out of the address bar, so that bookmarks and copied addresses do not hold it: the tab keeps it.
const given = new URLSearchParams(location.search).get("token");
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
startTheme();
try {
  if (given) {
    sessionStorage.setItem("token", given);
    sessionStorage.setItem("token", (await ask("enter")).token);
  }
  const subject = await ask("subject");
  document.getElementById("name").textContent = subject.name;
  document.getElementById("kind").textContent = KINDS[subject.kind];
  startSections(subject);
} catch (error) {
  document.getElementById("main").replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
}
document.documentElement.dataset.ready = "";
