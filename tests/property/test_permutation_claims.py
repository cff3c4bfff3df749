"""`Permutation` is what it claims: a bijection for every n, and by no statistic known from a random permutation.

Statistics are taken of several permutations of one n, the rows of a matrix, and end as p-values under the law of true
random permutations. *Pooled* ones add up over the rows and find what all keys have in common; *each* ones look at every
row by itself and find what every key does in its own way (batches all odd or all even, say). Everything is seeded: what
passes once passes always. The last tests show that NumPy's permutations pass and that bad ones do not.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfeed.kernels.permutation import permute_run
from tokenfeed.plan.permutation import Permutation

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Key = tuple[int, int]
"""(seed, epoch)."""


# It is a bijection

KEYS = [(0, 0), (1, 7), (2**63 - 1, 2**40)]


def is_bijection(n: int, key: Key) -> bool:
    positions = np.arange(n)
    permutation = Permutation(n, *key)
    values = permutation(positions)
    seen = np.zeros(n, bool)
    seen[values] = True
    return bool(seen.all() and np.array_equal(permutation.inverse(values), positions))


@pytest.mark.parametrize("key", KEYS)
def test_bijective_for_every_small_n(key: Key) -> None:
    assert [n for n in range(1, 4097) if not is_bijection(n, key)] == []


@pytest.mark.parametrize("exponent", range(12, 21))
def test_bijective_around_powers_of_two(exponent: int) -> None:
    """grain repeats an item at 65,537 and at 262,145."""
    for n, key in itertools.product((2**exponent - 1, 2**exponent, 2**exponent + 1), KEYS):
        assert is_bijection(n, key), (n, key)


# Any size, with those around powers of two and next to the largest taken often.
large_n = st.one_of(
    st.integers(1, 2**62),
    st.builds(lambda exponent, away: max(1, 2**exponent + away), st.integers(0, 62), st.integers(-3, 3)),
    st.integers(2**63 - 2**33, 2**63 - 1),
)
words = st.integers(0, 2**63 - 1)


@settings(max_examples=600, deadline=None)
@given(large_n, words, words, st.lists(words, max_size=50))
def test_the_inverse_undoes_it(n: int, seed: int, epoch: int, numbers: list[int]) -> None:
    permutation = Permutation(n, seed, epoch)
    ends = range(min(n, 5)), range(max(0, n - 5), n)
    positions = np.array(sorted({*(number % n for number in numbers), *ends[0], *ends[1]}), np.int64)
    values = permutation(positions)
    assert values.min() >= 0
    assert values.max() < n
    assert np.unique(values).size == positions.size
    assert np.array_equal(permutation.inverse(values), positions)
    assert np.array_equal(permutation(permutation.inverse(positions)), positions)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), words, st.integers(0, 2**40), st.data())
def test_a_run_is_the_permutations_of_its_epochs(n: int, seed: int, first: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(-3, 2 * n), min_size=1, max_size=60))
    samples = np.maximum(0, first + np.cumsum(steps)).astype(np.int64)
    epochs, indices = np.empty_like(samples), np.empty_like(samples)
    assert permute_run(samples, n, seed, epochs, indices) == -1
    assert epochs.tolist() == (samples // n).tolist()
    assert indices.tolist() == [Permutation(n, seed, int(k // n))[int(k % n)] for k in samples]


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


# It is like a random permutation

OVERALL = 0.001

EPOCHS = [(0, epoch) for epoch in range(20_000)]
SEEDS = [(seed, 3) for seed in range(20_000)]
STAIRS = [(stair // 2, (stair + 1) // 2) for stair in range(100)]
"""The next epoch, then the next seed, and so on."""

RUNS = [
    pytest.param(n, keys[:count], id=f"{n}-{name}")
    for n, count in ((64, 20_000), (100, 20_000), (1000, 2000), (4095, 200), (4096, 200), (65_537, 20))
    for name, keys in (("epochs", EPOCHS), ("seeds", SEEDS))
]
RUNS += [pytest.param(n, STAIRS[:count], id=f"{n}-both") for n, count in ((10**6, 5), (10**7, 3))]


def failures(p_values: dict[str, float]) -> dict[str, float]:
    """What would be a wonder, if it came from random permutations: once in 1000 times for all runs together."""
    limit = OVERALL / (len(RUNS) + len(HUGE) + 2 * len(TINY)) / len(p_values)
    return {name: p for name, p in p_values.items() if p < limit}


@pytest.mark.parametrize(("n", "keys"), RUNS)
def test_no_statistic_tells_it_from_a_random_permutation(n: int, keys: list[Key]) -> None:
    rows = np.stack([Permutation(n, *key)(np.arange(n)) for key in keys])
    assert failures(all_p_values(rows)) == {}


HUGE = [10**12, 2**40 + 1, 3 * 2**60 + 1, 2**62, 2**63 - 1]


@pytest.mark.parametrize("n", HUGE)
def test_no_statistic_tells_pieces_of_huge_ones(n: int) -> None:
    """The ranks of the values at 2**16 positions in a row are a permutation, too."""
    starts = np.random.default_rng(1).integers(0, n - 2**16, 8)
    values = np.stack([Permutation(n, 5, epoch)(start + np.arange(2**16)) for epoch, start in enumerate(starts)])
    p_values = all_p_values(np.argsort(np.argsort(values)))
    for name, classes in (("low bits", values & 1023), ("high bits", values // -(-n // 1024))):
        seen = np.bincount(classes.reshape(-1), minlength=1024)
        p_values[name] = chi_square_p(((seen - values.size / 1024) ** 2).sum() / (values.size / 1024), 1023)
    assert failures(p_values) == {}


TINY = range(2, 7)


@pytest.mark.parametrize("n", TINY)
@pytest.mark.parametrize("by", ["epochs", "seeds"])
def test_all_orders_of_a_few_are_equally_likely(n: int, by: str) -> None:
    count = 300 * math.factorial(n)
    if by == "epochs":
        rows = np.empty(count * n, np.int64)
        permute_run(np.arange(count * n), n, 5, np.empty_like(rows), rows)
        rows = rows.reshape(count, n)
    else:
        rows = np.stack([Permutation(n, seed)(np.arange(n)) for seed in range(count)])
    _, seen = np.unique(rows @ n ** np.arange(n), return_counts=True)
    assert seen.size == math.factorial(n)
    assert failures({"orders": chi_square_p(float(((seen - 300) ** 2).sum()) / 300, seen.size - 1)}) == {}


# The statistics can tell


def network(n: int, key: Key, rounds: int) -> Ints:
    """A Feistel network like ours whose round functions are tables of true random numbers."""
    rng = np.random.default_rng(key)
    a, bits = split(n)
    left, right = np.divmod(np.arange(a << bits), 1 << bits)
    for _ in range(rounds // 2):
        left = (left + rng.integers(a, size=1 << bits)[right]) % a
        right = right + rng.integers(1 << bits, size=a)[left] & (1 << bits) - 1
    places = left << bits | right
    values = places[:n]
    while (values >= n).any():
        values = np.where(values >= n, places[values], values)
    return values


def low_bits_stay_low(n: int, key: Key) -> Ints:
    """As levanter has it: round functions affine modulo a power of two."""
    rng = np.random.default_rng(key)
    bits = (n.bit_length() - 1) // 2
    left, right = np.divmod(np.arange(n), 1 << bits)
    for _ in range(8):
        factor, summand = rng.integers(1 << bits, size=2)
        left, right = right, left ^ (right * factor + summand & (1 << bits) - 1)
    return left << bits | right


def congruential(n: int, key: Key) -> Ints:
    factor = next(number for number in range(n // 3 + 7 * key[1], n) if math.gcd(number, n) == 1)
    return (np.arange(n) * factor + key[1]) % n


def never_odd(n: int, key: Key) -> Ints:
    values = Permutation(n, *key)(np.arange(n))
    if (n - count_cycles(values)) % 2:
        values[:2] = values[1::-1]
    return values


def same_in_every_epoch(n: int, key: Key) -> Ints:
    return Permutation(n, key[0])(np.arange(n))


def partly_kept(n: int, key: Key) -> Ints:
    """As grain has it between some epochs, correlation 0.17: a sixth stays in place."""
    values = Permutation(n, key[0])(np.arange(n))
    moved = n - n // 6
    values[:moved] = values[:moved][Permutation(moved, *key)(np.arange(moved))]
    return values


def one_in_fifty_odd_batches(n: int, key: Key) -> Ints:
    """Random, but one batch of 32 in fifty has its values sorted by parity with its neighbour."""
    values = np.random.default_rng(key).permutation(n)
    for start in range(0, n - 64, 32 * 50):
        values[start : start + 64] = sorted(values[start : start + 64], key=lambda value: value & 1)
    return values


def few_rounds(rounds: int) -> Callable[[int, Key], Ints]:
    return lambda n, key: network(n, key, rounds)


BAD = [
    (low_bits_stay_low, 4096, 100, ["parity of a batch, each", "low bits together, each", "bit 0 to bit 0, each"]),
    (few_rounds(2), 1000, 500, ["low bits to block, each", "neighbour steps, pooled", "row to row, each"]),
    (few_rounds(4), 64, 5000, ["bit 0 to bit 0, each", "values at 0 and 8", "steps of one", "left halves"]),
    (few_rounds(4), 10**6, 2, ["left halves", "right halves, backward"]),
    (few_rounds(6), 1000, 500, ["left halves", "right halves, backward"]),
    (few_rounds(8), 64, 10_000, ["left halves"]),
    (congruential, 4096, 300, ["serial correlation, lag 1, each", "neighbour steps, pooled"]),
    (never_odd, 100, 300, ["odd permutations"]),
    (same_in_every_epoch, 4096, 20, ["row to row, pooled", "row to row, equal", "row to row, turned, each"]),
    (partly_kept, 4096, 20, ["row to row, pooled", "row to row, equal"]),
    (one_in_fifty_odd_batches, 65_537, 30, ["parity of a batch, each"]),
]


def name_bad(value: object) -> str | None:
    if callable(value):
        return value.__qualname__.split(".")[0]
    return str(value) if isinstance(value, int) else ""


@pytest.mark.parametrize(("bad", "n", "count", "told_by"), BAD, ids=name_bad)
def test_bad_permutations_are_found_out(
    bad: Callable[[int, Key], Ints], n: int, count: int, told_by: Sequence[str]
) -> None:
    rows = np.stack([bad(n, key) for key in EPOCHS[:count]])
    assert np.array_equal(np.sort(rows[0]), np.arange(n))
    assert set(told_by) <= failures(all_p_values(rows)).keys()


@pytest.mark.parametrize(("n", "count"), [(64, 5000), (1000, 500), (4096, 100), (65_537, 10)])
@pytest.mark.parametrize("good", [lambda n, key: np.random.default_rng(key).permutation(n), few_rounds(16)])
def test_good_permutations_are_not(good: Callable[[int, Key], Ints], n: int, count: int) -> None:
    rows = np.stack([good(n, key) for key in EPOCHS[:count]])
    assert failures(all_p_values(rows)) == {}
