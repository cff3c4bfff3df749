"""The page and the pictures, from raw results alone."""

import platform
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from capabilities import capability_table
from chart import Bar, Panel, draw
from figures import LIMITS, OURS, Column, Figure, losses, table

from charts import Line, draw_curves

__all__ = ["describe_machine", "readme_table", "write_report"]

_BATCH = (
    "These index one mapped file and do nothing else; ours checks bounds and makes a system call a row, which "
    '`backend="mmap"` saves at the risk of SIGBUS (a row of its own above).'
)
_START = "It is Numba setting itself up, once a process; a second loader begins within a millisecond (below)."
_LIBRARIES = "It is Numba with LLVM, which tokenfeed imports and these do not."
_COLD = (
    "Without read-ahead a batch is made within the step, and after 10 ms of other work our code, which is longer, has "
    "left the nearest caches."
)
_LOCK = "The likely cause, which this run does not separate: our workers are threads and share the interpreter lock."


def _steady(key: str, workers: str | None, factor: float = 1.0) -> Any:
    """Of no workers, or of the number of workers that gave most tokens."""

    def get(row: Any) -> Figure:
        by_workers = row.get("steady") or {}
        if workers is not None:
            return Figure(tuple(factor * value for value in by_workers.get(workers, {}).get(key, ())))
        best = best_workers(by_workers)
        if best is None:
            return Figure()
        words = f", {best} workers" if key == "tokens_per_second" else ""
        return Figure(tuple(factor * value for value in by_workers[best][key]), words)

    return get


def best_workers(by_workers: dict[str, Any]) -> str | None:
    """The number of workers, of one or more, that gave most tokens."""
    some = {
        count: Figure(tuple(turns["tokens_per_second"])).median for count, turns in by_workers.items() if count != "0"
    }
    return max(some, key=lambda count: some[count]) if some else None


def _first(key: str, at: int) -> Any:
    return lambda row: Figure(tuple(times[at] for times in (row.get("first") or {}).get(key, ())))


def _memory(key: str) -> Any:
    def get(row: Any) -> Figure:
        memory = (row.get("first") or {}).get("memory")
        return Figure((memory[key],) if memory else ())

    return get


def _equal(row: Any) -> Figure:
    first = row.get("first") or {}
    if first.get("state_bytes") is None:
        return Figure(words="no state")
    return Figure(words=_YES_NO[first["equal"]] if "equal" in first else "–")


def _state_bytes(row: Any) -> Figure:
    size = (row.get("first") or {}).get("state_bytes")
    return Figure((size,) if size else ())


def _ranks(row: Any) -> Figure:
    ranks = row.get("ranks")
    if ranks is None:
        return Figure(words="–")
    return Figure(words=f"{ranks['lost']:.4g} / {ranks['repeated']:.4g}")


def _whole_steps(row: Any) -> Figure:
    """Of the steps that all ranks take together, over two epochs: how many have fewer rows than the first."""
    ranks = row.get("epochs")
    if ranks is None:
        return Figure(words="–")
    sums = _rows_by_step(ranks)
    short = sum(rows < sums[0] for rows in sums)
    return Figure(words=f"**{short} of {len(sums)}**" if short else f"0 of {len(sums)}")


def _rows_by_step(ranks: list[list[list[int]]]) -> list[int]:
    """The rows of all ranks together; a rank whose epochs are over gives none."""
    runs = [[rows for epoch in rank for rows in epoch] for rank in ranks]
    return [sum(rows) for rows in zip_longest(*runs, fillvalue=0)]


def _setup(key: str) -> Any:
    return lambda row: Figure((row["setup"][key],))


def _verdict(row: Any) -> Figure:
    parts = []
    for n, found in row["statistics"].items():
        if found["missed"]:
            parts.append(f"**misses {found['missed']}, repeats {found['repeated']}** of {int(n):,}")
        elif found["doubtful"]:
            name, p = found["doubtful"][0]
            parts.append(f"{len(found['doubtful'])} of {found['tests']} fail at {int(n):,} ({name}: p = {p:.0e})")
        else:
            parts.append(f"all {found['tests']} hold at {int(n):,}")
    return Figure(words="; ".join(parts))


RATES = (
    Column("M tokens/s, no workers", _steady("tokens_per_second", "0", 1e-6), True, why=_BATCH),
    Column("M tokens/s, best of 1 and 2 workers", _steady("tokens_per_second", None, 1e-6), True, why=_BATCH),
    Column("CPU s per M tokens, no workers", _steady("cpu_seconds_per_million", "0"), False, 2, _BATCH),
    Column("slow-down of a 10 ms step of Python, no workers, %", _steady("slowdown", "0", 100), False, 2, _COLD),
    Column("the same with workers, %", _steady("slowdown", None, 100), False, 2, _LOCK),
)
STARTS = (
    Column("first batch, with imports, s", _first("begin", 0), False, 3, _LIBRARIES),
    Column("without imports, s", _first("begin", 1), False, 2, _START),
    Column("resumed at 60%, without imports, s", _first("resume", 1), False, 2, _START),
    Column("resumed = uninterrupted", _equal),
    Column("2 → 3 ranks: samples lost / repeated, of 3,600", _ranks),
    Column("two epochs on 2 nodes of 2 ranks: steps with fewer rows", _whole_steps),
    Column("state, bytes", _state_bytes),
    Column("PSS, MB", _memory("pss"), False, 3, _LIBRARIES),
    Column("of it backed by no file, MB", _memory("private"), False, 3, _LIBRARIES),
)
ORDERS = (
    Column("up to the first 1,024 samples, s", _setup("seconds"), False, 2),
    Column("memory for it, MB", _setup("megabytes"), False, 2),
    Column("statistics of 8 epochs", _verdict),
)

_YES_NO = {True: "yes", False: "**no**", None: "no state"}
_BUFFER = (
    "Ours starts Numba and fills a buffer of 1,000 documents, from which best fit chooses, before its first row; a "
    "smaller `buffer_size` begins earlier and packs worse."
)
_ENGINE = (
    "Passes repeat the same text, and these keep every word they have met, or have code of their own for this pattern; "
    "ours compiles any pattern and keeps a table of 8 MB a thread."
)
_FIRST_PASS = "gigatoken has code of its own for this pattern, and no limit on the memory for words."
_ENCODED = (
    Column("MB/s, 1 thread", lambda row: Figure(tuple(row["one"])), True, why=_ENGINE),
    Column("MB/s, 2 threads", lambda row: Figure(tuple(row["two"])), True, why=_ENGINE),
    Column("first pass, 2 threads", lambda row: Figure(tuple(row["first"])), True, why=_FIRST_PASS),
    Column("tiktoken's tokens", lambda row: Figure(words=_YES_NO[row["exact"]])),
)


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of one of the roads that begin with text."""

    title: str
    head: str
    ours: str
    note: str
    columns: tuple[Column, ...]


TEXTS = {
    "stream": TextTable(
        "Streaming from text",
        "stream",
        "tokenfeed_stream",
        "Batches of 32 × 2,048 from Parquet, the same vocabulary of 32,768. Positions are counted, whether "
        "they hold a token "
        "or padding: grain pads and cuts documents at a row's end, nanochat's loop crops, Hugging Face's "
        "grouping drops rests.",
        (
            Column("M tokens/s", lambda row: Figure(tuple(1e-6 * value for value in row["tokens_per_second"])), True),
            Column("CPU s per M tokens", lambda row: Figure(tuple(row["cpu_seconds_per_million"])), False, 2),
            Column("first batch, without imports, s", lambda row: Figure((row["first"],)), False, 2, _BUFFER),
            Column("resumed = uninterrupted", lambda row: Figure(words=_YES_NO[row["equal"]])),
            Column("state, bytes", lambda row: Figure((row["state_bytes"],) if row["state_bytes"] else ())),
        ),
    ),
    "prepare": TextTable(
        "Preparing tokens",
        "command",
        "tokenfeed_prepare",
        "Text in four Parquet files, two workers, from the call to the files, process starts included. "
        "nanochat has no such step.",
        (
            Column("MB of text/s", lambda row: Figure(tuple(row["megabytes_per_second"])), True),
            Column("tokens", lambda row: Figure((row["tokens"][0],))),
        ),
    ),
    "tokenizer": TextTable(
        "Tokenizers, nanochat's pattern",
        "tokenizer",
        "tokenfeed_tokenizer",
        "A vocabulary of 32,768. Whole passes over the same Python sources, repeated, so caches are warm; delivered as "
        "one NumPy array a batch. The first pass is one measurement, and has met no word before.",
        _ENCODED,
    ),
    "tokenizer-gpt4": TextTable(
        "Tokenizers, GPT-4's pattern",
        "tokenizer",
        "tokenfeed_tokenizer",
        "The same merges and text, cut into words by the pattern of GPT-4 (cl100k), which gigatoken knows.",
        _ENCODED,
    ),
}


def write_report(page: Path, raw: dict[str, Any]) -> None:
    """`page` and, beside it, the pictures."""
    titles = raw["titles"]
    names = [name for name in titles if name in raw["about"]]
    rows = {name: {part: raw[part].get(name) for part in ("steady", "first", "ranks", "epochs")} for name in names}
    rows = {name: row for name, row in rows.items() if any(row.values())}
    scale = raw["scale"]
    lines = [
        "# tokenfeed beside the loaders people use",
        "",
        f"Made by `make bench-peers` on {raw['date']}; nothing is written by hand but the reasons, and the table of "
        "what each can do. "
        f"{raw['machine']}. "
        f"The `{scale['name']}` form: {scale['num_tokens']:,} uint16 tokens in documents of log-normal "
        f"lengths, page cache warm, "
        f"shuffled batches of 32 × 2,049 delivered as int64 inputs and targets, {scale['rounds']} rounds of "
        f"{scale['seconds']:g} s by turns. "
        "Figures are medians (smallest–largest).",
        "",
        *_pictures(page.stem, "Tokens a second of each loader"),
        "",
        "Other processes, peers' own worker processes among them, took of the processors meanwhile: "
        f"{_others(raw['others'])}.",
        "",
        "## Rates",
        "",
        *table(RATES, rows, titles, head="loader"),
        "",
        "The clock stands still between epochs, so peers do not pay for starting one. Workers are processes, "
        "or threads for tokenfeed and the C loop.",
        "",
        "## Starting, resuming, other ranks, memory",
        "",
        *table(STARTS, rows, titles, head="loader"),
        "",
        "Fresh processes, one at a time, no workers. 2 → 3 ranks: two ranks for 60% of an epoch, then three "
        "with the saved states, processes as `torchrun` starts them; "
        "tokens that came twice or never, divided by the tokens of a sample. Two epochs: 3,607 samples on two nodes of "
        "two ranks with a worker each, batches of four rows; that there are two nodes, the environment alone tells. A "
        "step is what all ranks take together, and has fewer rows once a rank has no more.",
    ]
    if raw["epochs"]:
        lines += ["", *_pictures("epochs", "Rows in every step of two epochs")]
    behind = losses(RATES, rows, titles, ours=OURS, limits=LIMITS) + losses(
        STARTS, rows, titles, ours=OURS, limits=LIMITS
    )
    if raw.get("orders"):
        lines += [
            "",
            "## Shuffle",
            "",
            *table(ORDERS, raw["orders"], titles, head="order"),
            "",
            f"Of {scale['shuffle_samples']:,} samples, in a process that has made an order of 1,000 before, so that no "
            "code is left to load. The statistics are those of tokenfeed's own tests (`tests/randomness.py`); one "
            "fails where p is below 10⁻⁶. Loaders that cannot tell their order without data are not here; that of "
            "datatrove is made once, when the file is written, and is the same in every epoch.",
        ]
        behind += losses(ORDERS, raw["orders"], titles, ours=OURS)
    for section in raw.get("texts", ()):
        text, found = TEXTS[section["kind"]], section["rows"]
        lines += ["", f"## {text.title}", "", *table(text.columns, found, titles, head=text.head), "", text.note]
        behind += losses(text.columns, found, titles, ours=text.ours)
    lines += ["", "## Where tokenfeed is not ahead, and why", "", *(behind or ["Nowhere in this run."])]
    lines += ["", *_breakdowns(rows, titles)]
    lines += ["", "## What each can do", "", *capability_table(rows, raw["orders"])]
    lines += ["", "## What could not be measured", "", *_failures(raw, titles)]
    lines += ["", "## Settings", "", *_settings(raw, titles)]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines) + "\n")
    _draw(page, rows, titles, raw)


def readme_table(raw: dict[str, Any]) -> list[str]:
    """The lines of the README's table: five systems, and what each is known by."""

    def rate(name: str) -> str:
        return Figure(tuple(1e-6 * value for value in raw["steady"][name]["0"]["tokens_per_second"])).write_median(3)

    epochs = _whole_steps({"epochs": raw["epochs"]["litdata_peer"]}).words.strip("*")
    missed = raw["orders"]["grain_peer"]["statistics"]["65537"]["missed"]
    lost = raw["ranks"]["datasets_peer"]["lost"]
    setup = raw["orders"]["mosaicml_peer"]["setup"]
    words = {
        "litdata_peer": f"steps with fewer rows, of two epochs on 2 × 2 ranks: {epochs}",
        "grain_peer": f"its shuffle of 65,537 samples misses {missed}",
        "datasets_peer": f"from 2 to 3 ranks, {lost:,.0f} of 3,600 samples are lost",
        "mosaicml_peer": f"{setup['seconds']:.0f} s and {setup['megabytes']:,.0f} MB for the order of "
        f"{raw['scale']['shuffle_samples']:,} samples",
    }
    lines = [
        "| system | M tokens/s | what differs |",
        "|---|---|---|",
        f"| **tokenfeed** | {rate(OURS)}; {rate('tokenfeed_mapped')} from mapped files | |",
    ]
    for name, what in words.items():
        version = next(iter(raw["about"][name]["versions"].values()))
        lines.append(f"| {raw['titles'][name]} {version} | {rate(name)} | {what} |")
    return lines


def _others(others: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in others.items())


def _pictures(stem: str, words: str) -> list[str]:
    return [
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="{stem}-dark.svg">',
        f'  <img alt="{words}" src="{stem}-light.svg">',
        "</picture>",
    ]


def _breakdowns(rows: dict[str, Any], titles: dict[str, str]) -> list[str]:
    """Where our own time goes, measured in the same run."""
    lines = []
    for name, row in rows.items():
        took = (row.get("first") or {}).get("breakdown")
        if took:
            rest = took["whole"] - took["read"]
            lines.append(
                f"- {titles[name]}, no workers, medians in one process: a batch takes {took['whole']:.0f} µs, of which "
                f"reading to int64 is {took['read']:.0f} and the loader {rest:.0f}. The first "
                f"batch of a process takes {took['first']:.2g} s, that of a second loader in it "
                f"{took['again']:.2g} s, opening the store {took['open']:.2g} s."
            )
    return lines


def _failures(raw: dict[str, Any], titles: dict[str, str]) -> list[str]:
    lines = [
        f"- {titles.get(name, name)}: {what}: {reason}"
        for name, reasons in raw["failures"].items()
        for what, reason in reasons.items()
    ]
    return lines or ["Everything was measured."]


def _settings(raw: dict[str, Any], titles: dict[str, str]) -> list[str]:
    lines = []
    for name, about in raw["about"].items():
        versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
        lines.append(f"- {titles[name]} ({versions}): {about['settings']}")
    return lines


def _draw(page: Path, rows: dict[str, Any], titles: dict[str, str], raw: dict[str, Any]) -> None:
    panels = []
    for column, name in ((RATES[0], "No workers"), (RATES[1], "Best of 1 and 2 workers")):
        bars = [_bar(key, titles[key], column.get(row)) for key, row in rows.items() if column.get(row).values]
        if bars:
            panels.append(Panel(name, "M tokens/s", sorted(bars, key=lambda bar: -bar.value)))
    for section in raw.get("texts", ()):
        text = TEXTS[section["kind"]]
        column = text.columns[0]
        bars = [
            _bar(key, titles[key], column.get(row)) for key, row in section["rows"].items() if column.get(row).values
        ]
        if bars:
            unit = column.title.split(",")[0]
            panels.append(Panel(text.title, unit, sorted(bars, key=lambda bar: -bar.value)))
    if panels:
        draw(page.with_suffix(""), "Tokens a second, tokenfeed beside other loaders", panels)
    curves = _epoch_curves(raw["epochs"], titles)
    for scheme in ("light", "dark") if curves else ():
        picture = draw_curves("Rows in every step of two epochs", curves, scheme, across="steps", low=0)
        page.with_name(f"epochs-{scheme}.svg").write_text(picture)


def _epoch_curves(epochs: dict[str, Any], titles: dict[str, str]) -> list[Line]:
    """Ours, and those of peers that do not keep to their first step's size."""
    curves = []
    for name, ranks in epochs.items():
        sums = _rows_by_step(ranks)
        if name == OURS or min(sums) < sums[0]:
            curves.append(Line(titles[name], list(enumerate(sums, start=1))))
    return curves


def _bar(name: str, title: str, figure: Figure) -> Bar:
    kind = "limit" if name in LIMITS else "ours" if name.startswith("tokenfeed") else "peer"
    return Bar(title, figure.median, min(figure.values), max(figure.values), kind)


def describe_machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    return f"{len(models)} × {models[0]}, {kilobytes / 2**20:.0f} GiB, Python {platform.python_version()}"
