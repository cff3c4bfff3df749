// Contents of a store, or of a source of the run: its documents as a table, their fields and lengths, and a search.
import { ask, bytes, card, count, decimal, facts, field, h, json, later, number, numberInput, pager, percent, s, select, short, show, table, tile } from "./dom.js";
import { documentLink } from "./panel.js";
import { go, href, keep } from "./place.js";

const PAGE = 20;

export function showData(section, subject, given) {
  const source = given.get("source") ?? "";
  return show(section, async () => {
    const [store, run] = await Promise.all([ask("store", { source }), subject.has_run ? ask("run") : null]);
    const names = run?.sources.map((one) => one.name) ?? [];
    const tables = store.spans.map((one) => one.name);
    const wanted = given.get("table") ?? (tables.includes("documents") ? "documents" : tables[0]);
    const looking = tables.length ? search(source, wanted, subject, given) : null;
    const ready = looking?.answered; // results of a search come first
    const summary = Promise.resolve(ready).then(() => tables.length ? ask("fields", { source, table: wanted }) : null);
    return [
      names.length > 1
        ? h("div", { class: "controls" }, field("source", select(names, source || names[0], (value) => go("data", { source: value, table: null, page: null, q: null }))))
        : null,
      tiles(store),
      looking?.element,
      tables.length ? documents(source, wanted, tables, given, summary) : null,
      h("div", { class: "grid" }, tables.length ? lengths(source, wanted, run, given, ready) : null, tables.length ? fields(summary) : null),
      columns(store),
      shards(source, store, ready),
      origin(subject, store),
    ];
  });
}

function tiles(store) {
  const columnBytes = store.columns.reduce((sum, column) => sum + column.bytes, 0);
  const spanBytes = store.spans.reduce((sum, one) => sum + one.index_bytes + one.payload_bytes, 0);
  return h(
    "div",
    { class: "tiles" },
    tile("items", short(store.items), count(store.items)),
    tile("shards", count(store.shards), store.splits.map((split) => `${split.name} ${count(split.shards)}`).join(" · ") || "no splits"),
    tile("columns", bytes(columnBytes), store.columns.map((column) => column.name).join(", ")),
    tile("spans", bytes(spanBytes), store.spans.map((one) => `${count(one.spans)} ${one.name}`).join(", ") || "none"),
  );
}

// Results appear as they come. A search may be stopped at any time; what was found stays.
function search(source, name, subject, given) {
  const input = h("input", { type: "search", id: "data-query", value: given.get("q") ?? "", placeholder: "part of a payload or text" });
  const places = subject.tokenizer ? ["anything", "payload", "text"] : ["payload"];
  const where = select(places, given.get("where") ?? places[0], () => look());
  where.id = "search-where";
  const told = h("p", { class: "hint", role: "status" });
  const bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Searched" });
  const stop = h("button", { type: "button", class: "small", hidden: true, onclick: () => turn++ }, "Stop");
  const list = h("ul", { class: "rowlist" });
  const more = h("button", { type: "button", hidden: true }, "Continue");
  let turn = 0;

  let answer;
  const answered = new Promise((resolve) => (answer = resolve));

  async function look(first = 0) {
    const [mine, text] = [++turn, input.value.trim()];
    keep({ q: text, where: where.value === places[0] ? null : where.value });
    if (!first) list.replaceChildren();
    told.textContent = more.hidden = "";
    more.hidden = true;
    if (!text) return;
    let [next, total, fresh] = [first, 1, 0];
    bar.hidden = stop.hidden = false;
    try {
      while (next < total && turn === mine && fresh < 20) {
        const found = await ask("search", { source, table: name, where: where.value, text, first: next });
        if (turn !== mine && input.value.trim() !== text) return;
        [next, total, fresh] = [found.next, found.total, fresh + found.found.length];
        list.append(...found.found.map((one) => result(one, text, source)));
        answer();
        bar.value = total ? next / total : 1;
        told.textContent = `${count(list.childElementCount)} found in ${count(next)} of ${count(total)} documents.`;
      }
    } catch (error) {
      told.textContent = error.message;
    }
    answer();
    bar.hidden = stop.hidden = true;
    if (next >= total && !list.childElementCount) told.textContent = `Not found in ${count(total)} documents.`;
    more.hidden = next >= total;
    more.onclick = () => look(next);
  }
  let timer;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 250);
  });
  if (input.value) look();
  else answer();
  const element = card("Search", h("div", { class: "controls" }, field("search for", input), field("in", where), stop), bar, told, list, more);
  return { element, answered };
}

const result = (one, text, source) =>
  h(
    "li",
    {},
    h("p", { class: "clip", dir: "auto" }, one.around ? marked(one.around, text) : marked(json(one.payload).replace(/\s+/g, " "), text)),
    h("small", {}, documentLink(one.document, source, `document ${count(one.document)}`), ` · ${count(one.items)} tokens`),
  );

function marked(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted.toLowerCase());
  if (at < 0) return text.slice(0, 300);
  const from = Math.max(0, at - 120);
  return [from ? "…" : "", text.slice(from, at), h("mark", {}, text.slice(at, at + wanted.length)), text.slice(at + wanted.length, at + 240)];
}

// A table of documents, sorted by any column and filtered by any field of the payloads.
function documents(source, name, tables, given, summary) {
  const place = h("div");
  const told = h("p", { class: "hint", role: "status" });
  const bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Read" });
  const state = { first: Number(given.get("page") ?? 0), sort: given.get("sort") ?? "document", filter: given.get("filter") ?? "" };
  let turn = 0;
  const load = () => {
    const mine = ++turn;
    return show(place, async () => {
      const fields = (await summary).fields;
      const content = (found) => documentTable(found, fields, source, state, draw);
      while (true) {
        const found = await ask("documents", { source, table: name, count: PAGE, ...state });
        if (mine !== turn) return null;
        bar.hidden = found.known >= found.most;
        bar.value = found.known / Math.max(1, found.most);
        told.textContent = tellKnown(found, state);
        if (bar.hidden) return content(found);
        if (found.documents.length) place.replaceChildren(...content(found)); // those that are known so far
      }
    });
  };
  const draw = (change) => {
    Object.assign(state, change);
    keep({ page: state.first || null, sort: state.sort === "document" ? null : state.sort, filter: state.filter });
    return load();
  };
  const filter = h("input", { type: "search", value: state.filter, placeholder: "score >= 0.5", "aria-describedby": "filter-hint", size: 26 });
  filter.addEventListener("input", later(() => draw({ filter: filter.value.trim(), first: 0 }), 400));
  load();
  return card(
    "Documents",
    h(
      "div",
      { class: "controls" },
      tables.length > 1 ? field("table", select(tables, name, (value) => go("data", { table: value, page: null, sort: null, filter: null }))) : null,
      field("filter", filter),
      h("small", { id: "filter-hint" }, "a field or tokens; one of = != < <= > >= ~ (contains); a value"),
    ),
    bar,
    told,
    place,
  );
}

function tellKnown({ known, most, total, matching }, { filter, sort }) {
  const isOwn = filter || !["document", "-document"].includes(sort);
  if (known < most) return `Reading the field: ${count(known)} of ${count(most)} documents.`;
  const of = isOwn && most < total ? `the first ${count(most)} of ${count(total)}` : count(total);
  return filter ? `${count(matching)} of ${of} documents.` : isOwn && most < total ? `Sorted: ${of} documents.` : "";
}

function documentTable(found, fields, source, state, draw) {
  const names = fields.map((one) => one.name).filter((one) => one !== "payload").slice(0, 6);
  const cell = (value) => h("span", { class: "snippet", dir: "auto" }, value === undefined || value === null ? "–" : typeof value === "number" ? number(value) : json(value).slice(0, 120));
  // A click sorts by the column, a second the other way round.
  const head = (label, key, detail) => {
    const [isUp, isDown] = [state.sort === key, state.sort === `-${key}`];
    const made = h("span", { class: "head" }, h("button", { type: "button", class: "sorter", onclick: () => draw({ sort: isUp ? `-${key}` : key, first: 0 }) }, label, isUp ? " ↑" : isDown ? " ↓" : ""), detail);
    made.sort = isUp ? "ascending" : isDown ? "descending" : null;
    return made;
  };
  const fieldHead = (one) => head(one.name, ["document", "tokens"].includes(one.name) ? `payload.${one.name}` : one.name, one.bins ? smallHistogram(one) : null);
  return [
    table(
      [head("document", "document"), head("tokens", "tokens"), "begins with", ...(names.length ? fields.filter((one) => names.includes(one.name)).map(fieldHead) : [fields.length ? head("payload", "payload") : "payload"])],
      found.documents.map((one) => [
        documentLink(one.document, source),
        count(one.items),
        cell(one.text),
        ...(names.length ? names.map((name) => cell(one.payload?.[name])) : [cell(one.payload)]),
      ]),
      { numbers: [0, 1], caption: "Documents" },
    ),
    pager("Pages of documents", { first: found.first, shown: found.documents.length, total: found.matching, size: PAGE }, (first) => draw({ first })),
  ];
}

function fields(summary) {
  const place = h("div", { class: "chart" });
  show(place, async () => {
    const found = await summary;
    if (!found.fields.length) return h("p", { class: "hint" }, "No payloads.");
    const value = (one, text) =>
      h("span", { class: "snippet", dir: "auto" }, text && text.length <= 64 ? h("a", { href: href("data", { filter: `${one.name} = ${text}`, page: null }) }, text) : text || "(empty)");
    return [
      h(
        "ul",
        { class: "fieldlist" },
        found.fields.map((one) =>
          h(
            "li",
            {},
            h("strong", {}, one.name),
            one.bins
              ? [smallHistogram(one), h("small", {}, `${number(one.least)} to ${number(one.most)}`)]
              : [
                h("ul", { class: "plain" }, one.values.map(([text, times]) => h("li", {}, value(one, text), h("small", {}, ` ${count(times)}`)))),
                h("small", {}, `${count(one.different)} different`),
              ],
          )
        ),
      ),
      h("p", { class: "hint" }, `From a sample of ${count(found.sampled)} documents.`),
    ];
  });
  return card("Payloads", place);
}

function smallHistogram({ bins, name }) {
  const most = Math.max(1, ...bins);
  return s(
    "svg",
    { viewBox: `0 0 ${bins.length} 10`, preserveAspectRatio: "none", role: "img", "aria-label": `Histogram of ${name}`, class: "smallbars" },
    bins.map((value, place) => s("rect", { x: place + 0.08, y: 10 - (10 * value) / most, width: 0.84, height: (10 * value) / most, class: "bar" })),
  );
}

function lengths(source, name, run, given, ready) {
  const place = h("div", { class: "chart" });
  const usual = run?.sources.find((one) => !source || one.name === source)?.view.length ?? 2048;
  const limit = Number(given.get("limit") ?? usual);
  let [found, drawn] = [null, 0];
  const picture = () => histogram(found, drawn = place.clientWidth);
  new ResizeObserver(() => found && place.clientWidth !== drawn && place.replaceChildren(...[picture()].flat())).observe(place);
  const draw = (length) =>
    show(place, async () => {
      await ready;
      found = await ask("lengths", { source, table: name, length });
      return picture();
    });
  draw(limit);
  return card(
    "Lengths of documents",
    field("row length", numberInput(limit, {
      min: 1,
      onchange: (value) => {
        keep({ limit: value });
        draw(value);
      },
    })),
    place,
  );
}

// Drawn as wide as its place, so that its letters keep their size.
function histogram(found, room) {
  if (!found.sampled) return h("p", { class: "hint" }, "This table has no spans.");
  const [width, height, low, left] = [Math.max(220, Math.min(620, room || 440)), 170, 34, 42];
  const most = Math.max(...found.bins.map((bin) => bin.count));
  const step = (width - left) / found.bins.length;
  const bars = found.bins.map((bin, place) => {
    const tall = (height - 10) * (bin.count / most);
    const label = `${count(bin.start)}${bin.stop - bin.start > 1 ? ` to ${count(bin.stop - 1)}` : ""} tokens: ${count(bin.count)}`;
    return s("rect", { x: left + place * step + 1, y: height - tall, width: Math.max(1, step - 2), height: tall, rx: Math.min(3, tall / 2), class: bin.start >= found.limit ? "bar over" : "bar" }, s("title", {}, label));
  });
  const every = Math.ceil(found.bins.length / 5);
  const labels = found.bins.filter((_, place) => place % every === 0).map((bin, place) =>
    s("text", { x: left + place * every * step + step / 2, y: height + 15, "text-anchor": "middle" }, short(bin.start))
  );
  return [
    h(
      "div",
      { class: "keepsize" },
      s(
        "svg",
        { viewBox: `0 0 ${width} ${height + low}`, role: "img", "aria-label": `Histogram of lengths, median ${decimal(found.median)} tokens` },
        s("line", { x1: left, x2: width, y1: height + 0.5, y2: height + 0.5, class: "axis" }),
        s("text", { x: left - 6, y: 16, "text-anchor": "end" }, short(most)),
        s("text", { x: left - 6, y: height, "text-anchor": "end" }, "0"),
        bars,
        labels,
        s("text", { x: width, y: height + 31, "text-anchor": "end" }, "tokens of a document"),
      ),
    ),
    facts([["shortest", count(found.shortest)], ["median", decimal(found.median)], ["mean", decimal(found.mean)], ["90%", decimal(found.p90)], ["longest", count(found.longest)]]),
    h("p", {}, h("b", {}, percent(found.longer)), ` are longer than a row of ${count(found.limit)}.`),
    h("p", { class: "hint" }, found.sampled === found.total ? `All ${count(found.total)} spans.` : `From a sample of ${count(found.sampled)} of ${count(found.total)} spans.`),
  ];
}

function columns(store) {
  return h(
    "div",
    { class: "grid" },
    card("Columns", table(["name", "each item", "size"], store.columns.map((one) => [h("code", {}, one.name), h("code", {}, one.dtype), bytes(one.bytes)]), { numbers: [2], caption: "Columns" })),
    store.spans.length
      ? card(
        "Span tables",
        table(
          ["name", "codec", "spans", "mean items", "index", "payloads"],
          store.spans.map((one) => [h("code", {}, one.name), one.codec ?? "no payloads", count(one.spans), decimal(one.mean_items), bytes(one.index_bytes), (one.payload_is_exact ? "" : "about ") + bytes(one.payload_bytes)]),
          { numbers: [2, 3, 4, 5], caption: "Span tables" },
        ),
      )
      : null,
  );
}

function shards(source, store, ready) {
  const place = h("div");
  const tables = store.spans.map((one) => one.name);
  const draw = (first) =>
    show(place, async () => {
      await ready;
      const page = await ask("shards", { source, first, count: PAGE });
      return [
        table(
          ["", "shard", "split", "first item", "items", ...tables, "size"],
          page.shards.map((shard) => [count(shard.number), h("code", {}, shard.name), shard.split ?? "–", count(shard.first_item), count(shard.items), ...tables.map((name) => count(shard.spans[name])), bytes(shard.bytes)]),
          { numbers: [0, 3, 4, ...tables.map((_, place) => 5 + place), 5 + tables.length], caption: "Shards" },
        ),
        pager("Pages of shards", { first: page.first, shown: page.shards.length, total: page.total, size: PAGE }, draw),
      ];
    });
  draw(0);
  return card("Shards", place);
}

function origin(subject, store) {
  return card(
    "Origin",
    facts([
      ["identity", h("code", {}, store.identity ?? "empty")],
      ["tokenizer", h("code", {}, store.tokenizer ?? "not recorded")],
      ...(subject.tokenizer ? [["decoded with", h("code", {}, subject.tokenizer.digest)]] : []),
    ]),
    Object.keys(store.provenance).length ? h("pre", { tabindex: "0", "aria-label": "Provenance" }, JSON.stringify(store.provenance, null, 2)) : null,
  );
}
