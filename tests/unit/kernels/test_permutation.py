"""The permutation kernels against a twin in plain Python, whose integers cannot overflow; and bad arguments."""

import pickle
from typing import Any

import numpy as np
import pytest

from tokenfeed.errors import ArgumentError, SampleIndexError
from tokenfeed.kernels.permutation import (
    num_rounds,
    permute,
    permute_run,
    round_keys,
    split,
    walk,
)
from tokenfeed.plan.permutation import Permutation

WORD = 2**64
LARGEST = 2**63 - 1
SIZES = [1, 2, 3, 4, 5, 7, 8, 10, 63, 64, 1000, 4095, 4096, 65_537, 2**26 + 1, 10**8, 10**12, 2**61 - 1, 2**62]
SIZES += [2**62 + 1, LARGEST - 2**31, LARGEST - 2**31 + 1, LARGEST - 1, LARGEST]
KEYS = [(0, 0), (1, 0), (0, 1), (LARGEST, LARGEST), (12345, 678)]


class Twin:
    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = n
        self.bits = n.bit_length() // 2
        self.side = 2**self.bits
        self.a = -(-n // self.side)
        state = scramble(scramble(scramble(seed + 0x9E3779B97F4A7C15) + epoch) + n)
        rounds = 12 if n >= 4096 else 32
        self.keys = [scramble(state + r * 0x9E3779B97F4A7C15) for r in range(1, rounds + 1)]

    def mix(self, half: int, key: int) -> int:
        word = (half ^ key) * 0x9E3779B97F4A7C15 % WORD
        return (word ^ word // 2**32) * 0xBF58476D1CE4E5B9 % WORD

    def __getitem__(self, position: int) -> int:
        place = position
        while True:
            left, right = divmod(place, self.side)
            for left_key, right_key in zip(self.keys[::2], self.keys[1::2], strict=True):
                left = (left + self.mix(right, left_key) * self.a // WORD) % self.a
                right = (right + self.mix(left, right_key) * self.side // WORD) % self.side
            place = left * self.side + right
            if place < self.n:
                return place


def scramble(word: int) -> int:
    word %= WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def some_positions(n: int, count: int = 60) -> np.ndarray:
    """The first, the last and some between."""
    rng = np.random.default_rng(n % 1000)
    return np.concatenate([np.arange(min(n, 10)), n - 1 - np.arange(min(n, 10)), rng.integers(0, n, count)])


@pytest.mark.parametrize("n", SIZES)
def test_equals_its_twin(n):
    for key in KEYS:
        positions = some_positions(n)
        values, back = np.empty_like(positions), np.empty_like(positions)
        assert permute(positions, n, *key, False, values) == -1
        twin = Twin(n, *key)
        assert values.tolist() == [twin[position] for position in positions.tolist()]
        assert permute(values, n, *key, True, back) == -1
        assert back.tolist() == positions.tolist()


@pytest.mark.parametrize("count", [0, 1, 7, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize("n", [1000, 10**8])
def test_batches_of_any_size_in_place(n, count):
    """Blocks and vectors end where they may; one by one gives the same."""
    positions = some_positions(n, 2500)[:count]
    permutation = Permutation(n, 3, 4)
    values = positions.copy()
    assert permute(values, n, 3, 4, False, values) == -1
    assert values.tolist() == [permutation[position] for position in positions.tolist()]
    assert permute(values, n, 3, 4, True, values) == -1
    assert np.array_equal(values, positions)


@pytest.mark.parametrize("n", [1, 10, 4096, LARGEST])
def test_the_parts_that_other_kernels_are_made_of(n):
    keys = np.empty(num_rounds(n), np.uint64)
    round_keys(5, 6, n, keys)
    twin = Twin(n, 5, 6)
    assert keys.tolist() == twin.keys
    a, bits = (np.uint64(half) for half in split(n))
    assert (int(a), int(bits)) == (twin.a, twin.bits)
    for position in some_positions(n, 5).tolist():
        value = walk(np.uint64(position), np.uint64(n), a, bits, keys, np.uint64(0), False)
        assert value == twin[position]
        assert walk(np.uint64(value), np.uint64(n), a, bits, keys, np.uint64(0), True) == position


def test_the_order_is_for_ever():
    """Checkpoints mean this order. If this test fails, the kernel must be put right, not the test."""
    assert Permutation(7, seed=1)(range(7)).tolist() == [6, 5, 1, 0, 4, 2, 3]
    values = Permutation(10**12, seed=42, epoch=3)([0, 1, 10**12 - 1])
    assert values.tolist() == [673_074_771_479, 808_062_739_401, 915_517_530_231]


def test_run_positions():
    samples = np.array([0, 6, 7, 13, 14, 3, -5, 700, 2**62, LARGEST, -1])
    epochs, indices = np.empty_like(samples), np.empty_like(samples)
    permute_run(samples, 7, 9, epochs, indices)
    good = samples >= 0
    assert epochs[good].tolist() == (samples[good] // 7).tolist()
    assert indices[good].tolist() == [Twin(7, 9, k // 7)[k % 7] for k in samples[good].tolist()]
    assert epochs[~good].tolist() == indices[~good].tolist() == [-1, -1]
    permute_run(np.array([LARGEST, 0]), LARGEST, 9, epochs[:2], indices[:2])
    assert epochs[:2].tolist() == [1, 0]
    assert indices[:2].tolist() == [Twin(LARGEST, 9, 1)[0], Twin(LARGEST, 9, 0)[0]]
    in_place = samples[good]
    permute_run(in_place, 7, 9, epochs[: in_place.size], in_place)
    assert in_place.tolist() == [Twin(7, 9, k // 7)[k % 7] for k in samples[good].tolist()]


@pytest.mark.parametrize("n", [1, 3, 5, 10, 100, 4097])
def test_positions_outside_end_at_once(n):
    """Between n and a·2**bits lie cycles that never come back below n."""
    out = np.empty(3, np.int64)
    for outside in range(n, n + 2 * n.bit_length() ** 2):
        assert permute(np.array([0, 0, outside]), n, 0, 0, False, out) == 2
        assert permute(np.array([0, outside, outside]), n, 0, 0, True, out) == 1
    assert permute(np.array([0, -1, n]), n, 0, 0, False, out) == 1
    with pytest.raises(ValueError, match="as many entries"):
        permute(np.array([0, 0]), n, 0, 0, False, out)
    with pytest.raises(ValueError, match="as many entries"):
        permute_run(np.array([0, 0]), n, 0, out, out[:2])
    with pytest.raises(ValueError, match="nothing"):
        permute_run(np.array([0, 0]), 1 - n, 0, out[:2], out[:2])


def test_what_it_takes_and_gives():
    p = Permutation(100, 1, 2)
    expected = [p[i] for i in range(100)]
    assert all(type(value) is int for value in expected)
    assert list(p) == expected
    assert len(p) == 100
    assert p(5) == p(np.uint8(5)) == p[np.int32(5)] == expected[5]
    assert type(p(np.uint8(5))) is int
    for dtype in ("i1", "u1", "<i2", ">i4", "u4", ">u8", "i8"):
        values = p(np.arange(100, dtype=dtype))
        assert values.dtype == np.int64
        assert values.tolist() == expected
        assert p.inverse(values.astype(dtype)).tolist() == list(range(100))
    for shape in ((), (4, 5), (2, 0, 3), (2, 5, 10)):
        positions = np.resize(np.arange(100), shape)
        assert p(positions).shape == shape
        assert p(positions).tolist() == np.array(expected)[positions].tolist()
    strided, frozen = np.arange(100)[::-3], np.arange(100)
    frozen.flags.writeable = False
    assert p(strided).tolist() == expected[::-3]
    assert p(frozen).tolist() == expected
    assert p([]).dtype == np.int64
    assert p([3, 4]).tolist() == p((3, 4)).tolist() == expected[3:5]
    assert p([[3], [4]]).tolist() == [[value] for value in expected[3:5]]
    given = np.arange(5)
    p(given)
    assert given.tolist() == [0, 1, 2, 3, 4]


def test_identity():
    p = Permutation(100, seed=1, epoch=2)
    assert (p.n, p.seed, p.epoch) == (100, 1, 2)
    assert repr(p) == "Permutation(n=100, seed=1, epoch=2)"
    assert p == Permutation(np.int64(100), np.uint8(1), 2) == pickle.loads(pickle.dumps(p))
    assert len({p, Permutation(100, 1, 2), Permutation(100, 2, 1), Permutation(101, 1, 2)}) == 3
    with pytest.raises(AttributeError):
        p.seed = 5


def test_keys_are_not_confused():
    """Sums and products of n, seed and epoch would be."""
    keys = [(n, seed, epoch) for n in (1000, 1001) for seed in range(20) for epoch in range(20)]
    starts = {tuple(Permutation(*key)(range(6)).tolist()) for key in keys}
    assert len(starts) == len(keys)


NOT_WHOLE: list[Any] = [1.0, "1", None, True, np.bool_(True), 1j, [1], np.float32(1)]


@pytest.mark.parametrize("bad", [0, -1, 2**63, 2**64, *NOT_WHOLE])
def test_bad_n(bad):
    with pytest.raises(ArgumentError, match="n of a permutation"):
        Permutation(bad)


@pytest.mark.parametrize("name", ["seed", "epoch"])
@pytest.mark.parametrize("bad", [-1, 2**63, 2**64, *NOT_WHOLE])
def test_bad_keys(name, bad):
    with pytest.raises(ArgumentError, match=f"{name} of a permutation"):
        Permutation(10, **{name: bad})


@pytest.mark.parametrize("bad", [*NOT_WHOLE, slice(2)])
def test_bad_single_positions(bad):
    with pytest.raises(ArgumentError, match="whole number"):
        Permutation(10)[bad]


@pytest.mark.parametrize(
    "bad", [1.0, True, None, "1", [0.0], [True], ["a"], [2**64], np.zeros(0), np.zeros(2, bool), np.zeros(2, "M8[s]")]
)
def test_bad_arrays(bad):
    for method in (Permutation(10), Permutation(10).inverse):
        with pytest.raises(ArgumentError, match="whole numbers, not"):
            method(bad)


@pytest.mark.parametrize("outside", [-1, 10, -(2**63), 2**63 - 1, 2**63, 2**64 - 1])
def test_positions_outside(outside):
    p = Permutation(10)
    for method, what in ((p, "position"), (p.inverse, "value")):
        for given in (outside, [outside], np.array([[0, 1], [outside, 3]] if outside < 2**63 else [outside])):
            with pytest.raises(SampleIndexError, match=rf"{what} {outside} is outside the permutation.*\[0, 10\)"):
                method(given)
    with pytest.raises(IndexError, match=f"position {outside} "):
        p[outside]
