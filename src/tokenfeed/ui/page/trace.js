// From a step to its rows, from a row to its documents, and from a document to every step that sees it.
import { ask, card, colour, count, field, h, json, numberInput, select, show, table, texts } from "./dom.js";
import { documentLink } from "./panel.js";
import { copyButton, go, href } from "./place.js";
import { known } from "./pulse.js";
import { timeline } from "./timeline.js";

const PAGE = 50;

export function showTrace(section, subject, given) {
  return show(section, async () => {
    const run = { ...await ask("run") };
    const { progress } = known.told ?? {}; // newer than the run file
    if (progress) [run.step, run.end_step] = [Math.max(run.step, progress.step), progress.end_step ?? run.end_step];
    if (!run.plan) return card("Run", h("p", {}, "This run has not started yet."));
    const step = given.has("step") ? Number(given.get("step")) : Math.max(run.legs[0].first_step, run.step - 1);
    const rank = given.has("rank") ? Number(given.get("rank")) : null;
    const first = Number(given.get("first") ?? 0);
    const [found, seen] = await Promise.all([
      ask("trace", { step, rank: rank ?? -1, first, count: PAGE }).catch((error) => ({ error })),
      given.has("document")
        ? ask("find", { document: given.get("document"), source: given.get("of") ?? "" }).catch(() => null)
        : null,
    ]);
    const pick = (wanted) => go("trace", { step: wanted, row: null, first: null });
    return [
      card(
        "The run",
        timeline(run, { step, marks: seen?.seen ?? [], onpick: pick }),
        h("p", { class: "legend" }, legend(run, seen)),
        amendments(run),
        history(run),
      ),
      found.error
        ? card(`Step ${count(step)}`, stepControls(run, step, rank, 1, pick), h("p", { class: "problem", role: "alert" }, found.error.message))
        : stepCard(subject, run, found, { step, rank, first, row: given.get("row"), pick }),
      found.error ? null : rowCard(subject, run, found, given.get("row")),
    ];
  });
}

const legend = (run, seen) => [
  h("span", {}, h("i", { class: "dot d0" }), " run"),
  h("span", {}, h("i", { class: "dot hatch" }), " planned"),
  run.amendments.length ? h("span", {}, h("i", { class: "dot amend" }), " amendment") : null,
  seen?.seen.length ? h("span", {}, h("i", { class: "dot sight" }), ` document ${count(seen.document)}`) : null,
];

function amendments(run) {
  if (!run.amendments.length) return null;
  return h(
    "details",
    { open: run.amendments.length < 6 },
    h("summary", {}, `${count(run.num_amendments)} amendment${run.num_amendments === 1 ? "" : "s"}`),
    h(
      "ul",
      { class: "plain" },
      run.amendments.map((one) =>
        h("li", {}, h("a", { href: href("trace", { step: one.step, row: null, first: null }) }, `step ${count(one.step)}`), ` ${one.told}`,
          h("small", {}, ` from sample ${count(one.sample)} on`))
      ),
    ),
  );
}

function history(run) {
  return h(
    "details",
    {},
    h("summary", {}, `${count(run.num_starts)} start${run.num_starts === 1 ? "" : "s"} · ${run.plan.told}`),
    table(
      ["step", "samples before it", "ranks", "batch size", "started (UTC)", ""],
      run.starts.map((start) => [
        h("a", { href: href("trace", { step: start.step, row: null, first: null }) }, count(start.step)),
        count(start.samples),
        count(start.world_size),
        start.batch_size,
        new Date(start.time * 1000).toISOString().replace("T", " ").slice(0, 19),
        start.counts ? "" : "overridden",
      ]),
      { numbers: [0, 1, 2], caption: "Starts" },
    ),
  );
}

function stepControls(run, step, rank, size, pick) {
  const ranks = ["all ranks", ...Array.from({ length: Math.min(size, 1024) }, (_, number) => `rank ${number}`)];
  return h(
    "div",
    { class: "controls" },
    h(
      "div",
      { class: "stepper" },
      h("button", { type: "button", id: "step-before", "aria-label": "Previous step", onclick: () => pick(Math.max(0, step - 1)) }, "←"),
      field("step", numberInput(step, { id: "step", width: "12ch", wait: 400, onchange: (value) => pick(Number(value)) })),
      h("button", { type: "button", id: "step-after", "aria-label": "Next step", onclick: () => pick(step + 1) }, "→"),
      h("button", { type: "button", onclick: () => pick(Math.max(0, run.step - 1)) }, "Now"),
    ),
    field("ranks", select(ranks, rank === null ? ranks[0] : `rank ${rank}`, (value) =>
      go("trace", { rank: value === ranks[0] ? null : value.slice(5), first: null }))),
  );
}

function stepCard(subject, run, found, { step, rank, first, row: chosen, pick }) {
  const isMixture = run.sources.length > 1;
  const command = `tokenfeed trace ${subject.name} --step ${step}${rank === null ? "" : ` --rank ${rank}`}`;
  const stop = first + found.rows.length;
  const page = (label, to, is) => h("button", { type: "button", disabled: !is, onclick: () => go("trace", { first: to || null }) }, label);
  return card(
    null,
    h("div", { class: "cardhead" }, h("h2", {}, `Step ${count(step)}`), h("span", { class: `tag ${found.planned ? "planned" : "done"}` }, found.planned ? "planned: not run yet" : "was run")),
    stepControls(run, step, rank, found.world_size, pick),
    h(
      "div",
      { class: "copies", role: "group", "aria-label": "Copy" },
      copyButton(h, "Copy link", () => location.href),
      copyButton(h, "Copy Python", `tokenfeed.Run("${subject.name}").trace(${step}${rank === null ? "" : `, rank=${rank}`})`),
      copyButton(h, "Copy command", command),
    ),
    h("p", { class: "hint" }, `Rows ${count(first + 1)} to ${count(stop)} of ${count(found.num_rows)}${rank === null ? ` on ${count(found.world_size)} rank${found.world_size === 1 ? "" : "s"}` : ` of rank ${rank}`}.`),
    table(
      ["rank", "row", "sample", "epoch", ...(isMixture ? ["source"] : []), "begins with", "documents"],
      found.rows.map((row) => [
        count(row.rank),
        count(row.row),
        h("a", { href: href("trace", { row: row.sample }), "aria-current": String(row.sample) === chosen ? "true" : null }, count(row.sample)),
        count(row.epoch),
        ...(isMixture ? [row.source] : []),
        h("span", { class: "snippet", dir: "auto" }, row.text || `sample ${count(row.index)} of the view`),
        documentList(row),
      ]),
      { numbers: [0, 1, 2, 3], caption: `Step ${count(step)}${found.planned ? ", planned" : ""}` },
    ),
    found.num_rows > PAGE
      ? h(
        "div",
        { class: "pager", role: "group", "aria-label": "Pages of rows" },
        page("First", 0, first > 0),
        page("Previous", Math.max(0, first - PAGE), first > 0),
        h("span", {}, `${count(first + 1)} to ${count(stop)} of ${count(found.num_rows)}`),
        page("Next", stop, stop < found.num_rows),
        page("Last", Math.floor((found.num_rows - 1) / PAGE) * PAGE, stop < found.num_rows),
      )
      : null,
  );
}

const documentList = (row) =>
  h(
    "ul",
    { class: "sources" },
    row.documents.map((one) =>
      h(
        "li",
        {},
        h("i", { class: `dot ${colour(one.number)}` }),
        " ",
        documentLink(one.number, row.source),
        h("small", { class: "snippet" }, one.payload === null ? "" : json(one.payload).replace(/\s+/g, " ").slice(0, 90)),
      )
    ),
    row.num_documents > row.documents.length ? h("li", {}, `and ${count(row.num_documents - row.documents.length)} more`) : null,
  );

// What of a view the address of a sample needs.
export function sampleAddress(view, index, source) {
  const wanted = { view: view.kind, index, source: source || null, offset: null, table: view.kind === "windows" ? null : view.table ?? null };
  return view.kind === "documents" ? { ...wanted, length: null } : { ...wanted, length: view.length };
}

// The chosen row, as text, with its documents.
function rowCard(subject, run, found, wanted) {
  const row = found.rows.find((one) => String(one.sample) === wanted);
  if (!row) return null;
  const place = h("div");
  const address = sampleAddress(row.view, row.index, row.source);
  show(place, async () => {
    const sample = await ask("sample", address);
    const table = sample.spans[row.view.table ?? "documents"] ?? Object.values(sample.spans)[0];
    return [
      h("p", { class: "excerpt", dir: "auto", tabindex: "0" }, texts(sample.tokens).join("").slice(0, 4000)),
      h("ul", { class: "sources" }, (table?.spans ?? []).slice(0, 40).map((span) =>
        h("li", {}, h("i", { class: `dot ${colour(span.number)}` }), " ", documentLink(span.number, row.source, `document ${count(span.number)}`), h("small", {}, ` ${count(span.stop - span.start)} tokens here`))
      )),
    ];
  });
  return card(
    `Row ${count(row.row)} of rank ${row.rank}: sample ${count(row.sample)}`,
    h("p", {}, h("a", { href: href("sample", address) }, "Token by token")),
    place,
  );
}
