// The bytes of a sample in its files. Cells that belong together are highlighted together.
import { bytes, colour, count, h } from "./dom.js";

export function fileCells(found) {
  if (!found.files.length) return h("p", { class: "hint" }, "This sample has no items, so it has no bytes.");
  const root = h("div", { class: "files" });
  const light = (cell) => {
    for (const other of root.querySelectorAll(".cell")) {
      const lit = cell !== null && belongs(cell, other.cell);
      other.classList.toggle("lit", lit);
    }
  };
  for (const file of found.files) {
    const cells = file.cells.map((cell) => ({ ...cell, of: file.of }));
    root.append(
      h(
        "div",
        { class: "file" },
        h(
          "div",
          {},
          h("code", {}, file.name),
          h("small", {}, `${file.what}; ${bytes(file.bytes)}, header ${count(file.header_bytes)} B`),
        ),
        h(
          "div",
          { class: "cells" },
          cells.map((cell) => {
            const element = h(
              "button",
              {
                type: "button",
                class: `cell ${cell.span === undefined ? "" : colour(cell.span)}`,
                title: `bytes ${count(cell.byte_start)} to ${count(cell.byte_stop)}`,
                onpointerenter: () => light(cell),
                onpointerleave: () => light(null),
                onfocus: () => light(cell),
                onblur: () => light(null),
              },
              h("span", {}, cell.value),
              h("small", {}, cell.hex),
              h("em", {}, `@${count(cell.byte_start)}`),
            );
            element.cell = cell;
            return element;
          }),
        ),
      ),
    );
  }
  return root;
}

// Two cells belong together if they show the same item, the same span, or an item and the span that covers it.
function belongs(one, other) {
  if (one === other) return true;
  if (one.span !== undefined && other.span !== undefined) return one.span === other.span && one.of === other.of;
  if (one.item !== undefined && other.item !== undefined) return one.item === other.item;
  const [item, reach] = one.item !== undefined ? [one.item, other.reach] : [other.item, one.reach];
  return item !== undefined && Boolean(reach) && item >= reach[0] && item < reach[1];
}
