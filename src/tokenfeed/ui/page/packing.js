// Documents packed into rows.
import {
  ask,
  card,
  colour,
  count,
  facts,
  field,
  h,
  numberInput,
  percent,
  s,
  select,
  show,
  sliderField,
} from "./dom.js";

export function showPacking(section) {
  return show(section, async () => {
    const store = await ask("store");
    const tables = store.spans.map((one) => one.name);
    if (!tables.length) return card("Packing", h("p", {}, "This store has no documents to pack."));
    const chosen = store.spans.find((one) => one.name === "documents") ?? store.spans[0];
    const state = { length: rowLength(chosen.mean_items), first: 0, count: 256, table: chosen.name };
    const place = h("div", { class: "chart" });
    const draw = () => show(place, async () => picture(await ask("packing", state)));
    const set = (name) => (value) => {
      state[name] = value;
      draw();
    };
    draw();
    return card(
      "Packing",
      h(
        "p",
        {},
        "Documents are placed longest first, each into the fullest row that still has room for it. A document longer than a row fills rows of its own, and its rest is placed like any other document. Nothing is cut off; the empty space is at the end of rows.",
      ),
      h(
        "div",
        { class: "controls" },
        tables.length > 1 ? field("table", select(tables, state.table, set("table"))) : null,
        field("row length", numberInput(state.length, { min: 1, max: 1048576, onchange: set("length") })),
        field("from document", numberInput(state.first, { width: "12ch", onchange: set("first") })),
        sliderField("documents", state.count, { min: 16, max: 2048, step: 16, onchange: set("count") }),
      ),
      place,
    );
  });
}

// A power of two that holds at least two documents.
const rowLength = (mean) => Math.max(256, Math.min(65536, 2 ** Math.ceil(Math.log2(2 * Math.max(1, mean)))));

function picture(found) {
  const [width, tall, space] = [900, 14, 4];
  const scale = width / (found.length + 1);
  const rows = found.shown.map((pieces, number) => {
    let x = 0;
    const y = number * (tall + space);
    const parts = [s("rect", { x: 0, y, width, height: tall, rx: 3, class: "empty" })];
    for (const piece of pieces) {
      parts.push(
        s(
          "rect",
          {
            x: x * scale,
            y,
            width: Math.max(0.5, piece.count * scale - 0.7),
            height: tall,
            rx: 2,
            class: colour(piece.document),
            "data-document": piece.document,
          },
          s(
            "title",
            {},
            `document ${count(piece.document)}: items ${count(piece.start)} to ${count(piece.start + piece.count)} of ${
              count(piece.of)
            }`,
          ),
        ),
      );
      x += piece.count;
    }
    return s("g", {}, parts);
  });
  return [
    facts([
      ["rows", count(found.rows)],
      ["filled", h("b", { class: "good" }, percent(found.used))],
      ["empty", percent(1 - found.used)],
      ["filled if each document had its own rows", percent(found.used_alone)],
      ["documents longer than a row", count(found.cut)],
    ]),
    s("svg", {
      viewBox: `0 0 ${width} ${Math.max(1, found.shown.length * (tall + space))}`,
      role: "img",
      "aria-label": `${count(found.shown.length)} of ${count(found.rows)} rows, ${percent(found.used)} filled`,
      class: "rows",
    }, rows),
    h(
      "p",
      { class: "hint" },
      `${count(found.shown.length)} of ${count(found.rows)} rows of ${count(found.length)} + 1 items, made of ${
        count(found.documents)
      } documents. \`tokenfeed pack\` makes the plan for all ${count(found.total)}.`,
    ),
  ];
}
