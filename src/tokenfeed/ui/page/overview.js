// Contents of a store.
import { ask, bytes, card, count, decimal, facts, field, h, s, select, short, show, table, tile } from "./dom.js";

const PAGE = 20;

export function showOverview(section, subject) {
  return show(section, async () => {
    const store = await ask("store");
    const columnBytes = store.columns.reduce((sum, column) => sum + column.bytes, 0);
    const spanBytes = store.spans.reduce((sum, one) => sum + one.index_bytes + one.payload_bytes, 0);
    return [
      h(
        "div",
        { class: "tiles" },
        tile("items", short(store.items), count(store.items)),
        tile(
          "shards",
          count(store.shards),
          store.splits.map((split) => `${split.name} ${count(split.shards)}`).join(" · ") || "no splits",
        ),
        tile("columns", bytes(columnBytes), store.columns.map((column) => column.name).join(", ")),
        tile("spans", bytes(spanBytes), store.spans.map((one) => one.name).join(", ") || "none"),
      ),
      h(
        "div",
        { class: "grid" },
        card(
          "Columns",
          table(
            ["name", "each item", "size"],
            store.columns.map((one) => [h("code", {}, one.name), h("code", {}, one.dtype), bytes(one.bytes)]),
            { numbers: [2], caption: "Columns" },
          ),
        ),
        store.spans.length
          ? card(
            "Span tables",
            table(
              ["name", "codec", "spans", "mean items", "index", "payloads"],
              store.spans.map((one) => [
                h("code", {}, one.name),
                one.codec ?? "no payloads",
                count(one.spans),
                decimal(one.mean_items),
                bytes(one.index_bytes),
                (one.payload_is_exact ? "" : "about ") + bytes(one.payload_bytes),
              ]),
              { numbers: [2, 3, 4, 5], caption: "Span tables" },
            ),
          )
          : null,
      ),
      store.spans.length ? lengths(store) : null,
      shards(store),
      card(
        "Origin",
        facts([
          ["identity", h("code", {}, store.identity ?? "empty")],
          ["tokenizer", h("code", {}, store.tokenizer ?? "not recorded")],
          ...(subject.tokenizer ? [["decoded with", h("code", {}, subject.tokenizer.digest)]] : []),
        ]),
        subject.tokenizer && store.tokenizer && subject.tokenizer.digest !== store.tokenizer
          ? h(
            "p",
            { class: "problem" },
            "This tokenizer is not the one recorded in the store: the decoded text may be wrong.",
          )
          : null,
        Object.keys(store.provenance).length
          ? h("pre", { tabindex: "0", "aria-label": "Provenance" }, JSON.stringify(store.provenance, null, 2))
          : null,
      ),
    ].filter(Boolean);
  });
}

function lengths(store) {
  const place = h("div", { class: "chart" });
  const draw = (name) => show(place, async () => histogram(await ask("lengths", { table: name })));
  const names = store.spans.map((one) => one.name);
  draw(names[0]);
  return card("Lengths of documents", names.length > 1 ? field("table", select(names, names[0], draw)) : null, place);
}

function histogram(found) {
  if (!found.sampled) return h("p", { class: "hint" }, "This table has no spans.");
  const [width, height, low] = [900, 200, 24];
  const most = Math.max(...found.bins.map((bin) => bin.count));
  const step = width / found.bins.length;
  const bars = found.bins.map((bin, place) => {
    const tall = (height - 10) * (bin.count / most);
    const label = `${count(bin.start)}${bin.stop - bin.start > 1 ? ` to ${count(bin.stop - 1)}` : ""} items: ${
      count(bin.count)
    }`;
    return s("rect", {
      x: place * step + 1,
      y: height - tall,
      width: Math.max(1, step - 2),
      height: tall,
      rx: Math.min(3, tall / 2),
      class: "bar",
    }, s("title", {}, label));
  });
  const every = Math.ceil(found.bins.length / 9);
  const labels = found.bins.filter((_, place) => place % every === 0).map((bin, place) =>
    s("text", { x: place * every * step + step / 2, y: height + 16, "text-anchor": "middle" }, short(bin.start))
  );
  return [
    s(
      "svg",
      {
        viewBox: `0 0 ${width} ${height + low}`,
        role: "img",
        "aria-label": `Histogram of lengths, median ${decimal(found.median)} items`,
      },
      s("line", { x1: 0, x2: width, y1: height + 0.5, y2: height + 0.5, class: "axis" }),
      bars,
      labels,
    ),
    facts([["shortest", count(found.shortest)], ["median", decimal(found.median)], ["mean", decimal(found.mean)], [
      "90%",
      decimal(found.p90),
    ], ["longest", count(found.longest)]]),
    h(
      "p",
      { class: "hint" },
      found.sampled === found.total
        ? `All ${count(found.total)} spans.`
        : `From a sample of ${count(found.sampled)} of ${count(found.total)} spans.`,
    ),
  ];
}

function shards(store) {
  const place = h("div");
  const tables = store.spans.map((one) => one.name);
  function go(first) {
    return show(place, async () => {
      const page = await ask("shards", { first, count: PAGE });
      const stop = page.first + page.shards.length;
      const button = (label, to, is) => h("button", { type: "button", disabled: !is, onclick: () => go(to) }, label);
      return [
        table(
          ["", "shard", "split", "first item", "items", ...tables, "size"],
          page.shards.map((shard) => [
            count(shard.number),
            h("code", {}, shard.name),
            shard.split ?? "–",
            count(shard.first_item),
            count(shard.items),
            ...tables.map((name) => count(shard.spans[name])),
            bytes(shard.bytes),
          ]),
          { numbers: [0, 3, 4, ...tables.map((_, place) => 5 + place), 5 + tables.length], caption: "Shards" },
        ),
        page.total > PAGE
          ? h(
            "div",
            { class: "pager", role: "group", "aria-label": "Pages of shards" },
            button("First", 0, page.first > 0),
            button("Previous", Math.max(0, page.first - PAGE), page.first > 0),
            h("span", {}, `${count(page.first + 1)} to ${count(stop)} of ${count(page.total)}`),
            button("Next", stop, stop < page.total),
            button("Last", Math.floor((page.total - 1) / PAGE) * PAGE, stop < page.total),
          )
          : null,
      ].filter(Boolean);
    });
  }
  go(0);
  return card("Shards", place);
}
