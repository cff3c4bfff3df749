// A store, or a source of the run: a page of its documents, what packing wastes by row length, and its origin.
import { ask, card, count, facts, field, h, json, number, numberInput, pager, percent, s, select, short, show, table, tile } from "./dom.js";
import { documentLink } from "./panel.js";
import { go, keep } from "./place.js";

const PAGE = 20;
const MOST_FIELDS = 6;

export function showData(section, subject, given) {
  const source = given.get("source") ?? "";
  return show(section, async () => {
    const [store, run] = await Promise.all([ask("store", { source }), subject.has_run ? ask("run") : null]);
    const names = run?.sources.map((one) => one.name) ?? [];
    const tables = store.spans.map((one) => one.name);
    const wanted = given.get("table") ?? (tables.includes("documents") ? "documents" : tables[0]);
    const own = run?.sources.find((one) => !source || one.name === source)?.view.length;
    return [
      names.length > 1
        ? h("div", { class: "controls" }, field("source", select(names, source || names[0], (value) => go("data", { source: value, table: null, page: null }))))
        : null,
      tiles(store),
      tables.length ? documents(source, wanted, tables, Number(given.get("page") ?? 0)) : null,
      tables.length ? packing(source, wanted, own) : null,
      origin(subject, store),
    ];
  });
}

const tiles = (store) =>
  h(
    "div",
    { class: "tiles" },
    tile("items", short(store.items), count(store.items)),
    tile("shards", count(store.shards), store.splits.map((split) => `${split.name} ${count(split.shards)}`).join(" · ") || "no splits"),
    tile("columns", count(store.columns.length), store.columns.map((one) => `${one.name} ${one.dtype}`).join(", ")),
    tile("spans", short(store.spans.reduce((sum, one) => sum + one.spans, 0)), store.spans.map((one) => `${count(one.spans)} ${one.name}`).join(", ") || "none"),
  );

function documents(source, name, tables, page) {
  const place = h("div");
  const first = numberInput(page, { id: "first-document", width: "14ch", onchange: (value) => draw(Number(value)) });
  const load = (wanted) => show(place, async () => documentTable(await ask("documents", { source, table: name, first: wanted, count: PAGE }), source, turn));
  const draw = (wanted) => {
    keep({ page: wanted || null });
    return load(wanted);
  };
  const turn = (wanted) => {
    first.value = wanted;
    return draw(wanted);
  };
  load(page);
  return card(
    "Documents",
    h(
      "div",
      { class: "controls" },
      tables.length > 1 ? field("table", select(tables, name, (value) => go("data", { table: value, page: null }))) : null,
      field("from document", first),
    ),
    place,
  );
}

function documentTable(found, source, turn) {
  const objects = found.documents.map((one) => one.payload).filter((one) => one !== null && typeof one === "object" && !Array.isArray(one));
  const names = [...new Set(objects.flatMap(Object.keys))].slice(0, MOST_FIELDS);
  const cell = (value) => h("span", { class: "snippet", dir: "auto" }, value === undefined || value === null ? "–" : typeof value === "number" ? number(value) : json(value).slice(0, 120));
  if (!found.documents.length) return h("p", { class: "hint" }, `There are ${count(found.total)} documents.`);
  return [
    table(
      ["document", "tokens", "begins with", ...(names.length ? names : ["payload"])],
      found.documents.map((one) => [
        documentLink(one.document, source),
        count(one.items),
        cell(one.text),
        ...(names.length ? names.map((name) => cell(one.payload?.[name])) : [cell(one.payload)]),
      ]),
      { numbers: [0, 1], caption: "Documents" },
    ),
    pager("Pages of documents", { first: found.first, shown: found.documents.length, total: found.total, size: PAGE }, turn),
  ];
}

function packing(source, name, own) {
  const place = h("div");
  show(place, async () => {
    const found = await ask("packing", { source, table: name, length: own });
    if (!found.lengths.length) return h("p", { class: "hint" }, "Too few documents to tell.");
    return [
      table(
        ["row length", "wasted by packing", "wasted by padding", "documents longer than a row"],
        found.lengths.map((one) => [
          one.length === own ? h("strong", {}, `${count(one.length)}, that of the run`) : count(one.length),
          waste(1 - one.used),
          waste(1 - one.used_padded),
          percent(one.longer / Math.max(1, found.documents)),
        ]),
        { numbers: [3], caption: "Waste by row length" },
      ),
      h("p", { class: "hint" }, `From ${count(found.documents)} of ${count(found.total)} documents. \`tokenfeed pack\` makes the rows of all.`),
    ];
  });
  return card("Packing", place);
}

const waste = (share) =>
  h("span", { class: "waste" }, s("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { width: 100, height: 8, class: "empty" }), s("rect", { width: 100 * share, height: 8, class: "bar" })), percent(share));

const origin = (subject, store) =>
  card(
    "Origin",
    facts([
      ["identity", h("code", {}, store.identity ?? "empty")],
      ["tokenizer", h("code", {}, store.tokenizer ?? "not recorded")],
      ...(subject.tokenizer ? [["decoded with", h("code", {}, subject.tokenizer.digest)]] : []),
    ]),
    Object.keys(store.provenance).length ? h("pre", { tabindex: "0", "aria-label": "Provenance" }, JSON.stringify(store.provenance, null, 2)) : null,
  );
