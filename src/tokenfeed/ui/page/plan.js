// What if: the mixture's budget, rows of other lengths, the order and how random it is, and other numbers of ranks. It
// starts from the settings of the run.
import { ask, card, colour, count, decimal, facts, field, h, later, numberInput, percent, s, select, show, sliderField, table } from "./dom.js";
import { go, href, keep } from "./place.js";

const MANY_EPOCHS = 4;

export function showPlan(section, subject, given) {
  const source = given.get("source") ?? "";
  return show(section, async () => {
    const [run, store] = await Promise.all([
      subject.has_run ? ask("run") : null,
      subject.has_store ? ask("store", { source }) : null,
    ]);
    const own = run?.sources.find((one) => one.name === source) ?? run?.sources[0];
    const names = run?.sources.map((one) => one.name) ?? [];
    return [
      run ? settings(run) : null,
      names.length > 1
        ? h("div", { class: "controls" }, field("source", select(names, source || names[0], (value) => go("plan", { source: value, n: null }))))
        : null,
      names.length > 1 ? budget(run, given) : null,
      store?.spans.length ? packing(store, own, source, given) : null,
      order(run, own, given),
      steps(run, own, given),
    ];
  });
}

function settings(run) {
  const last = run.legs.at(-1);
  return card(
    "The plan of the run",
    h("p", { class: "hint" }, run.plan.told),
    facts([
      ["seed", count(run.plan.seed)],
      ["ranks", count(last.world_size)],
      ["batch size", last.batch_size],
      ["end", run.end === null ? "none" : `${count(run.end)} samples, step ${count(run.end_step)}`],
      ["amendments", h("a", { href: href("trace") }, count(run.num_amendments))],
    ]),
  );
}

// How often every source is seen by the end of a budget.
function budget(run, given) {
  const place = h("div", { class: "chart" });
  const usual = Number(given.get("budget") ?? run.end ?? Math.max(run.reached, 1000));
  const draw = (samples) => show(place, async () => budgetTable(await ask("ledger", { samples })));
  draw(usual);
  return card(
    "Mixture budget",
    h("p", {}, "How many samples each source gives by the end of a budget, and how often its data is seen."),
    h("div", { class: "controls" }, field("samples in all", numberInput(usual, {
      min: 1,
      max: run.end ?? undefined,
      width: "16ch",
      onchange: (value) => {
        keep({ budget: value });
        draw(value);
      },
    }))),
    place,
  );
}

function budgetTable(found) {
  const warn = (one) =>
    one.epochs > MANY_EPOCHS ? `seen more than ${MANY_EPOCHS} times: repeated data helps less and less` : one.samples === 0 ? "never drawn" : one.epochs < 1 ? `${percent(1 - one.epochs)} of it stays unseen` : "";
  return table(
    ["source", "samples", "share", "has", "epochs", ""],
    found.sources.map((one, number) => [
      h("span", {}, h("i", { class: `dot ${colour(number)}` }), ` ${one.name || "data"}`),
      count(one.samples),
      percent(one.samples / Math.max(1, found.samples)),
      count(one.available),
      one.epochs.toFixed(2),
      h("span", { class: one.epochs > MANY_EPOCHS || !one.samples ? "warm" : "hint" }, warn(one)),
    ]),
    { numbers: [1, 2, 3, 4], caption: "Mixture budget" },
  );
}

// A power of two that holds at least two documents.
const rowLength = (mean) => Math.max(256, Math.min(65536, 2 ** Math.ceil(Math.log2(2 * Math.max(1, mean)))));

function packing(store, own, source, given) {
  const tables = store.spans.map((one) => one.name);
  const chosen = store.spans.find((one) => one.name === (given.get("table") ?? "documents")) ?? store.spans[0];
  const state = {
    source,
    length: Number(given.get("length") ?? own?.view.length ?? rowLength(chosen.mean_items)),
    first: Number(given.get("from") ?? 0),
    count: Number(given.get("documents") ?? 256),
    table: chosen.name,
  };
  const place = h("div", { class: "chart" });
  const draw = () => show(place, async () => packingPicture(await ask("packing", state)));
  const set = (name, told) => (value) => {
    state[name] = value;
    keep({ [told]: value });
    draw();
  };
  draw();
  return card(
    "Packing",
    h("p", {}, "Documents are placed longest first, each into the fullest row that still has room for it. A document longer than a row fills rows of its own, and its rest is placed like any other document. Nothing is cut off; the empty space is at the end of rows."),
    h(
      "div",
      { class: "controls" },
      tables.length > 1 ? field("table", select(tables, state.table, set("table", "table"))) : null,
      field("row length", numberInput(state.length, { min: 1, max: 1048576, onchange: set("length", "length") })),
      field("from document", numberInput(state.first, { width: "12ch", onchange: set("first", "from") })),
      sliderField("documents", state.count, { min: 16, max: 2048, step: 16, onchange: set("count", "documents") }),
    ),
    place,
  );
}

function packingPicture(found) {
  const [width, tall, space] = [900, 14, 4];
  const scale = width / (found.length + 1);
  const rows = found.shown.slice(0, 24).map((pieces, number) => {
    let x = 0;
    const y = number * (tall + space);
    return s("g", {}, s("rect", { x: 0, y, width, height: tall, rx: 3, class: "empty" }), pieces.map((piece) => {
      const drawn = s(
        "rect",
        { x: x * scale, y, width: Math.max(0.5, piece.count * scale - 0.7), height: tall, rx: 2, class: colour(piece.document) },
        s("title", {}, `document ${count(piece.document)}: items ${count(piece.start)} to ${count(piece.start + piece.count)} of ${count(piece.of)}`),
      );
      x += piece.count;
      return drawn;
    }));
  });
  return [
    facts([
      ["rows", count(found.rows)],
      ["filled", h("b", { class: "good" }, percent(found.used))],
      ["empty", percent(1 - found.used)],
      ["filled if each document had its own rows", percent(found.used_alone)],
      ["documents longer than a row", count(found.cut)],
    ]),
    found.by_length.length
      ? table(
        ["row length", "wasted by packing", "wasted by padding", "documents longer than a row"],
        found.by_length.map((one) => [count(one.length), waste(1 - one.used), waste(1 - one.used_alone), percent(one.longer)]),
        { numbers: [0, 3], caption: "Waste by row length" },
      )
      : null,
    s("svg", { viewBox: `0 0 ${width} ${Math.max(1, rows.length * (tall + space))}`, role: "img", "aria-label": `${count(rows.length)} of ${count(found.rows)} rows, ${percent(found.used)} filled`, class: "rows" }, rows),
    h("p", { class: "hint" }, `${count(rows.length)} of ${count(found.rows)} rows of ${count(found.length)} + 1 items, made of ${count(found.documents)} documents. \`tokenfeed pack\` makes the plan for all ${count(found.total)}.`),
  ];
}

const waste = (share) =>
  h("span", { class: "waste" }, s("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { width: 100, height: 8, class: "empty" }), s("rect", { width: 100 * share, height: 8, class: "bar over" })), percent(share));

function order(run, own, given) {
  const state = {
    n: Number(given.get("n") ?? own?.samples ?? 1000),
    seed: Number(given.get("seed") ?? run?.plan.seed ?? 0),
    epoch: Number(given.get("epoch") ?? 0),
  };
  const canvas = h("canvas", { width: 560, height: 560, role: "img", class: "scatter" });
  const told = h("div");
  const picture = h("div", { class: "grid" });
  let found = null;
  const draw = () =>
    show(picture, async () => {
      found = await ask("scatter", state);
      canvas.setAttribute("aria-label", `Value against position for ${count(found.n)} samples, seed ${found.seed}, epoch ${found.epoch}`);
      told.replaceChildren(
        h("p", { class: "hint" }, found.step > 1 ? `Every ${count(found.step)}th of ${count(found.n)} positions.` : `All ${count(found.n)} positions.`),
        found.measured.length
          ? table(
            ["measured", "deviation", ""],
            found.measured.map((one) => [one.name, `${one.deviation > 0 ? "+" : ""}${one.deviation} σ`, Math.abs(one.deviation) < 4 ? h("span", { class: "good" }, "like chance") : h("span", { class: "warm" }, "not like chance")]),
            { numbers: [1], caption: "How random the order is" },
          )
          : h("p", { class: "hint" }, "Too few positions to measure."),
      );
      return [canvas, told];
    }).then(() => found && paint(canvas, found));
  document.addEventListener("themechange", () => found && paint(canvas, found));
  const set = (name) => (value) => {
    state[name] = value;
    keep({ [name]: value });
    draw();
  };
  draw();
  return card(
    "Order",
    h("p", {}, "Horizontal: position in the epoch. Vertical: the sample there. Every sample comes once. Nothing is stored: each value is computed on request, and each epoch has an order of its own."),
    h(
      "div",
      { class: "controls" },
      field("samples", numberInput(state.n, { min: 1, width: "16ch", onchange: set("n") })),
      field("seed", numberInput(state.seed, { onchange: set("seed") })),
      field("epoch", numberInput(state.epoch, { onchange: set("epoch") })),
    ),
    picture,
  );
}

function paint(canvas, found) {
  const context = canvas.getContext("2d");
  const size = canvas.width;
  context.clearRect(0, 0, size, size);
  context.fillStyle = getComputedStyle(canvas).color;
  const dot = Math.max(1.6, Math.min(9, size / Math.sqrt(found.values.length) / 5));
  found.values.forEach((value, place) => {
    context.fillRect(((place + 0.5) / found.values.length) * size - dot / 2, size - ((value + 0.5) / found.n) * size - dot / 2, dot, dot);
  });
}

// Other ranks, same samples.
function steps(run, own, given) {
  const last = run?.legs.at(-1);
  const read = (name, usual) => Number(given.get(name) ?? usual);
  const state = {
    n: own?.samples ?? 96,
    seed: run?.plan.seed ?? 0,
    world_size: read("ranks", Math.min(16, last?.world_size ?? 4)),
    batch_size: read("batch", Math.min(16, Number(last?.batch_size) || 3)),
    resume: read("resume", run?.reached ?? 60),
    steps: 6,
  };
  const place = h("div", { class: "chart" });
  const draw = later(() => show(place, async () => stepsPicture(await ask("steps", state))), 20);
  const one = (label, name, told, options) =>
    sliderField(label, state[name], {
      ...options,
      onchange: (value) => {
        state[name] = value;
        keep({ [told]: value });
        draw();
      },
    });
  draw();
  return card(
    "Other ranks, same samples",
    h("p", {}, "A checkpoint is one number: the samples delivered so far. With another number of ranks, or another batch size, the same samples follow in the same order; only the rank that gets each one changes. Batches continue across the end of an epoch."),
    h(
      "div",
      { class: "controls" },
      one("ranks", "world_size", "ranks", { min: 1, max: 16 }),
      one("batch size", "batch_size", "batch", { min: 1, max: 16 }),
      field("resume after", numberInput(state.resume, {
        onchange: (value) => {
          state.resume = value;
          keep({ resume: value });
          draw();
        },
      })),
    ),
    run && run.sources.length > 1 ? h("p", { class: "hint" }, "Shown for one source alone: in a mixture, samples of others lie between.") : null,
    place,
  );
}

function stepsPicture(found) {
  const columns = found.world_size * found.batch_size;
  const wide = Math.max(26, 10 + 7 * String(found.n).length);
  const [tall, gap, left, top] = [26, 8, 104, 22];
  const x = (rank, row) => left + rank * (found.batch_size * wide + gap) + row * wide;
  const width = left + columns * wide + found.world_size * gap;
  const height = top + found.steps.length * (tall + 4);
  const parts = [];
  for (let rank = 0; rank < found.world_size; rank++) parts.push(s("text", { x: x(rank, 0), y: 14 }, `rank ${rank}`));
  found.steps.forEach((step, at) => {
    const y = top + at * (tall + 4);
    parts.push(s("text", { x: 0, y: y + 17 }, `K = ${count(step.start)}`));
    step.ranks.forEach((rows, rank) =>
      rows.forEach(([k, epoch, index], row) =>
        parts.push(s(
          "g",
          {},
          s("rect", { x: x(rank, row), y, width: wide - 2, height: tall, rx: 5, class: colour(epoch) }),
          s("text", { x: x(rank, row) + wide / 2 - 1, y: y + 17, "text-anchor": "middle", class: "inside" }, String(index)),
          s("title", {}, `sample ${count(k)} of the run: epoch ${epoch}, index ${count(index)}; rank ${rank}, row ${row}`),
        ))
      )
    );
  });
  const epochs = [...new Set(found.steps.flatMap((step) => step.ranks.flat().map(([, epoch]) => epoch)))].sort((a, b) => a - b);
  return [
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Steps and ranks" }, s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Index that each rank gets in each step", class: "fixed" }, parts)),
    h("p", { class: "legend" }, epochs.map((epoch) => h("span", {}, h("i", { class: `dot ${colour(epoch)}` }), ` epoch ${epoch} `)), h("span", {}, `${decimal(found.n)} samples in an epoch`)),
  ];
}
