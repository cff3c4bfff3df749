"""10**9 samples of a plan, enumerated in the kernels, each exactly once: `python tests/simulation/exactly_once.py`.

A bitset of n bits (125 MB for 10**9), slices of 2**20 samples, no Python object for any of them. Three orders: the pure
one, one with locality, and a mixture of three sources drawn until the largest has been seen through.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np

from tokenfeed.plan.orders import Local
from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.plan.shares import Shares, Stage
from tokenfeed.store.spec import ViewSpec

SLICE = 1 << 20
SHARES = {"web": 6, "code": 3, "math": 1}


@numba.njit(nogil=True)
def mark(indices: Any, count: int, bits: Any) -> int:
    """Set the bit of each index; how many were set before, or are not in [0, count)."""
    repeated = 0
    for index in indices:
        if index < 0 or index >= count:
            repeated += 1
            continue
        bit = np.uint64(1) << np.uint64(index & 63)
        if bits[index >> 6] & bit:
            repeated += 1
        bits[index >> 6] |= bit
    return repeated


def enumerate_once(count: int, indices_of: Callable[[Any], Any], *, first: int = 0) -> tuple[int, int]:
    """(samples that came again, samples that never came) of `count` samples of the run from `first` on."""
    bits = np.zeros(-(-count // 64), np.uint64)
    repeated = 0
    for start in range(0, count, SLICE):
        samples = np.arange(first + start, first + min(start + SLICE, count))
        repeated += int(mark(indices_of(samples), count, bits))
    return repeated, count - int(np.bitwise_count(bits).sum() if hasattr(np, "bitwise_count") else _count(bits))


def _count(bits: Any) -> int:
    return int(sum(np.unpackbits(part.view(np.uint8)).sum() for part in np.array_split(bits, 256)))


def orders(n: int) -> Iterator[tuple[str, Callable[[Any], Any], int]]:
    """(name, samples of the run → samples of the data, first sample of the run)."""
    view = {"kind": "windows", "length": 1}
    pure = Plan([PlanSource("", n, "", ViewSpec.from_json(view))], seed=7)
    yield "pure order, epoch 3", lambda samples: pure.locate(samples)[2], 3 * n
    local = Plan([PlanSource("", n, "", ViewSpec.from_json(view))], seed=7, shuffle=Local(1024, 128))
    yield "Local(1024, 128)", lambda samples: local.locate(samples)[2], 0
    sizes = {name: n * share // 10 for name, share in SHARES.items()}
    sources = [PlanSource(name, size, "", ViewSpec.from_json(view)) for name, size in sizes.items()]
    mixed = Plan(sources, Shares([Stage(SHARES)], list(SHARES)), seed=7)

    def joined(samples: Any) -> Any:
        number, _, indices = mixed.locate(samples)
        return indices + mixed.starts[number]

    yield "mixture of three sources", joined, 0


def check(n: int) -> bool:
    """Whether every order gives every sample of n (a multiple of ten) once; printed as it goes."""
    passed = True
    for name, indices_of, first in orders(n):
        began = time.perf_counter()
        repeated, missing = enumerate_once(n, indices_of, first=first)
        seconds = time.perf_counter() - began
        print(
            f"{name:26} {n:,} samples, {repeated} repeated, {missing} missing, {seconds:.1f} s, "
            f"{1e9 * seconds / n:.1f} ns a sample",
            flush=True,
        )
        passed &= repeated == missing == 0
    return passed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10**9)
    sys.exit(0 if check(parser.parse_args().samples) else 1)
