// The run and its plan: from a step to its rows, from a row to its documents, from a document to every step that sees it.
import { ask, card, colour, count, field, h, json, numberInput, pager, s, select, share, show, table } from "./dom.js";
import { documentLink, rowLink } from "./panel.js";
import { go, href } from "./place.js";
import { known } from "./pulse.js";
import { timeline } from "./timeline.js";

const PAGE = 50;

export function showTrace(section, subject, given) {
  return show(section, async () => {
    const run = { ...await ask("run") };
    const { progress } = known.told ?? {}; // newer than the run file
    if (progress) [run.step, run.end_step] = [Math.max(run.step, progress.step), progress.end_step ?? run.end_step];
    if (!run.plan) return card("Run", h("p", {}, "This run has not started yet."));
    const row = given.has("row") && !given.has("step") ? await ask("trace", { sample: given.get("row") }) : null;
    const step = row?.step ?? (given.has("step") ? Number(given.get("step")) : Math.max(run.legs[0].first_step, run.step - 1));
    const start = given.get("start");
    const rank = given.has("rank") ? Number(given.get("rank")) : null;
    const first = Number(given.get("first") ?? 0);
    const [found, seen] = await Promise.all([
      ask("trace", { step, rank: rank ?? -1, first, count: PAGE, start }).catch((error) => ({ error })),
      given.has("document")
        ? ask("find", { document: given.get("document"), source: given.get("of") ?? "" }).catch(() => null)
        : null,
    ]);
    const pick = (wanted) => go("trace", { step: wanted, row: null, first: null, start: null });
    return [
      card(
        "The run",
        timeline(run, { step, marks: seen?.rows ?? [], onpick: pick }),
        h("p", { class: "legend" }, legend(run, seen)),
        amendments(run),
        history(run),
      ),
      found.error
        ? card(`Step ${count(step)}`, stepControls(run, step, rank, 1, pick), h("p", { class: "problem", role: "alert" }, found.error.message))
        : stepCard(run, found, { step, rank, first, start, pick }),
      run.sources.length > 1 ? sources(progress?.samples) : null,
    ];
  });
}

const legend = (run, seen) => [
  h("span", {}, h("i", { class: "dot d0" }), " run"),
  h("span", {}, h("i", { class: "dot hatch" }), " planned"),
  run.rolled_back.length ? h("span", {}, h("i", { class: "dot back" }), " rolled back") : null,
  run.amendments.length ? h("span", {}, h("i", { class: "mark amendment" }), " amendment") : null,
  seen?.rows.length ? h("span", {}, h("i", { class: "dot sight" }), ` document ${count(seen.document)}`) : null,
];

function amendments(run) {
  if (!run.amendments.length) return null;
  return h(
    "details",
    { open: run.amendments.length < 6 },
    h("summary", {}, `${count(run.num_amendments)} amendment${run.num_amendments === 1 ? "" : "s"}`),
    h(
      "ul",
      {},
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
    h("summary", {}, `${count(run.num_starts)} start${run.num_starts === 1 ? "" : "s"} · ${run.plan}`),
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

function stepCard(run, found, { step, rank, first, start, pick }) {
  const isMixture = run.sources.length > 1;
  const stop = first + found.rows.length;
  const tag = start ? "rolled back" : found.planned ? "planned: not run yet" : "was run";
  return card(
    null,
    h("div", { class: "cardhead" }, h("h2", {}, `Step ${count(step)}`), h("span", { class: `pill tag ${start || found.planned ? "planned" : "good"}` }, tag)),
    stepControls(run, step, rank, found.world_size, pick),
    branches(run, step, start),
    h("p", { class: "hint" }, `Rows ${count(first + 1)} to ${count(stop)} of ${count(found.num_rows)}${rank === null ? ` on ${count(found.world_size)} rank${found.world_size === 1 ? "" : "s"}` : ` of rank ${rank}`}.`),
    table(
      ["rank", "row", "sample", "epoch", ...(isMixture ? ["source"] : []), "begins with", "documents"],
      found.rows.map((row) => [
        count(row.rank),
        count(row.row),
        rowLink(row.sample),
        count(row.epoch),
        ...(isMixture ? [row.source] : []),
        h("span", { class: "snippet", dir: "auto" }, row.text || `sample ${count(row.index)} of the view`),
        documentList(row),
      ]),
      { numbers: [0, 1, 2, 3], caption: `Step ${count(step)}${found.planned ? ", planned" : ""}` },
    ),
    pager("Pages of rows", { first, shown: found.rows.length, total: found.num_rows, size: PAGE }, (to) => go("trace", { first: to || null })),
  );
}

// A step that was run several times: as it counts, and as it was run before the run went back.
function branches(run, step, start) {
  const found = run.rolled_back.filter((one) => one.first_step <= step && step < one.stop_step);
  if (!found.length) return null;
  const link = (wanted, text) => h("a", { href: href("trace", { start: wanted, first: null }), "aria-current": String(start ?? "") === String(wanted ?? "") ? "true" : null }, text);
  return h("p", {}, "This step was run more than once: ", link(null, "as it counts"),
    found.map((one) => [" · ", link(one.start, `as start ${count(one.start + 1)} ran it, on ${count(one.world_size)} rank${one.world_size === 1 ? "" : "s"}, before it was rolled back`)]));
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

function sources(samples) {
  const place = h("div");
  show(place, async () => sharesPicture(await ask("ledger", { samples })));
  return card("Sources", place);
}

// What each source of a mixture gave, as planned and as delivered, over the run so far.
function sharesPicture(found) {
  const total = Math.max(1, found.samples);
  const grown = found.points.slice(1).map((point, place) => point.slice(1).map(([samples, target], source) => {
    const [before, due] = found.points[place][source + 1];
    const width = point[0] - found.points[place][0];
    return [(samples - before) / width, (target - due) / width];
  }));
  const targetSum = Math.max(1e-9, found.sources.reduce((all, one) => all + one.target, 0));
  return h(
    "div",
    { class: "ledger" },
    found.sources.slice(0, 64).map((one, number) =>
      h(
        "div",
        {},
        h("a", { href: href("data", { source: one.name }) }, h("i", { class: `dot ${colour(number)}` }), ` ${one.name}`),
        s(
          "svg",
          { viewBox: `0 0 ${Math.max(1, grown.length)} 20`, preserveAspectRatio: "none", role: "img", "aria-label": `share of ${one.name} over the run` },
          grown.map((shares, at) => s("rect", { x: at, y: 20 - 20 * shares[number][0], width: 1.05, height: 20 * shares[number][0], class: colour(number) })),
          s("path", { class: "target", d: grown.map((shares, at) => `${at ? "L" : "M"}${at},${(20 - 20 * shares[number][1]).toFixed(2)}H${at + 1}`).join("") }),
        ),
        h("small", {}, `${share(one.samples / total)} of samples, target ${share(one.target / targetSum)} · ${one.epochs.toFixed(2)} epochs`),
      )
    ),
    h("p", { class: "hint" }, `Bars: share of the samples given, from the first to sample ${count(found.samples)}. Lines: the target.`),
  );
}
