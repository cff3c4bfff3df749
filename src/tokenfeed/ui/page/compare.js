// Two runs side by side, and from which step on they differ.
import { ask, card, count, h, share, show } from "./dom.js";
import { href } from "./place.js";
import { timeline } from "./timeline.js";

export function showCompare(section) {
  return show(section, async () => {
    const found = await ask("compare");
    const step = found.step ?? found.division_step;
    return [
      h("div", { class: `words ${found.same ? "good" : "warn"}` }, found.told.split("\n").map((text, place) => h("p", { class: place ? "hint" : "verdict" }, text))),
      h(
        "div",
        { class: "grid" },
        found.runs.map((run, place) =>
          card(
            run.name,
            h("p", { class: "hint" }, run.plan.told),
            timeline(run, { step, onpick: (wanted) => (location.hash = href("trace", { step: wanted })) }),
            h("table", {}, h("caption", {}, run.name), h("tbody", {}, facts(run, found.runs[1 - place]).map(([name, value, differs]) =>
              h("tr", { class: differs ? "differs" : null }, h("th", { scope: "row" }, name), h("td", {}, value))
            ))),
          )
        ),
      ),
      step === null ? null : h("p", {}, h("a", { href: href("trace", { step }) }, `What step ${count(step)} trains on`)),
    ];
  });
}

const weights = (given) => Object.entries(given).map(([name, value]) => `${name} ${share(value)}`).join(", ");

function facts(run, other) {
  const pairs = (one) => [
    ["seed", count(one.plan.seed)],
    ["sources", one.sources.map((source) => `${source.name || "data"}: ${count(source.samples)} samples of ${source.told}`).join("; ")],
    ...(one.weights ? [["weights at first", weights(one.weights[0])], ["weights now", weights(one.weights[1])]] : []),
    ["starts", count(one.num_starts)],
    ["ranks × batch size", one.legs.map((leg) => `${leg.world_size} × ${leg.batch_size}`).join(", ")],
    ["amendments", one.amendments.map((each) => `${each.told} at step ${count(each.step)}`).join("; ") || "none"],
    ["delivered", `${count(one.reached)} samples`],
    ["end", one.end === null ? "none" : `${count(one.end)} samples`],
  ];
  const others = new Map(pairs(other));
  return pairs(run).map(([name, value]) => [name, value, value !== others.get(name)]);
}
