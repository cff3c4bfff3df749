// Any sample, token by token: documents in colours, spans, place on disk, bytes.
import { ask, card, colour, count, facts, field, h, numberInput, s, select, show, table } from "./dom.js";
import { fileCells } from "./bytes.js";
import { documentSearch } from "./search.js";

export function showSamples(section, subject, parameters) {
  const state = { view: "windows", index: 0, length: 256, table: "", offset: 0 };
  for (const [name, value] of parameters ?? []) {
    if (name in state) {
      state[name] = name === "view" || name === "table" ? value : Number(value);
    }
  }
  return show(section, async () => {
    const store = await ask("store");
    const tables = store.spans.map((one) => one.name);
    state.table ||= tables.includes("documents") ? "documents" : tables[0] ?? "";
    return browser(subject, state, tables);
  });
}

function browser(subject, state, tables) {
  const place = h("div", { class: "sample" });
  const total = h("span", { class: "hint", id: "sample-total" });
  const index = numberInput(state.index, {
    width: "14ch",
    onchange: (value) => go({ index: Number(value), offset: 0 }),
  });
  const length = numberInput(state.length, {
    min: 1,
    onchange: (value) => go({ length: Number(value), index: 0, offset: 0 }),
  });
  const lengthField = field("length", length);
  const views = tables.length ? ["windows", "documents", "packed"] : ["windows"];
  const tableField = field("table", select(tables, state.table, (value) => go({ table: value, index: 0, offset: 0 })));
  let samples = Infinity;

  function go(change) {
    Object.assign(state, change);
    state.index = Math.max(0, Math.min(state.index, samples - 1));
    if (document.activeElement !== index) index.value = state.index;
    lengthField.hidden = state.view === "documents";
    tableField.hidden = state.view === "windows" || tables.length < 2;
    const hadFocus = place.contains(document.activeElement);
    return show(place, async () => {
      const sample = await ask("sample", state);
      samples = sample.samples;
      index.max = samples - 1;
      total.textContent = `of ${count(samples)}`;
      return body(subject, state, sample, go);
    }).then(() => hadFocus && place.querySelector(".tokens")?.focus());
  }

  const choose = (wanted) => {
    samples = Infinity;
    go({ index: 0, offset: 0, ...wanted });
  };
  const view = select(views, state.view, (value) => choose({ view: value }));
  const looking = documentSearch(() => ({ table: state.table }), (document) => {
    view.value = "documents";
    choose({ view: "documents", index: document });
  });
  const move = (by) => () => go({ index: state.index + by, offset: 0 });
  const controls = h(
    "div",
    { class: "controls", role: "group", "aria-label": "Which sample" },
    field("sample is", view),
    lengthField,
    tableField,
    h(
      "div",
      { class: "stepper" },
      h("button", {
        type: "button",
        onclick: move(-1),
        "aria-label": "Previous sample",
        title: "Previous sample (Page up)",
      }, "←"),
      field("number", index),
      total,
      h(
        "button",
        { type: "button", onclick: move(1), "aria-label": "Next sample", title: "Next sample (Page down)" },
        "→",
      ),
      h("button", {
        type: "button",
        onclick: () => go({ index: Math.floor(Math.random() * Math.min(samples, 2 ** 52)), offset: 0 }),
      }, "Any"),
    ),
  );
  place.addEventListener("keydown", (event) => {
    if (event.key === "PageDown" || event.key === "PageUp") {
      event.preventDefault();
      move(event.key === "PageDown" ? 1 : -1)();
    }
  });
  go({});
  if (tables.length) controls.append(looking.field);
  return [card(null, controls, looking.place), place];
}

function body(subject, state, sample, go) {
  const names = Object.keys(sample.spans);
  const main = state.view === "windows" ? (names.includes("documents") ? "documents" : names[0]) : state.table;
  const spans = main ? sample.spans[main].spans : [];
  const owner = new Array(sample.tokens.length).fill(-1);
  spans.forEach((span, place) => owner.fill(place, span.start, Math.min(span.stop, owner.length)));
  const detail = h("aside", { class: "card detail", "aria-live": "polite", "aria-label": "The token" });
  const bytesPlace = h("div");
  const boxes = sample.tokens.map(([number, text, kind], place) =>
    tokenBox(number, text, kind, owner[place] < 0 ? null : spans[owner[place]].number, place)
  );
  const padding = sample.padding ? h("span", { class: "padding" }, `${count(sample.padding)} padding`) : null;
  const tokens = h(
    "div",
    {
      class: subject.tokenizer ? "tokens text" : "tokens",
      tabindex: "0",
      role: "listbox",
      "aria-label": "Tokens; arrow keys move, page keys change the sample",
    },
    boxes,
    padding,
  );
  const bars = names.map((name) => spanBar(name, sample, (span) => light(span, name)));
  let active = -1;

  function light(span, name) {
    boxes.forEach((box, place) =>
      box.classList.toggle("lit", Boolean(span) && place >= span.start && place < span.stop)
    );
    if (span) detail.replaceChildren(...spanDetail(span, name, sample));
  }

  function activate(place, { quiet = false } = {}) {
    if (!boxes.length) return;
    boxes[active]?.classList.remove("active");
    boxes[active]?.removeAttribute("aria-selected");
    active = Math.max(0, Math.min(place, boxes.length - 1));
    const box = boxes[active];
    box.classList.add("active");
    box.setAttribute("aria-selected", "true");
    tokens.setAttribute("aria-activedescendant", box.id);
    if (!quiet) box.scrollIntoView({ block: "nearest" });
    detail.replaceChildren(...tokenDetail(sample, active, subject));
  }

  const readBytes = () =>
    show(bytesPlace, async () => fileCells(await ask("bytes", { ...state, item: Math.max(0, active) })));
  tokens.addEventListener(
    "pointerover",
    (event) => event.target.dataset?.place && activate(Number(event.target.dataset.place), { quiet: true }),
  );
  tokens.addEventListener("click", readBytes);
  tokens.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (step) {
      event.preventDefault();
      activate(active + step);
    }
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      readBytes();
    }
  });
  activate(0, { quiet: true });
  readBytes();
  const more = sample.items > sample.tokens.length;
  return [
    h(
      "div",
      { class: "split" },
      card(
        null,
        bars,
        sample.primary ? tokens : h("p", { class: "hint" }, "The store has no column of single numbers."),
        more
          ? h(
            "div",
            { class: "pager" },
            h(
              "span",
              {},
              `items ${count(state.offset)} to ${count(state.offset + sample.tokens.length)} of ${count(sample.items)}`,
            ),
            h("button", {
              type: "button",
              disabled: state.offset === 0,
              onclick: () => go({ offset: Math.max(0, state.offset - 4096) }),
            }, "Earlier"),
            h("button", {
              type: "button",
              disabled: state.offset + sample.tokens.length >= sample.items,
              onclick: () => go({ offset: state.offset + 4096 }),
            }, "Later"),
          )
          : null,
      ),
      detail,
    ),
    card(
      "Where it lies",
      table(
        ["shard", "items", "bytes of the file"],
        sample.places.map((place) => [
          h("code", {}, place.shard),
          `${count(place.start)} to ${count(place.stop)}`,
          place.byte_start === undefined ? "–" : `${count(place.byte_start)} to ${count(place.byte_stop)}`,
        ]),
        { caption: "Where it lies" },
      ),
    ),
    card(
      "Its bytes",
      h(
        "p",
        { class: "hint" },
        "Starts at the chosen token: click one, or press Enter. Cells that belong together are highlighted together.",
      ),
      bytesPlace,
    ),
  ];
}

function tokenBox(number, text, kind, span, place) {
  const box = h("span", {
    class: `token ${span === null ? "" : colour(span)} ${["", "special", "partial"][kind]}`,
    id: `token-${place}`,
    role: "option",
    "data-place": place,
  });
  box.textContent = text === "" ? number : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  if (text.includes("\n")) box.classList.add("break");
  return box;
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
      tabindex: "-1",
      "data-span": span.number,
      onpointerenter: () => onpick(span),
      onpointerleave: () => onpick(null),
    }, s("title", {}, `${name} ${span.number}`))
  );
  const gap = sample.padding
    ? s("rect", { x: sample.tokens.length, y: 0, width: sample.padding, height: 10, class: "empty" })
    : null;
  const total = sample.spans[name].total;
  return h(
    "div",
    { class: "spanbar" },
    h("span", {}, name),
    s(
      "svg",
      {
        viewBox: `0 0 ${width} 10`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${count(total)} spans of ${name}`,
      },
      rects,
      gap,
    ),
    h("small", {}, count(total)),
  );
}

function tokenDetail(sample, place, subject) {
  const [number, text] = sample.tokens[place];
  const piece = sample.pieces.find((one) => place >= one.start && place < one.stop);
  const pairs = [["token", count(number)], ["in the row", count(sample.offset + place)], [
    "item of the store",
    piece ? count(piece.first_item + place - piece.start) : "–",
  ]];
  for (const [name, values] of Object.entries(sample.columns)) pairs.push([name, count(values[place])]);
  const parts = [
    h(
      "h2",
      {},
      h("span", { class: "big" }, subject.tokenizer ? JSON.stringify(text).slice(1, -1) || "–" : count(number)),
    ),
    facts(pairs),
  ];
  for (const [name, { spans }] of Object.entries(sample.spans)) {
    for (const span of spans.filter((one) => place >= one.start && place < one.stop)) {
      parts.push(...spanDetail(span, name, sample));
    }
  }
  return parts;
}

const spanDetail = (span, name) => [
  h("h3", {}, h("i", { class: `dot ${colour(span.number)}` }), ` ${name} ${count(span.number)}`),
  h("p", { class: "hint" }, `${count(span.stop - span.start)} items here`),
  span.has_payload
    ? h(
      "pre",
      { tabindex: "0", "aria-label": "Payload" },
      typeof span.payload === "string" ? span.payload : JSON.stringify(span.payload, null, 2),
    )
    : h("p", { class: "hint" }, "no payload"),
];
