import { h } from "./dom.js";

// The cursor: every selection is in the address, `#/view?name=value`, so that a link shows what the sender saw.

// Selections that go along from view to view.
const CURSOR = ["source", "step", "row", "document", "of"];

export function read() {
  const [view, query] = location.hash.slice(2).split("?");
  return { view, given: new URLSearchParams(query) };
}

function write(view, given, change) {
  const wanted = new URLSearchParams(given);
  for (const [name, value] of Object.entries(change)) {
    if (value === null || value === undefined || value === "") wanted.delete(name);
    else wanted.set(name, value);
  }
  return `#/${view}${wanted.size ? `?${wanted}` : ""}`;
}

// The address of a view, with the cursor as it is but for the change.
export function href(view, change = {}) {
  const { view: current, given } = read();
  const kept = view === current ? given : [...given].filter(([name]) => CURSOR.includes(name));
  return write(view, kept, change);
}

// Select something: a new entry in the history, and the page follows.
export const go = (view, change) => (location.hash = href(view, change));

// Note a change that is on the screen already.
export function keep(change) {
  const { view, given } = read();
  history.replaceState(null, "", write(view, given, change));
}

// Text into the clipboard, as the button tells for a moment.
export const copyButton = (label, text) =>
  h("button", {
    type: "button",
    class: "small",
    title: text,
    onclick: async (event) => {
      const button = event.currentTarget;
      await navigator.clipboard.writeText(text).then(() => button.textContent = "Copied", () => prompt(label, text));
      setTimeout(() => button.textContent = label, 1200);
    },
  }, label);
