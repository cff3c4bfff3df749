"""Local orders against twins in plain Python: one cuts lists, one has integers that cannot overflow; and bad input."""

import itertools
import json
import pickle

import numpy as np
import pytest

import plans
from plans import plan_over
from tokenfeed.errors import ArgumentError, PlanMismatchError, SampleIndexError, StateError
from tokenfeed.kernels.locality import permute_local, permute_local_run, permute_local_sources
from tokenfeed.plan.permutation import Locality, LocalPermutation, Permutation
from tokenfeed.plan.plan import Plan
from tokenfeed.plan.shares import Shares, Stage
from tokenfeed.plan.skips import Skip

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
LARGEST = 2**63 - 1


def scramble(word: int) -> int:
    word %= WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def mix(half: int, key: int) -> int:
    word = (half ^ key) * GOLDEN % WORD
    return (word ^ word // 2**32) * 0xBF58476D1CE4E5B9 % WORD


def through_network(place: int, size: int, keys: list[int]) -> int:
    side = 2 ** (size.bit_length() // 2)
    a = -(-size // side)
    while True:
        left, right = divmod(place, side)
        for left_key, right_key in zip(keys[::2], keys[1::2], strict=True):
            left = (left + mix(right, left_key) * a // WORD) % a
            right = (right + mix(left, right_key) * side // WORD) % side
        place = left * side + right
        if place < size:
            return place


class Twin:
    def __init__(self, n: int, block: int, tile: int, seed: int, epoch: int) -> None:
        self.n = n
        self.block = min(block, n)
        self.num_blocks = -(-n // self.block)
        self.tile = min(tile, self.num_blocks)
        self.blocks = Permutation(self.num_blocks, seed, epoch)
        size = self.tile * self.block
        self.keys = []
        for stage in (1, 2):
            state = scramble(scramble(scramble(scramble(seed + stage * GOLDEN) + GOLDEN) + epoch) + size)
            rounds = 6 if size >= 65_536 else 8 if size >= 4096 else 12
            self.keys.append([scramble(state + r * GOLDEN) for r in range(1, rounds + 1)])

    def permute_tile(self, place: int, size: int, stage: int, number: int) -> int:
        word = scramble(number + GOLDEN)
        return through_network(place, size, [key ^ word for key in self.keys[stage]])

    def whole_order(self) -> list[int]:
        """By cutting lists, literally as it is described."""
        everything = list(range(self.n))
        blocks = [everything[start : start + self.block] for start in range(0, self.n, self.block)]
        slots = [blocks[self.blocks[slot]] for slot in range(self.num_blocks)]
        for stage, first in ((0, 0), (1, self.tile // 2)):
            cuts = [0, *range(first, self.num_blocks, self.tile), self.num_blocks]
            for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
                tile = [sample for slot in slots[start:stop] for sample in slot]
                mixed = [tile[self.permute_tile(i, len(tile), stage, number)] for i in range(len(tile))]
                for slot in range(start, stop):
                    slots[slot], mixed = mixed[: len(slots[slot])], mixed[len(slots[slot]) :]
        return [sample for slot in slots for sample in slot]

    def __getitem__(self, position: int) -> int:
        """By arithmetic, for any n."""
        short_slot = self.blocks.inverse(self.num_blocks - 1)
        gap = self.num_blocks * self.block - self.n

        def place_of(slot: int) -> int:
            return slot * self.block - (gap if slot > short_slot else 0)

        def slot_of(place: int) -> int:
            slot = place // self.block
            return slot if place < place_of(short_slot + 1) else (place + gap) // self.block

        place = position
        for stage, first in ((1, self.tile // 2), (0, 0)):
            number = max(0, 1 + (slot_of(place) - first) // self.tile)
            start = place_of(max(0, first + (number - 1) * self.tile))
            stop = place_of(min(self.num_blocks, first + number * self.tile))
            place = start + self.permute_tile(place - start, stop - start, stage, number)
        slot = slot_of(place)
        return self.blocks[slot] * self.block + place - place_of(slot)


def every_shape(n: int):
    for block in range(1, n + 2):
        for tile in range(1, -(-n // block) + 2):
            yield block, tile


@pytest.mark.parametrize("n", range(1, 20))
def test_every_small_order_is_what_is_described(n):
    for block, tile in every_shape(n):
        twin = Twin(n, block, tile, 3, n)
        expected = twin.whole_order()
        assert LocalPermutation(n, 3, n, Locality(block, tile))(range(n)).tolist() == expected, (block, tile)
        assert [twin[position] for position in range(n)] == expected, (block, tile)


@pytest.mark.parametrize("first", range(1, 97, 8))
def test_bijective_for_every_small_shape(first):
    for n in range(first, first + 8):
        positions = np.arange(n)
        for block, tile in every_shape(n):
            order = LocalPermutation(n, 1, 2, Locality(block, tile))
            samples = order(positions)
            assert np.array_equal(np.sort(samples), positions), (n, block, tile)
            assert np.array_equal(order.inverse(samples), positions), (n, block, tile)


@pytest.mark.parametrize(
    ("n", "block", "tile"),
    [(5000, 7, 30), (10_001, 100, 50), (4096, 64, 64), (200_000, 1024, 64), (99_999, 1000, 4), (70_000, 1, 1 << 16)],
)
def test_bijective_across_chunks(n, block, tile):
    """And in any batches: chunks, and tables of few blocks, begin and end where they may."""
    order = LocalPermutation(n, 5, 6, Locality(block, tile))
    samples = order(np.arange(n))
    assert np.array_equal(np.sort(samples), np.arange(n))
    assert np.array_equal(order.inverse(samples), np.arange(n))
    twin = Twin(n, block, tile, 5, 6)
    rng = np.random.default_rng(n)
    for count in (1, 33, 1023, 1025, 3000):
        positions = rng.integers(0, n, count)
        assert np.array_equal(order(positions), samples[positions])
        start = int(rng.integers(0, n - count))
        assert np.array_equal(order(np.arange(start, start + count)), samples[start : start + count])
        assert samples[positions[-1]] == twin[int(positions[-1])]


SIZES = [10**6, 10**8, 2**26 + 1, 2**52 - 3, 2**52, 2**53 + 1, 10**16 + 1, 2**61 - 1, 2**62, LARGEST - 1, LARGEST]
SHAPES = [(1, 1), (1, 2**31 - 1), (2**31 - 1, 1), (2**31 - 1, 2**31 - 1), (1024, 64), (1000, 7), (3, 5), (77, 4096)]


@pytest.mark.parametrize("n", SIZES)
def test_huge_orders_equal_their_twin(n):
    """Also where quotients no longer fit a float, and next to the ends of blocks and tiles."""
    rng = np.random.default_rng(n % 1000)
    for block, tile in SHAPES:
        size = block * tile
        edges = [edge * unit // 2 for unit in (block, size) for edge in (1, 2, 3, 4, n // unit)]
        ends = [edge + away for edge in [*edges, n] for away in (-1, 0, 1)]
        numbers = [*(end for end in ends if 0 <= end < n), *rng.integers(0, n, 5).tolist()]
        positions = np.array(numbers, np.int64)
        twin = Twin(n, block, tile, 8, 1)
        order = LocalPermutation(n, 8, 1, Locality(block, tile))
        samples = order(positions)
        assert samples.tolist() == [twin[position] for position in numbers]
        assert np.array_equal(order.inverse(samples), positions)
        assert np.array_equal(order(order.inverse(positions)), positions)


def test_the_order_is_for_ever():
    """Checkpoints mean this order. If this test fails, the kernel must be put right, not the test."""
    order = LocalPermutation(11, locality=Locality(block=2, tile=2))
    assert order(range(11)).tolist() == [6, 0, 4, 7, 1, 8, 9, 3, 5, 2, 10]
    samples = LocalPermutation(10**12 + 1, 42, 3, Locality(1024, 64))([0, 1, 10**12])
    assert samples.tolist() == [294_512_894_447, 324_338_524_223, 816_353_340_691]


def test_run_positions():
    samples = np.array([0, 6, 7, 13, 14, 3, -5, 700, 2**62, LARGEST, -1])
    epochs, indices = np.empty_like(samples), np.empty_like(samples)
    permute_local_run(samples, 7, 2, 2, 9, epochs, indices)
    good = samples >= 0
    assert epochs[good].tolist() == (samples[good] // 7).tolist()
    assert indices[good].tolist() == [Twin(7, 2, 2, 9, k // 7)[k % 7] for k in samples[good].tolist()]
    assert epochs[~good].tolist() == indices[~good].tolist() == [-1, -1]
    in_place = samples[good]
    permute_local_run(in_place, 7, 2, 2, 9, epochs[: in_place.size], in_place)
    assert in_place.tolist() == indices[good].tolist()
    out = np.empty(3, np.int64)
    with pytest.raises(ValueError, match="as many entries"):
        permute_local_run(samples, 7, 2, 2, 9, out, indices)
    with pytest.raises(ValueError, match="nothing"):
        permute_local_run(out, 0, 2, 2, 9, out, out)
    assert permute_local(np.array([0, 7, -1]), 7, 2, 2, 0, 0, False, out) == 1


def test_sources_are_runs_of_their_own():
    rng = np.random.default_rng(0)
    sizes, seeds = np.array([50, 1, 3000, 7]), np.array([5, 6, 7, 8])
    sources, numbers = rng.integers(0, 3, 4000), rng.integers(0, 9000, 4000)
    epochs, indices = np.empty_like(numbers), np.empty_like(numbers)
    permute_local_sources(sources, numbers, sizes, 4, 3, seeds, epochs, indices)
    for source in range(3):
        rows = sources == source
        expected = np.empty((2, np.count_nonzero(rows)), np.int64)
        permute_local_run(numbers[rows], sizes[source], 4, 3, seeds[source], expected[0], expected[1])
        assert np.array_equal(np.stack([epochs[rows], indices[rows]]), expected)


def test_what_it_is():
    order = LocalPermutation(100, 1, 2, Locality(5, tile=3))
    assert isinstance(order, Permutation)
    assert repr(order) == "LocalPermutation(n=100, seed=1, epoch=2, locality=Locality(block=5, tile=3))"
    assert order == pickle.loads(pickle.dumps(order)) != LocalPermutation(100, 1, 2, Locality(5, tile=4))
    assert order != Permutation(100, 1, 2)
    assert Locality(np.int64(5)) == Locality(block=5, tile=64)
    with pytest.raises(SampleIndexError, match="position 100 is outside"):
        order[100]
    with pytest.raises(SampleIndexError, match="value -1 is outside"):
        order.inverse([3, -1])


@pytest.mark.parametrize("bad", [0, -1, 2**31, 1.0, "1", None, True])
@pytest.mark.parametrize("name", ["block", "tile"])
def test_bad_localities(name, bad):
    with pytest.raises(ArgumentError, match=f"{name} of a locality"):
        Locality(**{"block": 4, "tile": 4, name: bad})


@pytest.mark.parametrize("bad", [1, None, "local", (4, 2), [4, 2]])
def test_bad_shuffles(bad):
    with pytest.raises(ArgumentError, match=r"shuffle is .* True, False or a Locality"):
        plan_over(10, shuffle=bad)


def make_plan(shuffle):
    return plan_over(1000, seed=3, shuffle=shuffle).amend(10, skip=Skip(indices=(5, 900)))


def make_mixture(shuffle):
    sources = [plans.source("a", 300), plans.source("b", 40)]
    plan = Plan(sources, Shares([Stage({"a": 2, "b": 1})], ["a", "b"]), seed=3, shuffle=shuffle)
    return plan.amend(3, skip=Skip(indices=(7, 8), source="b"))


@pytest.mark.parametrize("make", [make_plan, make_mixture])
def test_checkpoints_tell_orders_apart(make):
    orders = [True, False, Locality(8, 4), Locality(8, 5), Locality(9, 4)]
    for one in orders:
        state = json.loads(json.dumps(make(one).state(100)))
        for other in orders:
            if one == other:
                assert make(other).accept(state)[1] == 100
                continue
            with pytest.raises(PlanMismatchError) as caught:
                make(other).accept(state)
            if one and other:
                told = [str([each.block, each.tile]) if isinstance(each, Locality) else "None" for each in (one, other)]
                assert f"locality {told[0]}, this plan has {told[1]} (" in str(caught.value)


@pytest.mark.parametrize("make", [make_plan, make_mixture])
def test_plans_survive_being_saved(make):
    plan = make(Locality(8, 4))
    again = type(plan).from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan != make(True)
    assert again.shuffle == Locality(8, 4)
    assert np.array_equal(again.locate(list(range(500))), plan.locate(np.arange(500)))
    for damaged in ([8], [8, 0], [8, "4"], "local", 1, None):
        with pytest.raises(StateError, match="describes no shuffle"):
            type(plan).from_json({**plan.to_json(), "shuffle": damaged})


@pytest.mark.parametrize("shuffle", [True, False, Locality(2, 3)])
def test_mixtures_with_groups_and_skips_forward_and_back(shuffle):
    plan = make_mixture(shuffle)
    sources, epochs, indices = plan.locate(np.arange(600))
    for k in range(600):
        name = plan.sources[sources[k]].name
        assert plan.find(int(indices[k]), epochs=[int(epochs[k])], source=name).tolist() == [k]
    late = [(int(index), int(k)) for k, index in enumerate(indices) if sources[k] == 1 and k >= 3]
    assert {index for index, _ in late} == set(range(40)) - {7, 8}
