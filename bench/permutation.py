"""Measures `Permutation` against NumPy's shuffle: `python bench/permutation.py [--quick] [--json PATH]`.

Exit status 1 if a bar is missed. `--quick` takes few repetitions and a small shuffle, and enforces nothing.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from measure import Report, interleave
from tokenfeed.kernels.permutation import permute_run
from tokenfeed.plan.permutation import Permutation

# The last three are the worst for other constructions: just above a power of two, and as large as it gets.
SIZES = {"10^8": 10**8, "1,000": 1000, "10^12": 10**12, "2^26 + 1": 2**26 + 1, "2^62": 2**62, "2^63 - 1": 2**63 - 1}
BATCHES = (4096, 32)
INDICES = 1 << 15
"""That a slice of measuring evaluates."""

NS, US = "ns/index", "µs"


def evaluate(call: Callable[[Any], Any], n: int, batch: int) -> Callable[[int], float]:
    """ns an index of `call` on batches of random positions."""
    batches = list(np.random.default_rng(n % 97).integers(0, n, (INDICES // batch, batch)))

    def measure(_repetition: int) -> float:
        begin = time.perf_counter()
        for positions in batches:
            call(positions)
        return (time.perf_counter() - begin) / INDICES * 1e9

    measure(0)
    return measure


def run(batch: int) -> Callable[[Any], Any]:
    """What a loader calls: the kernel, with memory of its own."""
    epochs, indices = np.empty((2, batch), np.int64)
    return lambda samples: permute_run(samples, 10**8, 1, epochs, indices)


def measure_indices(report: Report, repetitions: int) -> None:
    contenders = {
        (name, batch): evaluate(Permutation(n, seed=1), n, batch) for name, n in SIZES.items() for batch in BATCHES
    }
    contenders["10^8, inverse", 4096] = evaluate(Permutation(10**8, seed=1).inverse, 10**8, 4096)
    for batch in BATCHES:
        contenders["10^8, kernel for samples of a run", batch] = evaluate(run(batch), 10**8, batch)
    named = {f"n = {name}, calls of {batch}": contender for (name, batch), contender in contenders.items()}
    for name, series in interleave(named, repetitions=repetitions, unit=NS).items():
        report.limit(name, series.values, NS, bar=40 if name == "n = 10^8, calls of 4096" else None)


def measure_making(report: Report, repetitions: int, n: int) -> None:
    """Making one, and the first batch of an order: ours, and a shuffled array of n."""
    times = []
    for repetition in range(repetitions * 10):
        begin = time.perf_counter()
        Permutation(10**8, seed=repetition)
        times.append((time.perf_counter() - begin) * 1e6)
    report.limit("construction", times, US, bar=100)
    positions = np.arange(32)

    def ours(repetition: int) -> float:
        begin = time.perf_counter()
        Permutation(n, seed=repetition)(positions)
        return 1 / (time.perf_counter() - begin)

    def numpy(repetition: int) -> float:
        begin = time.perf_counter()
        np.random.default_rng(repetition).permutation(n)[positions]
        return 1 / (time.perf_counter() - begin)

    result = interleave({"ours": ours, "numpy": numpy}, repetitions=3, unit="per second")
    report.compare(f"new order of {n:,} and its first 32: numpy.random", result["ours"], result["numpy"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, a small shuffle, no bars enforced")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    arguments = parser.parse_args()
    report = Report("permutation, one thread")
    measure_indices(report, 5 if arguments.quick else 60)
    measure_making(report, 5 if arguments.quick else 60, 10**6 if arguments.quick else 10**8)
    report.show()
    if arguments.json is not None:
        report.write_json(arguments.json)
    return 1 if report.missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
