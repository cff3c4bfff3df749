"""How cost grows with size: `python bench/growth.py [--quick] [--json PATH]`. Flat lines are expected.

Every point is measured in a process of its own: seconds from `open` to the first batch (kernels loaded before),
microseconds a batch of 32 windows of 2,048 (the same 64 batches again and again, so that the page cache holds them at
every size), and memory gained. Large stores are sparse files: zeros that take no space.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import tokenfeed
from data import QUICK, make_once, make_sparse

LENGTH, ROWS, BATCHES = 2048, 32, 64

_CHILD = """
import json, statistics, sys, time
import numpy, psutil, tokenfeed
warm, path, setting, spans = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
def make(path):
    view = tokenfeed.open(path).windows({length}, spans=spans)
    sources = setting.get("sources", 0)
    mixed = tokenfeed.mix({{f"source {{i}}": (view, 1 + i % 7) for i in range(sources)}}) if sources else view
    world_size = setting.get("ranks", 1)
    return tokenfeed.Loader(mixed, {rows}, prefetch=0, rank=world_size - 1, world_size=world_size)
next(make(warm))
before, began = psutil.Process().memory_full_info().uss, time.perf_counter()
loader = make(path)
initial = loader.state_dict()
next(loader)
start = time.perf_counter() - began
gained = psutil.Process().memory_full_info().uss - before
times = []
for _ in range({rounds}):
    loader.load_state_dict(initial)
    next(loader)
    began = time.perf_counter()
    for _ in range({batches}):
        next(loader)
    times.append((time.perf_counter() - began) / {batches})
print(json.dumps([start, statistics.median(times[1:]) * 1e6, gained / 1e6]))
"""


def measure(path: Path, setting: dict[str, int], *, spans: Sequence[str] = (), rounds: int) -> list[float]:
    """Seconds to a first batch, microseconds a batch, megabytes."""
    code = _CHILD.format(length=LENGTH, rows=ROWS, rounds=rounds, batches=BATCHES)
    warm = make_sparse(dataclasses.replace(QUICK, name="growth/warm", sparse_items=10**7, sparse_shards=2))
    command = [sys.executable, "-c", code, str(warm), str(path), json.dumps(setting), json.dumps(spans)]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def sparse(items: int, shards: int) -> Path:
    return make_sparse(
        dataclasses.replace(QUICK, name=f"growth/{items}-{shards}", sparse_items=items, sparse_shards=shards)
    )


def documents(per_window: int) -> Path:
    """Ten million tokens in documents of equal length, each with a payload."""

    def make(path: Path) -> None:
        length = LENGTH // per_window
        count = 10_000_000 // length
        with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "bytes"}, sync=False) as writer:
            tokens = np.zeros(count * length, np.uint16)
            writer.append({"tokens": tokens}, lengths=[length] * count, documents=[b"x" * 160] * count)

    return make_once(f"documents-{per_window}", dataclasses.replace(QUICK, name="growth"), make)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = 4 if options.quick else 20
    most = 3 if options.quick else 99
    powers = [10**power for power in range(6, 13)]
    sweeps: dict[str, tuple[list[int], Callable[[int], list[float]]]] = {
        "items": (powers, lambda n: measure(sparse(n, 16), {}, rounds=rounds)),
        "shards": ([10**power for power in range(6)], lambda n: measure(sparse(10**10, n), {}, rounds=rounds)),
        "documents in a window": (
            [1, 4, 16, 64, 256],
            lambda n: measure(documents(n), {}, spans=["documents"], rounds=rounds),
        ),
        "ranks": ([4**power for power in range(7)], lambda n: measure(sparse(10**10, 16), {"ranks": n}, rounds=rounds)),
        "sources of a mixture": (
            [1, 10, 100, 1000],
            lambda n: measure(sparse(10**10, 16), {"sources": n}, rounds=rounds),
        ),
    }
    results: dict[str, dict[int, list[float]]] = {}
    table = Table(title="growth")
    for name in ("of", "number", "first batch, s", "µs a batch", "memory gained, MB"):
        table.add_column(name, justify="right")
    for name, (numbers, point) in sweeps.items():
        results[name] = {number: point(number) for number in numbers[:most]}
        for number, (start, batch, memory) in results[name].items():
            table.add_row(name, f"{number:,}", f"{start:.3f}", f"{batch:,.0f}", f"{memory:.1f}")
        table.add_section()
    Console(width=100).print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
