"""`Permutation` is what it claims: a bijection for every n, and by no statistic known from a random permutation.

The statistics are those of `randomness`. Everything is seeded: what passes once passes always. The last tests show that
NumPy's permutations pass and that bad ones do not.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randomness import Ints, all_p_values, chi_square_p, count_cycles, split
from tiers import examples
from tokenfeed.kernels.permutation import permute_run
from tokenfeed.plan.permutation import Permutation

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


@settings(max_examples=examples(600), deadline=None)
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


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 300), words, st.integers(0, 2**40), st.data())
def test_a_run_is_the_permutations_of_its_epochs(n: int, seed: int, first: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(-3, 2 * n), min_size=1, max_size=60))
    samples = np.maximum(0, first + np.cumsum(steps)).astype(np.int64)
    epochs, indices = np.empty_like(samples), np.empty_like(samples)
    permute_run(samples, n, seed, epochs, indices)
    assert epochs.tolist() == (samples // n).tolist()
    assert indices.tolist() == [Permutation(n, seed, int(k // n))[int(k % n)] for k in samples]


# It is like a random permutation

OVERALL = 0.001

EPOCHS = [(0, epoch) for epoch in range(20_000)]
SEEDS = [(seed, 3) for seed in range(20_000)]
STAIRS = [(stair // 2, (stair + 1) // 2) for stair in range(100)]
"""The next epoch, then the next seed, and so on."""

RUNS = [
    pytest.param(n, keys[:count], id=f"{n}-{name}", marks=[pytest.mark.slow] * ((at + by) % 2))
    for at, (n, count) in enumerate(((64, 20_000), (100, 20_000), (1000, 2000), (4095, 200), (4096, 200), (65_537, 20)))
    for by, (name, keys) in enumerate((("epochs", EPOCHS), ("seeds", SEEDS)))
]
RUNS += [
    pytest.param(10**6, STAIRS[:5], id="1000000-both", marks=pytest.mark.slow),
    pytest.param(10**7, STAIRS[:3], id="10000000-both", marks=pytest.mark.slow),
]


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
