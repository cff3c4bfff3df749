"""What a local order costs in randomness and saves in reading: `python bench/locality.py [--quick] [--json PATH]`.

Three tables, for the pure order, for groups and blocks shuffled without mixing, and for several (block, tile):

* how random it is, by some of the statistics that `Permutation` is tested with; 1 or 0, as the head of the column says,
  is what a random order has;
* how a batch of 512 is spread over the data;
* what reading it takes, where blocks are fetched whole and `tile` of them are kept: those needed next, as a loader
  knows them, or those used last;

and then the time for an index, which may be ten times that of `Permutation` where samples are taken as a run takes
them. Exit status 1 if it is more. `--quick` has fewer samples, and enforces nothing.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from measure import Report, interleave
from tokenfeed.plan import Local
from tokenfeed.plan.orders import Tiled
from tokenfeed.plan.permutation import Permutation
from tokenfeed.plan.source import Source

Ints = npt.NDArray[np.int64]

BATCH = 512
LOOK_AHEAD = 16_384
"""Samples: 32 batches."""
SHAPES = [(1024, 32), (1024, 128), (1024, 512), (256, 128), (256, 512), (4096, 32)]
PURE_BLOCK, PURE_TILE = 1024, 128
"""What the pure order, and blocks without mixing, are compared at."""


@dataclass
class Order:
    """An order of n samples, and what blocks of it are counted by."""

    name: str
    block: int
    tile: int
    make: Callable[[int, int], Ints]
    """(n, epoch) → the order of an epoch."""
    figures: dict[str, float] = field(default_factory=dict)


def pure(n: int, epoch: int) -> Ints:
    return Permutation(n, 1, epoch)(np.arange(n))


def unmixed(size: int) -> Callable[[int, int], Ints]:
    """Blocks in random order, samples of one behind the other."""

    def make(n: int, epoch: int) -> Ints:
        blocks = Permutation(-(-n // size), 1, epoch)(np.arange(-(-n // size)))
        samples = (blocks[:, None] * size + np.arange(size)).reshape(-1)
        return samples[samples < n]

    return make


def local(block: int, tile: int) -> Order:
    def make(n: int, epoch: int) -> Ints:
        return Tiled(n, block, tile, 1, epoch).at(np.arange(n))

    return Order(f"block {block}, tile {tile}", block, tile, make)


def orders() -> list[Order]:
    plain = [
        Order("pure", PURE_BLOCK, PURE_TILE, pure),
        Order(f"blocks of {PURE_BLOCK}, not mixed", PURE_BLOCK, PURE_TILE, unmixed(PURE_BLOCK)),
    ]
    return plain + [local(*shape) for shape in SHAPES]


# How random it is


def chi_square_per_freedom(rows: Ints, columns: Ints) -> float:
    """Of the table of how often classes meet: 1 where they are independent."""
    shape = int(rows.max()) + 1, int(columns.max()) + 1
    seen = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
    expected = np.outer(seen.sum(1), seen.sum(0)) / rows.size
    freedom = (shape[0] - 1) * (shape[1] - 1)
    return float(((seen - expected) ** 2 / expected).sum() / freedom)


def correlation(one: Ints, other: Ints) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def measure_randomness(order: Order, n: int) -> None:
    first, second = order.make(n, 0), order.make(n, 1)
    positions = np.arange(n)
    figures = order.figures
    figures["place × value (1)"] = chi_square_per_freedom(positions * 64 // n, first * 64 // n)
    figures["place × value mod 64 (1)"] = chi_square_per_freedom(positions * 64 // n, first & 63)
    figures["parity of batches (1)"] = chi_square_per_freedom(positions // BATCH, first & 1)
    figures["neighbour distance (1)"] = float(np.abs(np.diff(first)).mean() / ((n + 1) / 3))
    figures["neighbour correlation (0)"] = correlation(first[1:], first[:-1])
    figures["next epoch (0)"] = correlation(first, second)
    places = np.empty((2, n), np.int64)
    places[0, first] = positions
    places[1, second] = positions
    near = np.abs(np.diff(places))[:, ::97] < LOOK_AHEAD
    still = near[0] & near[1]  # two samples that lie side by side come close together in both epochs
    figures["neighbours close twice"] = float(still.mean())


# How a batch is spread


def measure_spread(order: Order, n: int) -> None:
    samples = order.make(n, 0)
    blocks = (samples // order.block)[: n // BATCH * BATCH].reshape(-1, BATCH)
    some = blocks[:: max(1, len(blocks) // 400)]
    counts = [np.unique(batch, return_counts=True)[1] for batch in some]
    pairs = np.mean([(each * (each - 1)).sum() / (BATCH * (BATCH - 1)) for each in counts])
    figures = order.figures
    figures["pairs from one block"] = float(pairs)
    figures["times random"] = float(pairs / ((order.block - 1) / (n - 1)))
    figures["blocks in a batch"] = float(np.mean([each.size for each in counts]))
    figures["at random"] = n / order.block * (1 - math.exp(-BATCH * order.block / n))
    starts = np.full(-(-n // order.block), n)
    np.minimum.at(starts, samples // order.block, np.arange(n))
    ends = np.zeros_like(starts)
    np.maximum.at(ends, samples // order.block, np.arange(n))
    figures["a block is spread over (samples)"] = float(np.median(ends - starts))


# What reading it takes


@numba.njit
def count_fetches(blocks: Ints, num_blocks: int, room: int, knows_future: bool) -> int:  # type: ignore[no-untyped-def]
    """How often a block must be fetched, if `room` are kept: those used next, or those used last."""
    rank = np.empty(blocks.size, np.int64)  # of an access: when that block is needed again, or minus when it was
    after = np.full(num_blocks, blocks.size + 1, np.int64)
    for i in range(blocks.size - 1, -1, -1):
        rank[i] = after[blocks[i]] if knows_future else -i
        after[blocks[i]] = i
    kept = np.full(room, -1, np.int64)
    rank_of = np.zeros(room, np.int64)
    place_of = np.full(num_blocks, -1, np.int64)
    used, fetches = 0, 0
    for i in range(blocks.size):
        place = place_of[blocks[i]]
        if place < 0:
            fetches += 1
            if used < room:
                place = used
                used += 1
            else:
                place = np.argmax(rank_of)
                place_of[kept[place]] = -1
            kept[place] = blocks[i]
            place_of[blocks[i]] = place
        rank_of[place] = rank[i]
    return fetches


def measure_reading(order: Order, n: int) -> None:
    blocks = order.make(n, 0) // order.block
    figures = order.figures
    ahead = [np.unique(blocks[start : start + LOOK_AHEAD]).size for start in range(0, n - LOOK_AHEAD, n // 16)]
    figures["blocks in a look-ahead"] = float(np.mean(ahead))
    if order.name == "pure":
        blocks = blocks[: 1 << 16]  # enough to tell, and every fetch looks through all that is kept

    def fetches_per_sample(tiles: float, knows_future: bool) -> float:
        return count_fetches(blocks, -(-n // order.block), int(tiles * order.tile), knows_future) / blocks.size

    clairvoyant = fetches_per_sample(1, True)
    figures["bytes fetched per byte used"] = clairvoyant * order.block
    figures["requests per sample"] = clairvoyant
    figures["bytes, least recently used goes"] = fetches_per_sample(1, False) * order.block
    figures["the same, 1.5 · tile kept"] = fetches_per_sample(1.5, False) * order.block


# What it costs to evaluate


def measure_time(report: Report, repetitions: int) -> None:
    n, calls = 10**8, 8
    rng = np.random.default_rng(0)
    kinds = {
        "as a run takes them": [np.arange(4096) + int(start) for start in rng.integers(0, n - 4096, calls)],
        "at random": list(rng.integers(0, n, (calls, 4096))),
    }

    def timed(call: Callable[[Ints], Any], batches: list[Ints]) -> Callable[[int], float]:
        def measure(_repetition: int) -> float:
            begin = time.perf_counter()
            for samples in batches:
                call(samples)
            return (time.perf_counter() - begin) / calls / 4096 * 1e9

        measure(0)
        return measure

    for kind, batches in kinds.items():
        contenders = {"pure": timed(Source(n, 1, True).at, batches)}
        for block, tile in [*SHAPES, (1000, 100), (64, 32)]:
            contenders[f"block {block}, tile {tile}"] = timed(Source(n, 1, Local(block, tile)).at, batches)
        series = interleave(contenders, repetitions=repetitions, unit="ns/index")
        for name, values in series.items():
            if name != "pure":
                ratios = values.over(series["pure"]).values
                bar = 10 if kind == "as a run takes them" else None
                report.limit(f"{name}, samples {kind}: {values.median:.0f} ns an index", ratios, "× pure", bar=bar)


def show(title: str, measured: list[Order], names: list[str]) -> None:
    table = Table(title=title)
    table.add_column("order")
    for name in names:
        table.add_column(name, justify="right", max_width=14)
    for order in measured:
        cells = [
            f"{order.figures[name]:,.3g}" if order.figures[name] < 1000 else f"{order.figures[name]:,.0f}"
            for name in names
        ]
        table.add_row(order.name, *cells)
    Console(width=150).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples, few repetitions, no bar enforced")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every figure there")
    arguments = parser.parse_args()
    n = 1 << (20 if arguments.quick else 22)
    measured = orders()
    for measure, title in (
        (measure_randomness, f"{n:,} samples: how random the order is"),
        (measure_spread, f"batches of {BATCH}"),
        (measure_reading, f"reading whole blocks, `tile` kept; look-ahead of {LOOK_AHEAD:,} samples"),
    ):
        before = set(measured[0].figures)
        for order in measured:
            measure(order, n)
        show(title, measured, [name for name in measured[0].figures if name not in before])
    report = Report("time for an index, calls of 4,096, n = 10^8, one thread")
    measure_time(report, 5 if arguments.quick else 40)
    report.show()
    if arguments.json is not None:
        rows = [{key: value for key, value in vars(order).items() if key != "make"} for order in measured]
        times = [{**asdict(row), "ok": row.ok} for row in report.rows]
        arguments.json.write_text(json.dumps({"orders": rows, "times": times}, indent=1, ensure_ascii=False) + "\n")
    return 1 if report.missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
