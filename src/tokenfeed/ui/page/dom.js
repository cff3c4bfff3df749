// Elements, numbers as text, and requests to the server. Text is always set as text, never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fraction = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

const precise = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

export const count = (value) => (typeof value === "number" ? whole.format(value) : String(value));
// A number as it is: fractions keep six digits.
export const number = (value) =>
  typeof value !== "number" ? String(value) : Number.isInteger(value) ? whole.format(value) : precise.format(value);
export const decimal = (value) => fraction.format(value);
export const percent = (value) => `${(100 * value).toFixed(1)}%`;
// Percentages and numbers with enough decimals for small values.
export const share = (value) => `${(100 * value).toFixed(value >= 0.1 ? 0 : value >= 0.01 ? 1 : 2)}%`;
export const fine = (value) => value.toFixed(value >= 10 ? 0 : value >= 1 ? 1 : 2);

export function short(value) {
  for (const [size, unit] of [[1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return `${fraction.format(value / (unit === "k" ? 1e3 : size))} ${unit}`;
  }
  return count(value);
}

export function bytes(value) {
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 1000) return `${unit === "B" ? count(value) : decimal(value)} ${unit}`;
    value /= 1000;
  }
  return `${decimal(value)} PB`;
}

// The answer to a request. Throws an Error whose message can be shown to the user. The token is kept in the storage of
// this origin, which pages of other ports cannot read.
export async function ask(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  let response;
  try {
    response = await fetch(`api/${name}?${new URLSearchParams(given)}`, {
      credentials: "omit",
      headers: { "X-Tokenfeed-Token": sessionStorage.getItem("token") ?? "" },
    });
  } catch {
    tellOffline("The server does not answer. Is `tokenfeed serve` still running? What is shown may be out of date.");
    throw new Error("The server does not answer.");
  }
  tellOffline("");
  const answer = await response.json().catch(() => ({ message: `The server answered with status ${response.status}.` }));
  if (!response.ok) throw new Error(answer.message);
  return answer;
}

function tellOffline(text) {
  const place = document.getElementById("offline");
  if (place.textContent === text) return;
  place.textContent = text;
  place.hidden = !text;
}

// Show the result of `make` in `place`, or its error. If several are under way, only the latest is shown.
const latest = new WeakMap();
export async function show(place, make) {
  const turn = (latest.get(place) ?? 0) + 1;
  latest.set(place, turn);
  place.setAttribute("aria-busy", "true");
  if (!place.childElementCount) place.replaceChildren(h("div", { class: "skeleton" }));
  let content;
  try {
    content = await make();
  } catch (error) {
    content = h("p", { class: "problem", role: "alert" }, error.message);
  }
  if (latest.get(place) !== turn) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(...[content].flat().filter(Boolean));
  place.removeAttribute("aria-busy");
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function later(action, milliseconds = 150) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}

export const sum = (list, name) => list.reduce((total, one) => total + one[name], 0);
export const mean = (list) => list.reduce((total, value) => total + value, 0) / Math.max(1, list.length);

// Buttons of which one is chosen.
export const segments = (label, names, chosen, onpick) =>
  h("div", { class: "segments", role: "group", "aria-label": label }, names.map((name) =>
    h("button", { type: "button", "aria-pressed": String(name === chosen), onclick: () => onpick(name) }, name)));

let fields = 0;
export function field(label, input) {
  input.id ||= `field-${++fields}`;
  return h("label", { class: "field", for: input.id }, h("span", {}, label), input);
}

export function numberInput(value, { min = 0, onchange, width = "11ch", wait = 150, id }) {
  const input = h("input", { id, type: "number", inputmode: "numeric", min, value, style: { width } });
  input.addEventListener("input", later(() => input.value !== "" && onchange(input.value), wait));
  return input;
}

export function select(options, value, onchange) {
  const element = h("select", {}, options.map((one) => h("option", { value: one, selected: one === value }, one || "–")));
  element.addEventListener("change", () => onchange(element.value));
  return element;
}

export function table(heads, rows, { caption, numbers = [] } = {}) {
  const kind = (place) => (numbers.includes(place) ? "number" : null);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption ?? heads.join(", ") },
    h(
      "table",
      {},
      caption ? h("caption", {}, caption) : null,
      h("thead", {}, h("tr", {}, heads.map((head, place) => h("th", { scope: "col", class: kind(place) }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h("td", { class: kind(place) }, cell))))),
    ),
  );
}

// Buttons that lead through pages of `size`; nothing where one page holds all.
export function pager(label, { first, shown, total, size }, go) {
  const stop = first + shown;
  const button = (name, to, is) => h("button", { type: "button", disabled: !is, onclick: () => go(to) }, name);
  return total <= size ? null : h(
    "div",
    { class: "pager", role: "group", "aria-label": label },
    button("First", 0, first > 0),
    button("Previous", Math.max(0, first - size), first > 0),
    h("span", {}, `${count(first + 1)} to ${count(stop)} of ${count(total)}`),
    button("Next", stop, stop < total),
    button("Last", Math.floor((total - 1) / size) * size, stop < total),
  );
}

export const card = (title, ...children) =>
  h("article", { class: "card" }, title ? h("h2", {}, title) : null, ...children);
export const tile = (name, value, detail, kind) =>
  h("div", { class: "tile" }, h("span", {}, name), h("strong", { class: kind }, value), h("small", {}, detail));
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
export const json = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 2);
// A payload as a list of its fields.
export const payload = (value) => {
  if (value === null || value === undefined) return h("p", { class: "hint" }, "No payload.");
  if (typeof value !== "object" || Array.isArray(value)) return h("pre", { tabindex: "0" }, json(value));
  return h(
    "dl",
    { class: "fields" },
    Object.entries(value).map(([name, one]) => [
      h("dt", {}, name),
      h("dd", { dir: "auto" }, typeof one === "number" ? number(one) : json(one)),
    ]),
  );
};
// Text of each token. A character whose bytes lie in several tokens is that of the last of them.
export function texts(tokens) {
  let decoder = new TextDecoder();
  return tokens.map(([id, text, kind]) => {
    if (kind === 2) return decoder.decode(Uint8Array.from(text.split(" "), (byte) => parseInt(byte, 16)), { stream: true });
    const rest = decoder.decode();
    decoder = new TextDecoder();
    return rest + (text === "" ? ` ${id} ` : text);
  });
}
export function duration(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}
export const colour = (number) => `d${((number % 8) + 8) % 8}`;
