// The order of a run: the permutation as a picture, the path of one index, and the samples of each rank.
import { ask, card, count, field, h, numberInput, show, table } from "./dom.js";
import { steps } from "./steps.js";

export function showOrder(section) {
  const state = { n: 1000, seed: 0, epoch: 0, position: 0 };
  const rounds = h("div");
  const canvas = h("canvas", { width: 560, height: 560, role: "img", class: "scatter", tabindex: "0" });
  const told = h("p", { class: "hint" });
  const picture = h("div", { class: "chart" }, canvas, told);
  let found = null;

  const position = numberInput(0, {
    width: "14ch",
    onchange: (value) => {
      state.position = value;
      walk();
    },
  });

  async function change(name, value) {
    state[name] = value;
    await draw();
    walk();
  }

  const draw = () =>
    show(picture, async () => {
      found = await ask("scatter", { n: state.n, seed: state.seed, epoch: state.epoch });
      paint(canvas, found, Number(state.position));
      canvas.setAttribute(
        "aria-label",
        `Value against position for ${count(found.n)} indices, seed ${found.seed}, epoch ${found.epoch}`,
      );
      told.textContent = found.step > 1
        ? `Every ${count(found.step)}th of ${count(found.n)} positions. Click one to follow it.`
        : `All ${count(found.n)} positions. Click one to follow it.`;
      return [canvas, told];
    });
  const walk = () => show(rounds, async () => walkTable(await ask("rounds", state)));

  canvas.addEventListener("click", (event) => {
    const share = event.offsetX / canvas.clientWidth;
    follow(Math.floor(share * found.values.length) * found.step);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      event.preventDefault();
      follow(Number(state.position) + step * found.step);
    }
  });
  function follow(place) {
    state.position = Math.max(0, Math.min(place, found.n - 1));
    position.value = state.position;
    paint(canvas, found, state.position);
    walk();
  }
  document.addEventListener("themechange", () => found && paint(canvas, found, Number(state.position)));

  section.replaceChildren(
    h(
      "div",
      { class: "grid" },
      card(
        "A permutation",
        h(
          "p",
          {},
          "Horizontal: position k. Vertical: the value there. Every value appears once, in an order that looks random to the eye and to statistical tests. Nothing is stored: each value is computed on request.",
        ),
        h(
          "div",
          { class: "controls" },
          field(
            "n",
            numberInput(state.n, {
              min: 1,
              width: "16ch",
              onchange: (value) => change("n", value),
            }),
          ),
          field("seed", numberInput(state.seed, { onchange: (value) => change("seed", value) })),
          field("epoch", numberInput(state.epoch, { onchange: (value) => change("epoch", value) })),
        ),
        picture,
      ),
      card(
        "One index, round by round",
        h(
          "p",
          {},
          "A position is split into two halves. Each round adds to one half a number that depends on the other half and on a key. Every round can be undone, so two positions never give the same value.",
        ),
        h("div", { class: "controls" }, field("position", position)),
        rounds,
      ),
    ),
    steps(),
  );
  draw();
  walk();
}

function paint(canvas, found, chosen) {
  const context = canvas.getContext("2d");
  const size = canvas.width;
  const style = getComputedStyle(canvas);
  context.clearRect(0, 0, size, size);
  context.fillStyle = style.color;
  const dot = Math.max(1.6, Math.min(9, size / Math.sqrt(found.values.length) / 5));
  found.values.forEach((value, place) => {
    const x = ((place + 0.5) / found.values.length) * size;
    const y = size - ((value + 0.5) / found.n) * size;
    context.fillRect(x - dot / 2, y - dot / 2, dot, dot);
  });
  const place = Math.floor(chosen / found.step);
  if (place >= 0 && place < found.values.length) {
    const x = ((place + 0.5) / found.values.length) * size;
    const y = size - ((found.values[place] + 0.5) / found.n) * size;
    context.strokeStyle = style.caretColor;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, size);
    context.lineTo(x, y);
    context.lineTo(0, y);
    context.stroke();
    context.beginPath();
    context.arc(x, y, 7, 0, 7);
    context.stroke();
  }
}

function walkTable(walk) {
  const rows = [[h("span", {}, "start"), halves(walk.start, null), "", h("code", {}, walk.position)]];
  let before = walk.start;
  walk.passes.forEach((pass, number) => {
    pass.forEach((round, place) => {
      rows.push([
        h("span", {}, `${walk.passes.length > 1 ? `${number + 1}.` : ""}${place + 1}`),
        halves(round, before),
        h(
          "span",
          { title: `key ${round.key}` },
          `${round.moves === "left" ? "left" : "right"} + ${count(Number(round.shift))}`,
        ),
        h("code", {}, round.place),
      ]);
      before = round;
    });
  });
  const last = walk.passes.at(-1).at(-1).place;
  return [
    h("p", { class: "result" }, "p[", h("b", {}, walk.position), "] = ", h("b", { id: "walk-value" }, walk.value)),
    h(
      "p",
      { class: "hint" },
      `${walk.a} × 2^${walk.bits} = ${walk.places} places` +
        (walk.passes.length > 1
          ? `; the first pass${walk.passes.length > 2 ? "es" : ""} ended beyond n, so it went through again`
          : "") +
        (last === walk.value ? "." : "!"),
    ),
    h(
      "div",
      { class: "tall" },
      table(["round", "left half · right half", "added", "place"], rows, { numbers: [3], caption: "Rounds" }),
    ),
  ];
}

function halves(now, before) {
  const bits = (half, name) =>
    h(
      "span",
      { class: "bits" },
      [...half].map((bit, place) =>
        h("i", { class: `${bit === "1" ? "one" : ""} ${before && before[name][place] !== bit ? "changed" : ""}` })
      ),
    );
  return h(
    "span",
    { class: "halves", role: "img", "aria-label": `${now.left} ${now.right}` },
    bits(now.left, "left"),
    bits(now.right, "right"),
  );
}
