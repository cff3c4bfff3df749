// One sample: as text or token by token, coloured by the spans of a table, with its loss mask, and when it is seen.
import { ask, card, colour, count, facts, field, h, number, numberInput, payload, s, segments, select, show, table, texts } from "./dom.js";
import { documentLink, sightings } from "./panel.js";
import { go, keep } from "./place.js";

const SHOWN = ["text", "tokens"];

export function showSample(section, subject, given) {
  const source = given.get("source") ?? "";
  return show(section, async () => {
    const [store, run] = await Promise.all([ask("store", { source }), subject.has_run ? ask("run") : null]);
    const tables = store.spans.map((one) => one.name);
    const own = run?.sources.find((one) => !source || one.name === source)?.view;
    const state = {
      source,
      view: given.get("view") ?? own?.kind ?? "windows",
      index: Number(given.get("index") ?? 0),
      length: Number(given.get("length") ?? own?.length ?? 256),
      table: given.get("table") ?? (tables.includes("documents") ? "documents" : tables[0] ?? ""),
      offset: Number(given.get("offset") ?? 0),
      as: SHOWN.includes(given.get("as")) ? given.get("as") : subject.tokenizer ? "text" : "tokens",
      by: given.get("by") ?? "",
      loss: given.get("loss") ?? "shown",
      token: Number(given.get("token") ?? 0),
    };
    return browser(subject, state, tables, run, own);
  });
}

function browser(subject, state, tables, run, own) {
  const place = h("div", { class: "sample" });
  const total = h("span", { class: "hint", id: "sample-total" });
  const index = numberInput(state.index, { width: "14ch", onchange: (value) => change({ index: Number(value), offset: 0, token: 0 }) });
  const length = numberInput(state.length, { min: 1, onchange: (value) => change({ length: Number(value), index: 0, offset: 0 }) });
  const lengthField = field("length", length);
  const views = tables.length ? ["windows", "documents", "packed"] : ["windows"];
  const names = run?.sources.map((one) => one.name) ?? [];
  const tableField = field("table", select(tables, state.table, (value) => change({ table: value, index: 0, offset: 0 })));
  let samples = Infinity;

  function change(wanted) {
    Object.assign(state, wanted);
    state.index = Math.max(0, Math.min(state.index, samples - 1));
    keep({
      view: state.view,
      index: state.index,
      length: state.view === "documents" ? null : state.length,
      table: state.view === "windows" ? null : state.table,
      offset: state.offset || null,
      as: state.as,
      by: state.by,
      loss: state.loss === "shown" ? null : state.loss,
      token: state.token || null,
    });
    draw();
  }

  function draw() {
    if (document.activeElement !== index) index.value = state.index;
    lengthField.hidden = state.view === "documents";
    tableField.hidden = state.view === "windows" || tables.length < 2;
    const hadFocus = place.contains(document.activeElement);
    return show(place, async () => {
      const sample = await ask("sample", asked(state));
      samples = sample.samples;
      index.max = samples - 1;
      total.textContent = `of ${count(samples)}`;
      return [...body(subject, state, sample, change), seen(state, own)];
    }).then(() => hadFocus && place.querySelector(".tokens")?.focus());
  }

  const choose = (wanted) => {
    samples = Infinity;
    change({ index: 0, offset: 0, token: 0, ...wanted });
  };
  const move = (by) => () => change({ index: state.index + by, offset: 0, token: 0 });
  const controls = h(
    "div",
    { class: "controls", role: "group", "aria-label": "Which sample" },
    names.length > 1 ? field("source", select(names, state.source || names[0], (value) => go("sample", { source: value, index: null, offset: null, token: null }))) : null,
    field("sample is", select(views, state.view, (value) => choose({ view: value }))),
    lengthField,
    tableField,
    h(
      "div",
      { class: "stepper" },
      h("button", { type: "button", onclick: move(-1), "aria-label": "Previous sample", title: "Previous sample (Page up)" }, "←"),
      field("number", index),
      total,
      h("button", { type: "button", onclick: move(1), "aria-label": "Next sample", title: "Next sample (Page down)" }, "→"),
      h("button", { type: "button", onclick: () => change({ index: Math.floor(Math.random() * Math.min(samples, 2 ** 52)), offset: 0, token: 0 }) }, "Any"),
    ),
  );
  place.addEventListener("keydown", (event) => {
    if (event.key === "PageDown" || event.key === "PageUp") {
      event.preventDefault();
      move(event.key === "PageDown" ? 1 : -1)();
    }
  });
  draw();
  return [card(null, controls), place];
}

const asked = ({ source, view, index, length, table, offset }) => ({ source, view, index, length, table, offset });

function body(subject, state, sample, change) {
  const names = Object.keys(sample.spans);
  const usual = state.view === "windows" ? (names.includes("documents") ? "documents" : names[0]) : state.table;
  const choices = [...names, "none"];
  const by = choices.includes(state.by) ? state.by : usual ?? "none";
  const bars = [...names.map((name) => spanBar(name, sample, (span) => light(span, name))), sample.loss ? lossBar(sample) : null];
  const detail = h("div", { class: "card detail", "aria-live": "polite", role: "region", "aria-label": "The token" });
  const tokens = tokenList(subject, sample, state, by, usual);
  const boxes = tokens.boxes;
  let active = -1;

  function light(span, name) {
    boxes.forEach((box, place) => box.classList.toggle("lit", Boolean(span) && place >= span.start && place < span.stop));
    if (span) detail.replaceChildren(...spanDetail(span, name, state, sample).flat().filter(Boolean));
  }

  function activate(place, { quiet = false } = {}) {
    if (!boxes.length) return;
    boxes[active]?.classList.remove("active");
    boxes[active]?.removeAttribute("aria-selected");
    active = Math.max(0, Math.min(place, boxes.length - 1));
    const box = boxes[active];
    box.classList.add("active");
    box.setAttribute("aria-selected", "true");
    tokens.element.setAttribute("aria-activedescendant", box.id);
    if (!quiet) box.scrollIntoView({ block: "nearest" });
    detail.replaceChildren(...tokenDetail(sample, active, subject, state));
  }

  const note = () => {
    state.token = Math.max(0, active);
    keep({ token: state.token || null });
  };
  tokens.element.addEventListener("pointerover", (event) => event.target.dataset?.place && activate(Number(event.target.dataset.place), { quiet: true }));
  tokens.element.addEventListener("click", note);
  tokens.element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (step) {
      event.preventDefault();
      activate(active + step);
      note();
    }
  });
  activate(Math.min(state.token, boxes.length - 1), { quiet: true });
  const main = card(
    null,
    h(
      "div",
      { class: "controls" },
      segments("Shown as", SHOWN, state.as, (as) => change({ as })),
      names.length ? field("colour by", select(choices, by, (value) => change({ by: value }))) : null,
      sample.loss ? field("loss mask", select(["shown", "hidden"], state.loss, (loss) => change({ loss }))) : null,
    ),
    bars,
    sample.primary ? tokens.element : h("p", { class: "hint" }, "The store has no column of single numbers."),
    pager(state, sample, change),
    h("p", { class: "legend" }, legend(sample, state, usual)),
  );
  return [
    h("div", { class: "split" }, main, detail),
    card(
      "Where it lies",
      table(
        ["shard", "items"],
        sample.places.map((place) => [h("code", {}, place.shard), `${count(place.start)} to ${count(place.stop)}`]),
        { caption: "Where it lies" },
      ),
    ),
  ];
}

const legend = (sample, state, usual) => [
  usual ? h("span", {}, h("i", { class: "mark begins" }), ` ${usual} begin${state.view === "packed" ? ": positions start at 0 again" : ""}`) : null,
  sample.loss
    ? h("span", {}, h("s", {}, "struck out"), `: not learned, ${count(sample.loss.filter((one) => !one).length)} of ${count(sample.loss.length)}`)
    : h("span", {}, "every item after the first is learned"),
];

// When this very sample is seen: known where it is one of the run's own.
function seen(state, own) {
  const isOwn = own?.kind === state.view && (state.view === "documents" || own.length === state.length) && (state.view === "windows" || (own.table ?? "documents") === state.table);
  if (!isOwn) return null;
  const place = h("div");
  show(place, async () => sightings(await ask("find", { source: state.source, index: state.index })));
  return card("When is this seen?", place);
}

function pager(state, sample, change) {
  if (sample.items <= sample.tokens.length) return null;
  const stop = state.offset + sample.tokens.length;
  return h(
    "div",
    { class: "pager" },
    h("span", {}, `items ${count(state.offset)} to ${count(stop)} of ${count(sample.items)}`),
    h("button", { type: "button", disabled: state.offset === 0, onclick: () => change({ offset: Math.max(0, state.offset - 4096), token: 0 }) }, "Earlier"),
    h("button", { type: "button", disabled: stop >= sample.items, onclick: () => change({ offset: state.offset + 4096, token: 0 }) }, "Later"),
  );
}

// Tokens one after the other: as text that flows and breaks as it was written, or each in a box with its number.
function tokenList(subject, sample, state, by, usual) {
  const isText = state.as === "text" && subject.tokenizer;
  const spans = by === "none" ? [] : sample.spans[by].spans;
  const owner = new Array(sample.tokens.length).fill(null);
  spans.forEach((span) => owner.fill(span.number, span.start, Math.min(span.stop, owner.length)));
  const begins = new Set((usual ? sample.spans[usual].spans : []).map((span) => span.start));
  const flowing = isText ? texts(sample.tokens) : [];
  const boxes = sample.tokens.map(([id, text, kind], place) => {
    const written = isText ? flowing[place] : text;
    const box = h("span", {
      class: ["token", owner[place] === null ? "" : colour(owner[place]), ["", "special", isText ? "" : "partial"][kind], begins.has(place) && place ? "begins" : "", state.loss === "shown" && sample.loss?.[place] === 0 ? "unlearned" : ""].join(" "),
      id: `token-${place}`,
      role: "option",
      "data-place": place,
      "aria-label": written.trim() || (!isText && text === "") ? null : JSON.stringify(text),
      dir: isText ? null : "auto",
    });
    box.textContent = isText ? written : text === "" ? number(id) : text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t");
    return box;
  });
  const padding = sample.padding ? h("span", { class: "padding" }, `${count(sample.padding)} padding`) : null;
  const element = h(
    "div",
    { class: `tokens ${isText ? "flow" : "boxed"}`, dir: isText ? "auto" : null, tabindex: "0", role: "listbox", "aria-label": "Tokens; arrow keys move, page keys change the sample" },
    boxes,
    padding,
  );
  return { element, boxes };
}

function spanBar(name, sample, onpick) {
  const width = Math.max(1, sample.tokens.length + sample.padding);
  const rects = sample.spans[name].spans.map((span) =>
    s("rect", {
      x: span.start,
      y: 0,
      width: Math.max(span.stop - span.start, width / 800),
      height: 10,
      class: colour(span.number),
      "data-span": span.number,
      onpointerenter: () => onpick(span),
      onpointerleave: () => onpick(null),
    }, s("title", {}, `${name} ${span.number}`))
  );
  const gap = sample.padding ? s("rect", { x: sample.tokens.length, y: 0, width: sample.padding, height: 10, class: "empty" }) : null;
  const total = sample.spans[name].total;
  return h(
    "div",
    { class: "spanbar" },
    h("span", {}, name),
    s("svg", { viewBox: `0 0 ${width} 10`, preserveAspectRatio: "none", role: "img", "aria-label": `${count(total)} spans of ${name}` }, rects, gap),
    h("small", {}, count(total)),
  );
}

// The weight of each item in the loss: a bar where it is learned, as high as its weight.
function lossBar({ loss, padding }) {
  const most = Math.max(...loss, 1e-9);
  const runs = [];
  loss.forEach((weight, place) => weight === runs.at(-1)?.weight ? runs.at(-1).stop++ : runs.push({ weight, start: place, stop: place + 1 }));
  return h(
    "div",
    { class: "spanbar" },
    h("span", {}, "loss"),
    s("svg", { viewBox: `0 0 ${Math.max(1, loss.length + padding)} 10`, preserveAspectRatio: "none", role: "img", "aria-label": `${count(loss.filter(Boolean).length)} items are learned` },
      s("rect", { width: loss.length + padding, height: 10, class: "empty" }),
      runs.filter((one) => one.weight).map((one) => s("rect", { x: one.start, width: one.stop - one.start, y: 10 - (10 * one.weight) / most, height: (10 * one.weight) / most, class: "bar" }))),
    h("small", {}, count(loss.filter(Boolean).length)),
  );
}

function tokenDetail(sample, place, subject, state) {
  const [id, text] = sample.tokens[place];
  const piece = sample.pieces.find((one) => place >= one.start && place < one.stop);
  const document = Object.values(sample.spans)[0]?.spans.find((one) => place >= one.start && place < one.stop);
  const pairs = [
    [sample.primary ?? "value", number(id)],
    ["in the row", count(sample.offset + place)],
    ["in its document here", document ? count(place - document.start) : "–"],
    ...(sample.loss ? [["weight in the loss", number(sample.loss[place])]] : []),
    ["item of the store", piece ? count(piece.first_item + place - piece.start) : "–"],
    ...Object.entries(sample.columns).map(([name, values]) => [name, number(values[place])]),
  ];
  const parts = [
    h("h2", {}, h("span", { class: "big", dir: "auto" }, subject.tokenizer ? JSON.stringify(text).slice(1, -1) || "–" : number(id))),
    facts(pairs),
  ];
  for (const [name, { spans }] of Object.entries(sample.spans)) {
    for (const span of spans.filter((one) => place >= one.start && place < one.stop)) parts.push(...spanDetail(span, name, state, sample).flat().filter(Boolean));
  }
  return parts;
}

const spanDetail = (span, name, state, sample) => [
  h("h3", {}, h("i", { class: `dot ${colour(span.number)}` }), ` ${name} ${count(span.number)}`),
  h("p", { class: "hint" }, `${count(span.stop - span.start)} items here`, name === "documents" ? [" · ", documentLink(span.number, state.source, "when is this seen?")] : null),
  name === "documents"
    ? sample.skipped.filter((one) => one.documents.includes(span.number)).map((one) => h("p", { class: "hint" }, `Masked: not learned from sample ${count(one.from)} of the run on.`))
    : null,
  payload(span.payload),
];
