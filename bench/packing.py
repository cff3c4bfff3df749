"""Measures packing: `python bench/packing.py [--quick] [--json PATH]`. Exit status 1 if a bar is missed.

`--quick` takes small data and few repetitions, and enforces nothing.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from data import FULL, QUICK, Scale, make_many_documents, make_sharded
from loops import Loops
from measure import Report, interleave

LENGTH = 2048
ROWS = 512


def packing(report: Report, scale: Scale) -> None:
    """Time, memory and use of the rows, for documents of log-normal lengths."""
    count = 10**7 if scale is FULL else 10**5
    store = tokenfeed.open(make_many_documents(scale, count))
    tokenfeed.open(make_sharded(QUICK)).pack(LENGTH)  # kernels are compiled, or loaded
    Path("/proc/self/clear_refs").write_text("5")
    before = _kilobytes("VmRSS")
    began = time.process_time()
    made = store.pack(LENGTH)
    seconds = time.process_time() - began
    peak = 1024 * (_kilobytes("VmHWM") - before) / count
    report.limit(f"packing {count:,} documents, processor time", [seconds], "s", bar=20)
    report.limit("peak memory beyond what was there", [peak], "bytes a document", bar=16)
    report.limit("positions that hold no item", [100 * (1 - made.used)], "%", bar=0.5)
    lost = store.num_items - made.items
    report.limit("tokens lost", [lost], "", bar=0)


def _kilobytes(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def reading(report: Report, scale: Scale) -> None:
    """Rows a second beside windows, everything in the page cache; and beside C that reads as many pieces."""
    path = make_sharded(scale)
    repetitions = max(3, round(25 * scale.repetitions))
    buffer = np.zeros(ROWS * (LENGTH + 1) * 2, np.uint8)
    for backend in ("mmap", "pread"):
        store = tokenfeed.open(path, backend=backend)
        if backend == "mmap":
            store.pack(LENGTH)
        views = {"windows": store.windows(LENGTH), "packed": store.packed(LENGTH)}

        def read(name: str, views: dict[str, Any] = views) -> Callable[[int], float]:
            def measure(repetition: int) -> float:
                rng = np.random.default_rng(repetition)
                batches = rng.integers(0, len(views[name]), (20, ROWS))
                began = time.perf_counter()
                for indices in batches:
                    views[name].read(indices, allocate=lambda num_bytes: buffer[:num_bytes])
                return batches.size / (time.perf_counter() - began)

            return measure

        for name in views:
            for number in range(repetitions):
                read(name)(number)  # the same rows as below: they are in the page cache then
        contenders = {name: read(name) for name in views}
        if backend == "mmap":
            result = interleave(contenders, repetitions=repetitions, unit="rows/s")
            report.compare("packed rows, mapped: windows", result["packed"], result["windows"], bar=0.5)
            continue
        record = views["packed"].plans[0].record
        contenders["c"] = _c_pieces(store, record.pieces / record.rows, record.items / record.pieces)
        for number in range(repetitions):
            contenders["c"](number)
        result = interleave(contenders, repetitions=repetitions, unit="rows/s")
        report.compare("packed rows, pread: windows", result["packed"], result["windows"])
        report.compare("C, as many preads of the mean size: windows", result["c"], result["windows"])
        report.compare("packed rows, pread: that C loop", result["packed"], result["c"])


def _c_pieces(store: tokenfeed.Store, pieces_per_row: float, mean_items: float) -> Callable[[int], float]:
    """Rows a second of a C loop that reads as many pieces, of their mean size, from random places."""
    parts = [shard.column_part("tokens") for shard in store.shards]
    loops = Loops([part.path for part in parts], round(2 * mean_items))
    sizes = np.array([part.file_bytes for part in parts])

    def measure(repetition: int) -> float:
        rng = np.random.default_rng(repetition)
        count = round(20 * ROWS * pieces_per_row) // 32 * 32
        files = rng.choice(len(parts), count, p=sizes / sizes.sum()).astype(np.int32)
        offsets = (rng.random(count) * (sizes[files] - 2 * mean_items - 2)).astype(np.int64)
        return loops.pread(files, offsets) / pieces_per_row

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    report = Report("packing")
    packing(report, scale)
    reading(report, scale)
    report.show()
    if options.json:
        report.write_json(options.json)
    if report.missed and not options.quick:
        sys.exit(f"missed: {', '.join(report.missed)}")


if __name__ == "__main__":
    main()
