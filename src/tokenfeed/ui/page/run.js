// A run: its history, its mixture, a step, and a document.
import {
  ask,
  card,
  colour,
  count,
  decimal,
  field,
  h,
  numberInput,
  s,
  select,
  show,
  sliderField,
  table,
} from "./dom.js";
import { documentSearch } from "./search.js";

// A link to the sample, if the run reads one view of a store that is available.
const VIEW = /^(windows|packed)\((\d+)|^(documents)\('([\w-]+)'\)/;
function sampleLink(run, subject) {
  const found = subject.has_store ? VIEW.exec(run.sources[0].view) : null;
  return (index) => {
    if (!found) return count(index);
    const wanted = { view: found[1] ?? found[3], index, ...(found[2] ? { length: found[2] } : { table: found[4] }) };
    return h("a", { href: `#/samples?${new URLSearchParams(wanted)}` }, count(index));
  };
}

export function showRun(section, subject) {
  return show(section, async () => {
    const run = await ask("run");
    if (!run.plan) return card("Run", h("p", {}, "This run has not started yet."));
    const link = sampleLink(run, subject);
    const isMixture = run.sources[0].name !== "";
    return [
      card("History", h("p", { class: "hint" }, run.plan.told), timeline(run), history(run)),
      isMixture ? mixture(run) : null,
      search(run, isMixture, link),
      step(run, isMixture, link),
    ].filter(Boolean);
  });
}

// The last leg may go on, so it is drawn open.
function timeline(run) {
  const legs = run.legs;
  const last = legs.at(-1).first_step;
  const end = Math.max(1, last + Math.max(last * 0.25, 1));
  const [width, height] = [900, 46];
  const x = (value) => (value / end) * width;
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${legs.length} legs`, class: "timeline" },
    legs.map((leg, place) => {
      const stop = leg.stop_step ?? end;
      const wide = x(stop) - x(leg.first_step);
      return s(
        "g",
        {},
        s("rect", {
          x: x(leg.first_step),
          y: 4,
          width: Math.max(1, wide - 2),
          height: 20,
          rx: 5,
          class: `${colour(place)} ${leg.stop_step === null ? "open" : ""}`,
        }),
        wide > 60
          ? s("text", { x: x(leg.first_step) + 8, y: 18, class: "small" }, `${leg.world_size} × ${leg.batch_size}`)
          : null,
        s("text", { x: x(leg.first_step), y: 40 }, wide > 40 ? count(leg.first_step) : ""),
        s(
          "title",
          {},
          `steps ${count(leg.first_step)} to ${
            leg.stop_step === null ? "…" : count(leg.stop_step)
          }: ${leg.world_size} ranks, batch size ${leg.batch_size}`,
        ),
      );
    }),
  );
}

function history(run) {
  return table(
    ["step", "samples before it", "ranks", "batch size", "started (UTC)", ""],
    run.starts.map((start) => [
      count(start.step),
      count(start.samples),
      count(start.world_size),
      start.batch_size,
      new Date(start.time * 1000).toISOString().replace("T", " ").slice(0, 19),
      start.counts ? "" : "overridden",
    ]),
    { numbers: [0, 1, 2], caption: "Starts" },
  );
}

function mixture(run) {
  const place = h("div", { class: "chart" });
  const draw = (samples) =>
    show(place, async () => {
      const found = await ask("ledger", { samples });
      const total = Math.max(1, ...found.sources.map((one) => Math.max(one.samples, one.target)));
      return h(
        "div",
        { class: "ledger" },
        found.sources.map((one, number) =>
          h(
            "div",
            {},
            h("span", {}, one.name),
            s(
              "svg",
              {
                viewBox: "0 0 100 14",
                preserveAspectRatio: "none",
                role: "img",
                "aria-label": `${one.name}: ${count(one.samples)} of ${decimal(one.target)}`,
              },
              s("rect", { x: 0, y: 2, width: (100 * one.samples) / total, height: 10, rx: 1, class: colour(number) }),
              s("rect", {
                x: Math.max(0, (100 * one.target) / total - 0.3),
                y: 0,
                width: 0.6,
                height: 14,
                class: "mark",
              }),
            ),
            h("small", {}, `${count(one.samples)}, target ${decimal(one.target)}; ${one.epochs.toFixed(2)} epochs`),
          )
        ),
      );
    });
  const from = Math.max(10000, run.starts.at(-1).samples);
  draw(undefined);
  return card(
    "Mixture",
    h(
      "p",
      {},
      "Bar: samples each source has given by then. Mark: its target. The two never differ by more than one sample.",
    ),
    h("div", { class: "controls" }, sliderField("samples", from, { min: 0, max: from * 2, onchange: draw })),
    place,
  );
}

function step(run, isMixture, link) {
  const place = h("div");
  const draw = (number) =>
    show(place, async () => {
      const found = await ask("trace", { step: number });
      return table(
        ["rank", "row", "sample", "epoch", "index", ...(isMixture ? ["source"] : []), "documents"],
        found.rows.map((row) => [
          count(row.rank),
          count(row.row),
          count(row.sample),
          count(row.epoch),
          link(row.index),
          ...(isMixture ? [row.source] : []),
          h(
            "ul",
            { class: "sources" },
            row.documents.map((one) =>
              h(
                "li",
                {},
                h("i", { class: `dot ${colour(one.number)}` }),
                ` ${count(one.number)} `,
                h("small", {}, one.payload === null ? "" : JSON.stringify(one.payload).slice(0, 90)),
              )
            ),
            row.num_documents > row.documents.length
              ? h("li", {}, `and ${count(row.num_documents - row.documents.length)} more`)
              : null,
          ),
        ]),
        {
          numbers: [0, 1, 2, 3, 4],
          caption: `Step ${count(found.step)}${found.rows.some((row) => row.planned) ? ", planned" : ""}`,
        },
      );
    });
  draw(run.legs[0].first_step);
  return card(
    "What did a step train on?",
    h(
      "div",
      { class: "controls" },
      field("step", numberInput(run.legs[0].first_step, { width: "12ch", onchange: draw })),
    ),
    place,
  );
}

function search(run, isMixture, link) {
  const place = h("div");
  const state = { document: 0, epochs: 1, source: isMixture ? run.sources[0].name : "" };
  const draw = () =>
    show(place, async () => {
      const found = await ask("find", state);
      if (!found.total) return h("p", { class: "hint" }, "No row of these epochs holds this document.");
      return [
        h("p", { class: "result" }, `In ${count(found.total)} row${found.total > 1 ? "s" : ""}.`),
        table(
          ["", "step", "rank", "row", "sample", "epoch", "index"],
          found.seen.map((
            one,
          ) => [
            one.planned ? "planned" : "seen",
            count(one.step),
            count(one.rank),
            count(one.row),
            count(one.sample),
            count(one.epoch),
            link(one.index),
          ]),
          { numbers: [1, 2, 3, 4, 5, 6], caption: "Rows that hold the document" },
        ),
      ];
    });
  const set = (name) => (value) => {
    state[name] = value;
    draw();
  };
  const number = numberInput(0, { width: "12ch", onchange: set("document") });
  const looking = documentSearch(() => ({ source: state.source }), (document) => {
    number.value = document;
    set("document")(document);
  });
  const setSource = (source) => {
    set("source")(source);
    looking.look();
  };
  draw();
  return card(
    "When is a document seen?",
    h(
      "p",
      { class: "hint" },
      "Planned rows follow from the plan: the run is not known to have reached them.",
    ),
    h(
      "div",
      { class: "controls" },
      looking.field,
      field("document", number),
      isMixture ? field("source", select(run.sources.map((one) => one.name), state.source, setSource)) : null,
      field("epochs", numberInput(1, { min: 1, max: 64, onchange: set("epochs") })),
    ),
    looking.place,
    place,
  );
}
