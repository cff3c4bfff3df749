// Search for documents by text in their payloads. The server searches for half a second, then is asked to continue.
import { ask, count, field, h, later, show } from "./dom.js";

// `given` returns the parameters of the request; `onpick` is called with the number of the chosen document.
export function documentSearch(given, onpick) {
  const place = h("div", { class: "found" });
  const input = h("input", { type: "search", placeholder: "part of a payload", style: { width: "26ch" } });

  const look = (first = 0) =>
    show(place, async () => {
      const text = input.value.trim();
      if (!text) return [];
      let found = { next: first };
      do found = await ask("search", { ...given(), text, first: found.next });
      while (input.value.trim() === text && !found.found.length && found.next < found.total);
      return results(found);
    });

  function results({ found, next, total }) {
    const hint = `${found.length ? "" : "Not found. "}${count(next)} of ${count(total)} documents searched. `;
    return [
      h(
        "div",
        { class: "cells", role: "group", "aria-label": "Documents found" },
        found.map((one) =>
          h(
            "button",
            { type: "button", class: "cell", onclick: () => onpick(one.document) },
            h("span", {}, `document ${count(one.document)}`),
            h("small", {}, typeof one.payload === "string" ? one.payload : JSON.stringify(one.payload)),
          )
        ),
      ),
      h(
        "p",
        { class: "hint" },
        hint,
        next < total ? h("button", { type: "button", onclick: () => look(next) }, "Continue") : null,
      ),
    ];
  }

  input.addEventListener("input", later(() => look(), 250));
  return { field: field("search for", input), place, look };
}
