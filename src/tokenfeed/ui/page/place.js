// The cursor: every selection is in the address, `#/view?name=value`, so that a link shows what the sender saw.

// Selections that go along from view to view.
const CURSOR = ["source", "step", "row", "document", "of"];

export function read() {
  const [view, query] = location.hash.slice(2).split("?");
  return { view, given: new URLSearchParams(query) };
}

function write(view, given, change) {
  const wanted = new URLSearchParams(given);
  for (const [name, value] of Object.entries(change)) {
    if (value === null || value === undefined || value === "") wanted.delete(name);
    else wanted.set(name, value);
  }
  return `#/${view}${wanted.size ? `?${wanted}` : ""}`;
}

// The address of a view, with the cursor as it is but for the change.
export function href(view, change = {}) {
  const { view: current, given } = read();
  const kept = view === current ? given : [...given].filter(([name]) => CURSOR.includes(name));
  return write(view, kept, change);
}

// Select something: a new entry in the history, and the page follows.
export const go = (view, change) => (location.hash = href(view, change));

// Note a change that is on the screen already.
export function keep(change) {
  const { view, given } = read();
  history.replaceState(null, "", write(view, given, change));
}

// What is shown, as Python and as a command.
export function asCode({ kind, name, other }) {
  const { view, given } = read();
  const get = (wanted, usual) => given.get(wanted) ?? usual;
  const isRun = kind === "run";
  const open = isRun ? `tokenfeed.Run("${name}").plan()` : `tokenfeed.open("${name}")`;
  const store = isRun ? "STORE" : name;
  const [step, rank] = [get("step", 0), given.get("rank")];
  const sample = { windows: `windows(${get("length", 256)})`, packed: `packed(${get("length", 256)})` }[get("view", "windows")] ?? "documents()";
  return {
    now: [`tokenfeed.observe.read_snapshots("${name}")`, `tokenfeed top ${name}`],
    trace: [
      `tokenfeed.Run("${name}").trace(${step}${rank ? `, rank=${rank}` : ""})`,
      `tokenfeed trace ${name} --step ${step}${rank ? ` --rank ${rank}` : ""}`,
    ],
    text: [`tokenfeed.stream("${name}", tokenizer, batch_size=${get("batch_size", 3)}, length=${get("length", 96)})`, `tokenfeed prepare ${name} -o store --tokenizer tokenizer`],
    data: [open, `tokenfeed inspect ${store}`],
    sample: [`tokenfeed.open("${store}").${sample}[${get("index", 0)}]`, `tokenfeed inspect ${store} --sample ${get("index", 0)}`],
    plan: [open, `tokenfeed pack ${store} --length ${get("length", 2048)}`],
    compare: [`tokenfeed.runs.comparison.compare(tokenfeed.Run("${name}"), tokenfeed.Run("${other}"))`, `tokenfeed diff ${name} ${other}`],
  }[view || (isRun ? "now" : "data")];
}

// Text into the clipboard, as the button tells for a moment.
export const copyButton = (h, label, text) =>
  h("button", {
    type: "button",
    class: "small",
    title: typeof text === "string" ? text : label,
    onclick: async (event) => {
      const button = event.currentTarget;
      const content = typeof text === "string" ? text : text();
      await navigator.clipboard.writeText(content).then(() => button.textContent = "Copied", () => prompt(label, content));
      setTimeout(() => button.textContent = label, 1200);
    },
  }, label);
