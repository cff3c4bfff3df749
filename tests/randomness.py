"""Statistics by which permutations that are not random give themselves away.

They are taken of several permutations of one n, the rows of a matrix, and end as p-values under the law of true random
permutations. *Pooled* ones add up over the rows and find what all keys have in common; *each* ones look at every row by
itself and find what every key does in its own way (batches all odd or all even, say).
"""

import itertools
import math
from collections.abc import Callable, Iterator

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


# From a statistic to its two-sided p-value

MANY = 2000
"""From so many rows on, a variance is taken from the rows; below, from theory for large n."""


def normal_p(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square_p(statistic: float, freedom: float) -> float:
    """By the cube root of Wilson and Hilferty."""
    spread = 2 / (9 * freedom)
    return normal_p(((statistic / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread))


def poisson_p(count: int, mean: float) -> float:
    if mean > 1000:
        return normal_p((count - mean) / math.sqrt(mean))
    chances = [math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(count + 1)]
    return min(1.0, 2 * min(sum(chances), max(1 - sum(chances[:-1]), chances[-1])))


def each_p(statistics: Floats, freedom: float) -> float:
    """For one statistic a row, whose mean is exactly `freedom`, and which is as good as chi-square for large n."""
    count, mean, variance = statistics.size, float(statistics.mean()), float(statistics.var())
    shape = 2 * mean**2 / variance if count >= MANY and variance > 0 else freedom
    return chi_square_p(mean / freedom * shape * count, shape * count)


# The statistics: each takes a matrix with a permutation of [0, n) in every row

PValues = Iterator[tuple[str, float]]
Classes = Callable[[Ints], Ints]


def split(n: int) -> tuple[int, int]:
    """The halves (a, bits) of our network."""
    bits = n.bit_length() // 2
    return -(-n >> bits), bits


def count_meetings(rows: Ints, position_class: Classes, value_class: Classes) -> Ints:
    """A table for every row: how often a class of positions meets a class of values."""
    count, n = rows.shape
    positions = position_class(np.arange(n))
    shape = int(positions.max()) + 1, int(value_class(np.arange(n)).max()) + 1
    tables, step = [], max(1, 2**17 // n)
    for start in range(0, count, step):
        chunk = rows[start : start + step]
        codes = (np.arange(len(chunk))[:, None] * shape[0] + positions) * shape[1] + value_class(chunk)
        tables.append(np.bincount(codes.reshape(-1), minlength=len(chunk) * math.prod(shape)).reshape(-1, *shape))
    return np.concatenate(tables)


def compare_tables(name: str, tables: Ints, n: int) -> PValues:
    count = len(tables)
    expected = np.outer(tables[0].sum(1), tables[0].sum(0)) / n
    freedom = (tables.shape[1] - 1) * (tables.shape[2] - 1)
    scale = (n - 1) / n / expected  # the mean is then `freedom`, exactly
    yield f"{name}, each", each_p(((tables - expected) ** 2 * scale).sum((1, 2)), freedom)
    pooled = ((tables.sum(0) - count * expected) ** 2 * scale).sum() / count
    yield f"{name}, pooled", chi_square_p(float(pooled), freedom)


def blocks_and_low_bits(rows: Ints) -> PValues:
    n = rows.shape[1]
    log_side = min(6, split(n)[1])
    side = 1 << log_side

    def block(numbers: Ints) -> Ints:
        return numbers * side // n

    def low_bits(numbers: Ints) -> Ints:
        return numbers & side - 1

    yield from compare_tables("blocks", count_meetings(rows, block, block), n)
    yield from compare_tables("block to low bits", count_meetings(rows, block, low_bits), n)
    yield from compare_tables("low bits to block", count_meetings(rows, low_bits, block), n)
    tables = count_meetings(rows, low_bits, low_bits)
    yield from compare_tables("low bits together", tables, n)
    for i, j in itertools.product(range(log_side), repeat=2):
        by_bit = tables.reshape(len(rows), side >> i + 1, 2, 1 << i, side >> j + 1, 2, 1 << j).sum((1, 3, 4, 6))
        yield from compare_tables(f"bit {i} to bit {j}", by_bit, n)
    yield from compare_tables("parity of a batch", count_meetings(rows, lambda x: x // 32, lambda x: x & 1), n)


def cells(rows: Ints) -> PValues:
    """Every position with every value, and three pairs of positions with every pair of values."""
    count, n = rows.shape
    if count < n:
        return
    seen = np.bincount((np.arange(n) * n + rows).reshape(-1), minlength=n * n)
    statistic = ((seen - count / n) ** 2).sum() / (count / n) * (n - 1) / n
    yield "cells", chi_square_p(float(statistic), (n - 1) ** 2)
    if count < n * n:
        return
    expected = count / (n * (n - 1))
    for i, j in ((0, 1), (0, 1 << split(n)[1]), (n // 2, n - 1)):
        seen = np.bincount(rows[:, i] * n + rows[:, j], minlength=n * n).reshape(n, n)[~np.eye(n, dtype=bool)]
        yield f"values at {i} and {j}", chi_square_p(((seen - expected) ** 2).sum() / expected, n * (n - 1) - 1)


def neighbours(rows: Ints) -> PValues:
    """The steps from p[2i] to p[2i + 1], in bins of equal chance, and all steps of length 1."""
    count, n = rows.shape
    lower = np.unique((n * np.sqrt(np.arange(1, 16) / 16) - n).astype(np.int64))
    edges = np.concatenate([lower, -lower[::-1]])  # bins are (-inf, e₀], (e₀, e₁], …
    pairs = np.where(edges < 0, (n + edges) * (n + edges + 1) // 2, n * (n - 1) - (n - edges - 1) * (n - edges) // 2)
    chances = np.diff(np.concatenate([[0], pairs / (n * (n - 1)), [1]]))
    steps = rows[:, 1::2] - rows[:, : n // 2 * 2 : 2]
    codes = np.arange(count)[:, None] * chances.size + np.searchsorted(edges, steps)
    seen = np.bincount(codes.reshape(-1), minlength=count * chances.size).reshape(count, -1)
    expected = steps.shape[1] * chances
    if n >= 10_000:  # else steps depend on one another too much
        yield "neighbour steps, each", each_p(((seen - expected) ** 2 / expected).sum(1), chances.size - 1)
    pooled = ((seen.sum(0) - count * expected) ** 2 / expected).sum() / count
    yield "neighbour steps, pooled", chi_square_p(float(pooled), chances.size - 1)
    yield "steps of one", poisson_p(int((abs(np.diff(rows)) == 1).sum()), count * 2 * (n - 1) / n)


def compare_scores(name: str, scores: Floats) -> PValues:
    """One score a row, of mean 0 and variance 1."""
    yield f"{name}, each", each_p(scores**2, 1)
    yield f"{name}, pooled", normal_p(float(scores.sum()) / math.sqrt(scores.size))


def serial_correlation(rows: Ints) -> PValues:
    """p[i] with p[i + lag], around the end. Mean and variance after Wald and Wolfowitz (1943)."""
    n = rows.shape[1]
    x = rows - (n - 1) / 2
    s2, s4 = float((x[0] ** 2).sum()), float((x[0] ** 4).sum())
    mean = -s2 / (n - 1)
    variance = (s2**2 - s4) / (n - 1) + (s2**2 - 2 * s4) / ((n - 1) * (n - 2)) - mean**2
    for name, lag in (("1", 1), ("2", 2), ("2**bits", 1 << split(n)[1])):
        sums = np.einsum("ij,ij->i", x[:, lag:], x[:, :-lag]) + np.einsum("ij,ij->i", x[:, :lag], x[:, -lag:])
        yield from compare_scores(f"serial correlation, lag {name}", (sums - mean) / math.sqrt(variance))


def row_to_row(rows: Ints) -> PValues:
    """Each row with the next one, which has the next epoch or the next seed."""
    count, n = rows.shape[0] - 1, rows.shape[1]
    x = rows - (n - 1) / 2
    scores = np.einsum("ij,ij->i", x[1:], x[:-1]) * math.sqrt(n - 1) / float((x[0] ** 2).sum())
    yield from compare_scores("row to row", scores)
    turns = np.diff(rows, axis=0)
    turns[turns < 0] += n
    yield "row to row, equal", poisson_p(int((turns == 0).sum()), count)
    bins = min(32, n // 8)
    codes = np.arange(count)[:, None] * bins + turns * bins // n
    seen = np.bincount(codes.reshape(-1), minlength=count * bins).reshape(count, bins)
    expected = np.bincount(np.arange(n) * bins // n)
    scale = (n - 1) / n / expected
    yield "row to row, turned, each", each_p(((seen - expected) ** 2 * scale).sum(1), bins - 1)
    pooled = ((seen.sum(0) - count * expected) ** 2 * scale).sum() / count
    yield "row to row, turned, pooled", chi_square_p(float(pooled), bins - 1)


@numba.njit
def count_cycles(row: Ints) -> int:
    seen = np.zeros(row.size, np.bool_)
    count = 0
    for start in range(row.size):
        count += not seen[start]
        at = start
        while not seen[at]:
            seen[at] = True
            at = row[at]
    return count


def cycles(rows: Ints) -> PValues:
    count, n = rows.shape
    yield "fixed points", poisson_p(int((rows == np.arange(n)).sum()), count)
    count = min(count, max(1, 10**7 // n))  # each step of a cycle is a cache miss
    numbers = np.array([count_cycles(row) for row in rows[:count]])
    shares = 1 / np.arange(1, n + 1)
    mean, variance = float(shares.sum()), float((shares - shares**2).sum())
    yield "number of cycles", normal_p((int(numbers.sum()) - count * mean) / math.sqrt(count * variance))
    if count >= 16:
        odd = int(((n - numbers) % 2).sum())
        yield "odd permutations", normal_p((odd - count / 2) / math.sqrt(count / 4))


def halves(rows: Ints) -> PValues:
    """What a Feistel network of few rounds cannot hide.

    Two positions with the same right half keep the distance of their left halves through a round, and once more if the
    round after it happens to make their right halves equal. So after 4 rounds that distance is there twice as often as
    by chance, after 6 rounds more often by 1 in sqrt(n), and so on. Likewise backward, from values of one left half.
    """
    n = rows.shape[1]
    rows = rows[: max(1, 10**7 // n)]
    count = len(rows)
    a, bits = split(n)
    side = 1 << bits
    left = rows >> bits
    sizes = np.bincount(np.arange(n) >> bits)
    seen, expected = 0, 0.0
    for j in range(1, min(a, 17 if n < 2**17 else 4)):
        lag = j * side
        distance = left[:, lag:] - left[:, :-lag]
        seen += int(((distance == j) | (distance == j - a)).sum())
        expected += count * distance.shape[1] * float((sizes * np.roll(sizes, -j)).sum()) / (n * (n - 1))
    yield "left halves", normal_p((seen - expected) / math.sqrt(expected))
    if n > 2**20:
        return
    right = np.empty_like(rows)
    np.put_along_axis(right, rows, np.arange(n)[None] & side - 1, 1)
    sizes = np.bincount(np.arange(n) & side - 1)
    seen, expected = 0, 0.0
    for j in range(1, min(side, 17 if n < 2**17 else 4)):
        same_left = (np.arange(n - j) & side - 1) + j < side
        distance = right[:, j:] - right[:, :-j]
        seen += int((((distance == j) | (distance == j - side)) & same_left).sum())
        expected += count * int(same_left.sum()) * float((sizes * np.roll(sizes, -j)).sum()) / (n * (n - 1))
    yield "right halves, backward", normal_p((seen - expected) / math.sqrt(expected))


STATISTICS = (blocks_and_low_bits, cells, neighbours, serial_correlation, row_to_row, cycles, halves)


def all_p_values(rows: Ints) -> dict[str, float]:
    return dict(itertools.chain.from_iterable(statistic(rows) for statistic in STATISTICS))
