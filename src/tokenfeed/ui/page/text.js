// A folder of text: documents, their tokens, the rows they are packed into, and the rank that gets each row.
import { ask, card, colour, count, facts, field, h, numberInput, s, select, show, sliderField } from "./dom.js";
import { keep } from "./place.js";

export function showText(section, subject, given) {
  const documents = h("div");
  const where = { file: Number(given.get("file") ?? 0), group: Number(given.get("group") ?? 0) };
  const list = () => show(documents, async () => textList(await ask("text", where)));
  list();
  section.replaceChildren(
    card(
      "1 · Text",
      h("p", {}, "Documents are read one row group at a time, file by file."),
      h(
        "div",
        { class: "controls" },
        field(
          "file",
          numberInput(where.file, {
            onchange: (value) => {
              keep({ file: value });
              where.file = value;
              list();
            },
          }),
        ),
        field(
          "row group",
          numberInput(where.group, {
            onchange: (value) => {
              keep({ group: value });
              where.group = value;
              list();
            },
          }),
        ),
      ),
      documents,
    ),
    subject.tokenizer ? flow(given) : card(
      "2 · Tokens, rows, batches, ranks",
      h("p", {}, "Start the page with --tokenizer to see these documents as a stream of rows."),
    ),
  );
}

function textList(found) {
  return [
    h(
      "p",
      { class: "hint" },
      `${found.files[found.file] ?? `file ${found.file}`}: ${count(found.rows)} documents in this row group; ${
        count(found.num_files)
      } file${found.num_files === 1 ? "" : "s"}.`,
    ),
    h(
      "div",
      { class: "documents", tabindex: "0", role: "region", "aria-label": "Documents" },
      found.documents.map((document) =>
        h(
          "div",
          { class: "document" },
          h("small", {}, `document ${count(document.row)} · ${count(document.characters)} characters`),
          h(
            "div",
            { class: "clip" },
            document.tokens
              ? h("div", { class: "tokens flow" }, tokens(document.tokens, () => document.row))
              : document.text,
          ),
        )
      ),
    ),
  ];
}

const tokens = (list, owner) =>
  list.map(([number, text, kind], place) =>
    h(
      "span",
      { class: `token ${colour(owner(place))} ${["", "special", "partial"][kind]}`, title: `token ${number}` },
      text === "" ? String(number) : text.replaceAll("\n", "⏎\n"),
    )
  );

function flow(given) {
  const state = { step: 0, batch_size: 3, length: 96, world_size: 2, packing: "best_fit", overflow: "split" };
  for (const name of Object.keys(state)) {
    if (given.has(name)) state[name] = typeof state[name] === "number" ? Number(given.get(name)) : given.get(name);
  }
  const place = h("div", { class: "chart" });
  const draw = () => show(place, async () => batchPicture(await ask("flow", state)));
  const set = (name) => (value) => {
    state[name] = value;
    keep({ [name]: value });
    draw();
  };
  draw();
  return card(
    "2 · Tokens, rows, batches, ranks",
    h(
      "p",
      {},
      "Each rank packs the documents of its own row groups into rows, without asking other ranks. These rows are exactly what tokenfeed.stream delivers.",
    ),
    h(
      "div",
      { class: "controls" },
      sliderField("step", state.step, { min: 0, max: 15, onchange: set("step") }),
      sliderField("ranks", state.world_size, { min: 1, max: 8, onchange: set("world_size") }),
      sliderField("batch size", state.batch_size, { min: 1, max: 16, onchange: set("batch_size") }),
      sliderField("row length", state.length, { min: 16, max: 512, step: 16, onchange: set("length") }),
      field("packing", select(["best_fit", "concat"], state.packing, set("packing"))),
      field("long documents", select(["split", "crop"], state.overflow, set("overflow"))),
    ),
    place,
  );
}

function batchPicture(found) {
  const reading = h("div", { class: "reading", "aria-live": "polite" });
  const read = (row, rank) => {
    const owner = (place) => row.pieces.find((piece) => place >= piece.start && place < piece.stop)?.document ?? 0;
    reading.replaceChildren(
      h("h3", {}, `Row ${count(row.sample)} of the run, rank ${rank}, epoch ${row.epoch}`),
      h("div", { class: "tokens flow" }, tokens(row.tokens, owner)),
      h(
        "ul",
        { class: "sources" },
        row.pieces.map((piece) => {
          const document = found.documents[piece.document];
          return h(
            "li",
            {},
            h("i", { class: `dot ${colour(piece.document)}` }),
            ` ${document.file}, row group ${document.group}, document ${document.row}`,
            piece.done ? h("small", {}, `, from its token ${count(piece.done)} on`) : null,
            h("small", { class: "clip" }, document.text.slice(0, 160)),
          );
        }),
      ),
    );
  };
  const ranks = found.ranks.map(({ rank, rows }) =>
    h(
      "div",
      { class: "rank" },
      h("h3", {}, `rank ${rank}`),
      rows.map((row) => {
        const width = row.tokens.length;
        const bar = s(
          "svg",
          { viewBox: `0 0 ${width} 12`, preserveAspectRatio: "none", "aria-hidden": "true" },
          row.pieces.map((piece) =>
            s("rect", {
              x: piece.start,
              y: 0,
              width: Math.max(0.4, piece.stop - piece.start - 0.4),
              height: 12,
              class: colour(piece.document),
            })
          ),
        );
        return h(
          "button",
          {
            type: "button",
            class: "row",
            "aria-label": `Row ${row.sample}: ${row.pieces.length} pieces`,
            onclick: () => read(row, rank),
            onfocus: () => read(row, rank),
          },
          h("small", {}, count(row.sample)),
          bar,
        );
      }),
    )
  );
  read(found.ranks[0].rows[0], 0);
  return [
    facts([["tokens lost", count(found.lost)], ["tokens repeated", count(found.repeated)], [
      "documents waiting",
      count(found.waiting),
    ]]),
    h("div", { class: "ranks" }, ranks),
    reading,
  ];
}
