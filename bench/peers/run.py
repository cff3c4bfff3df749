"""Measures tokenfeed beside the loaders people use: `python bench/peers/run.py [--quick] [--only …] [--sections …]`.

Peers are installed into environments of their own under `bench/.data/peers/`, from the lists in `requirements/`. One
that cannot be installed, fails or does not answer in time is reported, and the others go on. Writes the page
`docs/benchmarks/peers.md`, its pictures, `peers.json` with every single figure, and the table in the README; `--quick`
writes to `bench/.data/peers/quick/` instead. Each section is one run; those that are not asked for stay as they were.
"""

import argparse
import dataclasses
import datetime
import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import environments  # noqa: E402
from loaders import Bench, Scale, epochs, first_batches, ranks, steady, write_all  # noqa: E402
from orders import orders  # noqa: E402
from parent import Contender  # noqa: E402
from report import describe_machine, readme_table, write_report  # noqa: E402
from texts import prepares, streams, tokenizers  # noqa: E402

FULL = Scale("full", 100_000_000, 3, 0.5, 2, 10**8, 50, 6)
QUICK = Scale("quick", 10_000_000, 2, 0.3, 1, 10**6, 4, 2)
SECTIONS = ("steady", "first", "ranks", "epochs", "orders", "stream", "prepare", "tokenizer", "tokenizer-gpt4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little data and few repetitions")
    parser.add_argument("--only", nargs="+", help="adapters, as in adapters/")
    parser.add_argument("--sections", nargs="+", default=SECTIONS, choices=SECTIONS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that no child is left behind
    bench = Bench(QUICK if options.quick else FULL, HERE.parent / ".data" / "peers", [])
    groups = [environments.LOADERS, environments.STREAMS, environments.PREPARES, environments.TOKENIZERS]
    titles = {adapter: title for group in groups for adapter, title, _ in group}
    chosen = [_choose(bench, group, options.only) for group in groups]
    folder = bench.folder / "quick" if options.quick else HERE.parent.parent / "docs" / "benchmarks"
    raw = _earlier(folder, bench) | {"titles": titles}
    bench.contenders = chosen[0]
    loading = {"steady": lambda: steady(bench, (0, 1, 2)), "first": lambda: first_batches(bench)}
    loading |= {"ranks": lambda: ranks(bench), "epochs": lambda: epochs(bench), "orders": lambda: orders(bench)}
    if bench.contenders and set(loading) & set(options.sections):
        write_all(bench)
    for name, measure in loading.items():
        if bench.contenders and name in options.sections:
            raw[name] = measure()
            _save(folder, bench, raw)
    texts = {"stream": (streams, chosen[1]), "prepare": (prepares, chosen[2])}
    texts |= {"tokenizer": (partial(tokenizers, pattern="nanochat"), chosen[3])}
    texts |= {"tokenizer-gpt4": (partial(tokenizers, pattern="gpt4"), chosen[3])}
    for name, (measure, contenders) in texts.items():
        if contenders and name in options.sections:
            others = [text for text in raw["texts"] if text["kind"] != name]
            raw["texts"] = [*others, {"kind": name, "rows": measure(bench, contenders)}]
            _save(folder, bench, raw)
    raw = json.loads((folder / "peers.json").read_text())
    write_report(folder / "peers.md", raw)
    print(f"written: {folder / 'peers.md'}")
    if not options.quick:
        _renew(HERE.parents[1] / "README.md", readme_table(raw))


def _earlier(folder: Path, bench: Bench) -> dict[str, Any]:
    """Sections that were measured before, at the same scale; those that are measured now take their places."""
    raw: dict[str, Any] = {"steady": {}, "first": {}, "ranks": {}, "epochs": {}, "orders": {}, "texts": []}
    path = folder / "peers.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("scale") == dataclasses.asdict(bench.scale):
        raw |= {name: before[name] for name in raw if name in before}
        bench.about, bench.failures, bench.others = before["about"], before["failures"], before["others"]
        bench.forget_failures("write")
        bench.forget_failures("installing")
    return raw


def _renew(page: Path, table: list[str]) -> None:
    """Put the table where one with the same head is."""
    lines = page.read_text().splitlines()
    at = lines.index(table[0])
    page.write_text("\n".join([*lines[:at], *table, *lines[lines.index("", at) :]]) + "\n")
    print(f"written: {page}")


def _save(folder: Path, bench: Bench, raw: dict[str, Any]) -> None:
    """Every single figure so far, so that nothing is lost with a run that is cut off."""
    raw |= {
        "about": bench.about,
        "failures": bench.failures,
        "others": bench.others,
        "scale": dataclasses.asdict(bench.scale),
        "machine": describe_machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n")


def _choose(bench: Bench, group: tuple[tuple[str, str, str], ...], only: list[str] | None) -> list[Contender]:
    """The contenders of a group that are wanted, and can be installed."""
    chosen = []
    for adapter, title, environment in group:
        if only and adapter not in only:
            continue
        contender = environments.find(adapter, title, environment)
        reason = environments.ensure(environment)
        if reason is None:
            chosen.append(contender)
        else:
            bench.fail(contender, "installing", reason)
    return chosen


if __name__ == "__main__":
    main()
