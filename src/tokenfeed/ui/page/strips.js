// One heat strip for every rank, the worst first.
import { bytes, count, duration, h, share, short } from "./dom.js";
import { edges } from "./figures.js";
import { keep } from "./place.js";
import { dismiss, known } from "./pulse.js";

const MOST_STRIPS = 16;
export const STATES = { runs: "running", ended: "ended", silent: "silent", gone: "dead" };
const WEIGHT = { gone: 3, silent: 2, runs: 1, ended: 0 };
export const worstFirst = (loaders) =>
  [...loaders].sort((a, b) => WEIGHT[b.state] - WEIGHT[a.state] || b.wait_fraction - a.wait_fraction || a.rank - b.rank);

// One heat strip for each rank: how much it waited, over time. The worst come first.
export function drawStrips(place, view, told, present) {
  const times = edges(view.state.window, told);
  const order = worstFirst(present);
  const shown = view.state.all ? order : order.slice(0, MOST_STRIPS);
  const past = told.loaders.filter((one) => one.is_past).length;
  place.replaceChildren(
    h(
      "ul",
      { class: "strips", "aria-label": "Ranks, the worst first" },
      shown.map((one) => {
        const bins = known.tracks.get(one.id).bins(times);
        const isRunning = one.state === "runs";
        return h(
          "li",
          {},
          h("span", { class: "who" }, `rank ${one.rank}`, h("span", { class: `pill state ${one.state}` }, STATES[one.state])),
          strip(bins.map((bin) => bin?.wait ?? null), `rank ${one.rank}: waits ${share(one.wait_fraction)}`),
          h(
            "small",
            {},
            isRunning
              ? `${short(one.items_per_second)} tokens/s · waits ${share(one.wait_fraction)} · ${count(one.queued)} of ${count(one.prefetch)} ready · ${bytes(one.memory_bytes)}`
              : `last heard ${duration(Math.max(0, told.now - one.last))} ago, after ${count(one.batches)} batches`,
            ` · ${one.host} ${one.pid}`,
          ),
          ["gone", "silent"].includes(one.state)
            ? h("button", { type: "button", class: "small", onclick: () => dismiss(one) }, "Dismiss")
            : null,
        );
      }),
    ),
    h(
      "p",
      { class: "legend" },
      h("span", {}, h("i", { class: "heat" }), " never waits to always waits"),
      order.length > MOST_STRIPS
        ? h("button", {
          type: "button",
          class: "small",
          onclick: () => {
            view.state.all = !view.state.all;
            keep({ ranks: view.state.all ? "all" : null });
            view.draw();
          },
        }, view.state.all ? `Only the worst ${MOST_STRIPS}` : `All ${count(order.length)} ranks`)
        : null,
      past ? h("span", {}, `${count(past)} earlier, shown only in the charts`) : null,
    ),
  );
}

// Heat from the colour of good to that of bad; nothing where nothing is known.
function strip(values, label) {
  const canvas = h("canvas", { width: values.length, height: 1, class: "strip", role: "img", "aria-label": label });
  const context = canvas.getContext("2d");
  const shades = palette();
  values.forEach((value, place) => {
    if (value === null) return;
    context.fillStyle = shades[Math.round(Math.min(1, Math.sqrt(value)) * (shades.length - 1))];
    context.fillRect(place, 0, 1, 1);
  });
  return canvas;
}

// Shades of the present theme between three colours: a canvas knows neither variables nor light-dark().
let shades = null;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shades = null);
function palette() {
  if (shades) return shades;
  const probe = h("i", { hidden: true });
  document.body.append(probe);
  shades = Array.from({ length: 33 }, (_, place) => {
    const [low, high] = place < 16 ? ["--good-soft", "--warm"] : ["--warm", "--bad"];
    probe.style.color = `color-mix(in srgb, var(${high}) ${((place % 16) / 16 + (place === 32 ? 1 : 0)) * 100}%, var(${low}))`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return shades;
}

