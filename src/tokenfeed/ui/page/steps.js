// The samples of each rank, step by step, across epochs, from any sample on.
import { ask, card, colour, count, h, later, s, show, sliderField } from "./dom.js";

export function steps() {
  const state = { n: 96, seed: 0, world_size: 4, batch_size: 3, resume: 60, steps: 6 };
  const place = h("div", { class: "chart" });
  const draw = later(() => show(place, async () => stepsPicture(await ask("steps", state))), 20);
  const one = (label, name, options) =>
    sliderField(label, state[name], {
      ...options,
      onchange: (value) => {
        state[name] = value;
        draw();
      },
    });
  draw();
  return card(
    "Steps, ranks, epochs",
    h(
      "p",
      {},
      "A checkpoint is one number: the samples delivered so far. With another number of ranks, or another batch size, the same samples follow in the same order; only the rank that gets each one changes. Batches continue across the end of an epoch.",
    ),
    h(
      "div",
      { class: "controls" },
      one("samples per epoch", "n", { min: 8, max: 400 }),
      one("ranks", "world_size", { min: 1, max: 16 }),
      one("batch size", "batch_size", { min: 1, max: 16 }),
      one("resume after", "resume", { min: 0, max: 1200 }),
      one("seed", "seed", { min: 0, max: 50 }),
    ),
    place,
  );
}

function stepsPicture(found) {
  const columns = found.world_size * found.batch_size;
  const [cell, gap, left, top] = [26, 8, 78, 22];
  const x = (rank, row) => left + rank * (found.batch_size * cell + gap) + row * cell;
  const width = left + columns * cell + found.world_size * gap;
  const height = top + found.steps.length * (cell + 4);
  const parts = [];
  for (let rank = 0; rank < found.world_size; rank++) parts.push(s("text", { x: x(rank, 0), y: 14 }, `rank ${rank}`));
  found.steps.forEach((step, number) => {
    const y = top + number * (cell + 4);
    parts.push(s("text", { x: 0, y: y + 17 }, `K = ${count(step.start)}`));
    step.ranks.forEach((rows, rank) =>
      rows.forEach(([k, epoch, index], row) =>
        parts.push(
          s(
            "g",
            {},
            s("rect", { x: x(rank, row), y, width: cell - 2, height: cell, rx: 5, class: colour(epoch) }),
            s(
              "text",
              { x: x(rank, row) + cell / 2 - 1, y: y + 17, "text-anchor": "middle", class: "small" },
              count(index),
            ),
            s(
              "title",
              {},
              `sample ${count(k)} of the run: epoch ${epoch}, index ${count(index)}; rank ${rank}, row ${row}`,
            ),
          ),
        )
      )
    );
  });
  const epochs = [...new Set(found.steps.flatMap((step) => step.ranks.flat().map(([, epoch]) => epoch)))].sort((a, b) =>
    a - b
  );
  return [
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Steps and ranks" },
      s("svg", {
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": "Index that each rank gets in each step",
        class: "fixed",
      }, parts),
    ),
    h(
      "p",
      { class: "legend" },
      epochs.map((epoch) => h("span", {}, h("i", { class: `dot ${colour(epoch)}` }), ` epoch ${epoch} `)),
    ),
  ];
}
