// The side panel: the selected document, its payload as fields, its text, and every time it was or will be seen.
import { ask, count, facts, h, payload, show, texts } from "./dom.js";
import { copyButton, go, href, read } from "./place.js";

const place = () => document.getElementById("panel");
let shown = null;

// Show what the address selects; nothing if it selects nothing.
export function showPanel(subject) {
  const { given } = read();
  const wanted = given.has("document") ? `${given.get("of") ?? ""} ${given.get("document")}` : null;
  place().hidden = wanted === null;
  if (wanted === shown || wanted === null) {
    shown = wanted;
    return;
  }
  shown = wanted;
  place().replaceChildren();
  show(place(), () => describe(subject, Number(given.get("document")), given.get("of") ?? ""));
}

// A link that selects a document, wherever it stands.
export const documentLink = (number, source, text) =>
  h("a", {
    href: href(read().view || "data", { document: number, of: source }),
    onclick: (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault(); // the address may have changed since this was drawn
      go(read().view || "data", { document: number, of: source });
    },
  }, text ?? count(number));

async function describe(subject, number, source) {
  const asked = subject.has_run ? ask("find", { document: number, source }).catch((error) => ({ error })) : null;
  const sample = await ask("sample", { view: "documents", index: number, source }).catch((error) => ({ error }));
  const found = await asked;
  return [
    h(
      "div",
      { class: "panelhead" },
      h("h2", {}, `Document ${count(number)}`, source ? h("small", {}, ` of ${source}`) : null),
      h("button", {
        type: "button",
        class: "quiet",
        "aria-label": "Close",
        onclick: () => go(read().view, { document: null, of: null }),
      }, "×"),
    ),
    ...(sample.error ? [h("p", { class: "problem" }, sample.error.message)] : content(subject, sample, number, source)),
    ...(found ? sightings(found) : []),
    subject.has_run ? skip(subject, found, number, source) : null,
  ];
}

function content(subject, sample, number, source) {
  const span = Object.values(sample.spans).flatMap((one) => one.spans).find((one) => one.number === number);
  const text = texts(sample.tokens).join("");
  return [
    payload(span?.payload),
    facts([
      ["tokens", count(sample.items)],
      ["shard", sample.places[0]?.shard ?? "–"],
    ]),
    h("p", { class: "excerpt", dir: "auto", tabindex: "0" }, text.slice(0, 1200), text.length > 1200 ? " …" : null),
    h(
      "p",
      {},
      h("a", { href: href("sample", { view: "documents", index: number, source, offset: null }) }, "Token by token"),
    ),
  ];
}

function sightings(found) {
  if (found.error) return [h("p", { class: "hint" }, found.error.message)];
  if (!found.total) return [h("h3", {}, "Never seen"), h("p", { class: "hint" }, found.why)];
  const past = found.total - found.num_planned;
  const within = `in ${count(found.epochs)} epoch${found.epochs === 1 ? "" : "s"}`;
  return [
    h("h3", {}, `Seen ${count(past)} time${past === 1 ? "" : "s"}, planned ${count(found.num_planned)} more`),
    h("p", { class: "hint" }, `${within}; a row that holds a part of it counts.`),
    h(
      "ul",
      { class: "seen" },
      found.seen.slice(0, 60).map((one) =>
        h(
          "li",
          { class: one.planned ? "planned" : "" },
          h(
            "a",
            { href: href("trace", { step: one.step, row: one.sample, rank: null, first: null }) },
            `step ${count(one.step)}`,
          ),
          h("small", {}, ` rank ${one.rank} · epoch ${one.epoch}${one.planned ? " · planned" : ""}`),
        )
      ),
      found.total > 60 ? h("li", {}, h("small", {}, `and ${count(found.total - 60)} more`)) : null,
    ),
  ];
}

function skip(subject, found, number, source) {
  const named = source ? `, source="${source}"` : "";
  const command = `tokenfeed find ${subject.name} --document ${number}${source ? ` --source ${source}` : ""}`;
  const python = `tokenfeed.Run("${subject.name}").find(${number}${named})`;
  const amendment = `plan = tokenfeed.Run("${subject.name}").plan().amend(\n` +
    `    state["samples"], skip=tokenfeed.Skip(documents=[${number}]${named})\n)  # Loader(plan, …), load_state_dict(state)`;
  return h(
    "div",
    { class: "copies", role: "group", "aria-label": "Copy" },
    copyButton(h, "Copy link", () => location.href),
    copyButton(h, "Copy Python", python),
    copyButton(h, "Copy command", command),
    copyButton(h, "Skip this: copy the amendment", amendment),
  );
}
