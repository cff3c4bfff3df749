"""Measures the loader: `python bench/loader.py [--quick] [--json PATH]`. Exit status 1 if a bar is missed.

`--quick` takes small data and few repetitions, and enforces nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tokenfeed
from data import FULL, QUICK, Scale, make_one_file, make_sharded, make_sparse
from measure import Report, interleave

LENGTH = 2048
ROWS = 32
READY_BATCHES = 16


def throughput(report: Report, scale: Scale) -> None:
    """Batches a second, beside the same samples read by the kernel alone into one buffer."""
    view = tokenfeed.open(make_sharded(scale)).windows(LENGTH)
    order = tokenfeed.Permutation(len(view))
    steps = min(4000, len(view) // ROWS // 2)
    buffer = np.zeros(ROWS * view.sample_bytes, np.uint8)

    def bare(repetition: int) -> float:
        first = repetition * steps * ROWS
        batches = order(np.arange(first, first + steps * ROWS) % len(view)).reshape(steps, ROWS)
        began = time.perf_counter()
        for indices in batches:
            view.read(indices, allocate=lambda _: buffer)
        return steps / (time.perf_counter() - began)

    def loaded(threads: int) -> Callable[[int], float]:
        def measure(repetition: int) -> float:
            loader = tokenfeed.Loader(view, ROWS, threads=threads)
            loader.load_state_dict(loader.plan.state(repetition * steps * ROWS))
            next(loader)
            began = time.perf_counter()
            for _ in range(steps):
                next(loader)
            rate = steps / (time.perf_counter() - began)
            loader.close()
            return rate

        return measure

    for contender in (bare, loaded(1)):
        contender(0)
    contenders = {"bare": bare, "one": loaded(1), "two": loaded(2)}
    result = interleave(contenders, repetitions=max(3, round(15 * scale.repetitions)), unit="batches/s")
    report.compare("loader: the bare kernel", result["two"], result["bare"], bar=0.8)
    report.compare("loader with one reading thread: the bare kernel", result["one"], result["bare"])


def waiting(report: Report, scale: Scale) -> None:
    """The time in `next` when batches are ready, and what a checkpoint costs."""
    view = tokenfeed.open(make_sharded(scale)).windows(LENGTH)
    loader = tokenfeed.Loader(view, ROWS, prefetch=2 * READY_BATCHES)
    times, states = [], []
    for _ in range(round(40 * scale.repetitions) + 2):
        next(loader)
        while loader.stats().queued < READY_BATCHES:
            time.sleep(0.001)
        for _ in range(READY_BATCHES):
            began = time.perf_counter()
            batch = next(loader)
            times.append(1e6 * (time.perf_counter() - began))
            began = time.perf_counter()
            state = batch.state
            states.append(1e6 * (time.perf_counter() - began))
    loader.close()
    report.limit("in next, when batches are ready", times, "µs", bar=30)
    report.limit("taking a state", states, "µs", bar=20)
    report.limit("a state as JSON", [len(json.dumps(state))], "bytes", bar=300)


START = """
import sys, time
import tokenfeed
try:
    import scipy.linalg  # Numba imports it with the first kernel, where it is installed: 0.2 s that are an import's
except ImportError:
    pass
path, samples = sys.argv[1], int(sys.argv[2])
began = time.perf_counter()
loader = tokenfeed.Loader(tokenfeed.open(path).windows(2048), 32)
loader.load_state_dict(loader.plan.state(samples))
batch = next(loader)
print(time.perf_counter() - began)
assert batch.samples[0] == samples
"""


def starting(report: Report, scale: Scale) -> None:
    """A fresh process up to its first batch, imports not counted, at the beginning and at 60% of an epoch."""
    path = make_sparse(scale)
    samples = len(tokenfeed.open(path).windows(LENGTH))

    def first(resumed: int) -> Callable[[int], float]:
        def measure(_: int) -> float:
            command = [sys.executable, "-c", START, str(path), str(resumed)]
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

        return measure

    first(0)(0)
    contenders = {"begin": first(0), "resume": first(samples * 6 // 10)}
    result = interleave(contenders, repetitions=max(2, round(9 * scale.repetitions)), unit="s")
    what = f"{scale.sparse_items:.0e} items in {scale.sparse_shards:,} shards, first batch"
    report.limit(f"{what}, from the beginning", result["begin"].values, "s", bar=0.6)
    report.limit(f"{what}, resumed at 60%", result["resume"].values, "s", bar=0.6)


def mixtures(report: Report, scale: Scale) -> None:
    """Batches a second of a mixture of 100 sources, beside those of one view."""
    view = tokenfeed.open(make_one_file(scale)).windows(LENGTH)
    mixed = tokenfeed.mix({f"source {number}": (view, 1 + number % 7) for number in range(100)})
    steps = min(2000, len(view) // ROWS // 2)

    def loaded(source: Any) -> Callable[[int], float]:
        def measure(repetition: int) -> float:
            loader = tokenfeed.Loader(source, ROWS, seed=repetition)
            next(loader)
            began = time.perf_counter()
            for _ in range(steps):
                next(loader)
            rate = steps / (time.perf_counter() - began)
            loader.close()
            return rate

        return measure

    contenders = {"one": loaded(view), "mixture": loaded(mixed)}
    for contender in contenders.values():
        contender(0)
    result = interleave(contenders, repetitions=max(3, round(15 * scale.repetitions)), unit="batches/s")
    report.compare("mixture of 100 sources: one view", result["mixture"], result["one"], bar=0.8)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = Report("tokenfeed: the loader")
    for part in (throughput, mixtures, waiting, starting):
        part(report, QUICK if options.quick else FULL)
    report.show()
    if options.json:
        report.write_json(options.json)
    return 1 if report.missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
