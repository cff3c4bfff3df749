// The side panel: the selected row and document, as text, with its payload as fields and every time it is seen.
import { ask, colour, count, facts, h, payload, show, texts } from "./dom.js";
import { copyButton, go, href, read } from "./place.js";

const place = () => document.getElementById("panel");
let shown = null;

// Show what the address selects; nothing if it selects nothing.
export function showPanel(subject) {
  const { given } = read();
  const row = subject.has_run ? given.get("row") : null;
  const wanted = given.has("document") || row !== null ? `${given.get("of")} ${given.get("document")} ${row}` : null;
  place().hidden = wanted === null;
  for (const link of document.querySelectorAll("[data-row]")) link.setAttribute("aria-current", String(link.dataset.row === row));
  if (wanted !== shown && wanted !== null) {
    place().replaceChildren();
    show(place(), async () => [
      ...(given.has("document") ? await describe(subject, Number(given.get("document")), given.get("of") ?? "") : []),
      ...(row === null ? [] : await describeRow(row).catch((error) => [h("p", { class: "problem" }, error.message)])),
    ]);
  }
  shown = wanted;
}

// A link to something else that is selected: the address may have changed since it was drawn.
const link = (change, text, more) =>
  h("a", {
    ...more,
    href: href(read().view || "data", change),
    onclick: (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      go(read().view || "data", change);
    },
  }, text);
export const documentLink = (number, source, text) => link({ document: number, of: source }, text ?? count(number));
export const rowLink = (sample) =>
  link({ row: sample }, count(sample), { "data-row": sample, "aria-current": String(read().given.get("row") === String(sample)) });

const panelHead = (title, detail, change) =>
  h(
    "div",
    { class: "panelhead" },
    h("h2", {}, title, h("small", {}, detail)),
    h("button", { type: "button", "aria-label": "Close", onclick: () => go(read().view, change) }, "×"),
  );

// What of a view the address of a sample needs.
function sampleAddress(view, index, source) {
  const wanted = { view: view.kind, index, source: source || null, offset: null, table: view.kind === "windows" ? null : view.table ?? null };
  return view.kind === "documents" ? { ...wanted, length: null } : { ...wanted, length: view.length };
}

// A row of the run: where it is, its text, and its documents.
async function describeRow(wanted) {
  const { step, rows: [row] } = await ask("trace", { sample: wanted });
  const address = sampleAddress(row.view, row.index, row.source);
  const sample = await ask("sample", address);
  const spans = (sample.spans[row.view.table ?? "documents"] ?? Object.values(sample.spans)[0])?.spans ?? [];
  return [
    panelHead(`Sample ${count(row.sample)}`, row.source ? ` of ${row.source}` : "", { row: null }),
    facts([["step", h("a", { href: href("trace", { step }) }, count(step))], ["rank", count(row.rank)], ["row", count(row.row)], ["epoch", count(row.epoch)]]),
    h("p", { class: "excerpt", dir: "auto", tabindex: "0" }, texts(sample.tokens).join("").slice(0, 4000)),
    h("ul", { class: "sources" }, spans.slice(0, 40).map((span) =>
      h("li", {}, h("i", { class: `dot ${colour(span.number)}` }), " ", documentLink(span.number, row.source, `document ${count(span.number)}`), h("small", {}, ` ${count(span.stop - span.start)} tokens here`))
    )),
    h("p", {}, h("a", { href: href("sample", address) }, "Token by token")),
  ];
}

async function describe(subject, number, source) {
  const asked = subject.has_run ? ask("find", { document: number, source }).catch((error) => ({ error })) : null;
  const sample = await ask("sample", { view: "documents", index: number, source }).catch((error) => ({ error }));
  const found = await asked;
  return [
    panelHead(`Document ${count(number)}`, source ? ` of ${source}` : "", { document: null, of: null }),
    ...(sample.error ? [h("p", { class: "problem" }, sample.error.message)] : content(subject, sample, number, source)),
    ...(found ? sightings(found) : []),
    subject.has_run ? skip(number, source) : null,
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

// When something was seen, and is planned to be.
export function sightings(found) {
  if (found.error) return [h("p", { class: "hint" }, found.error.message)];
  if (!found.total) return [h("h3", {}, "Never seen"), h("p", { class: "hint" }, found.why)];
  const past = found.total - found.num_planned;
  const within = `in ${count(found.epochs)} epoch${found.epochs === 1 ? "" : "s"}`;
  return [
    h("h3", {}, `Seen ${count(past)} time${past === 1 ? "" : "s"}, planned ${count(found.num_planned)} more`),
    h("p", { class: "hint" }, `${within}${found.index === undefined ? "; a row that holds a part of it counts" : ""}.`),
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

function skip(number, source) {
  const named = source ? `, source="${source}"` : "";
  const amendment = "loader.load_state_dict(state)  # a checkpoint from before\n" +
    `loader.amend(skip=tokenfeed.Skip(documents=[${number}]${named}, mask=True))`;
  return h("p", {}, copyButton("Skip this: copy the amendment", amendment));
}
