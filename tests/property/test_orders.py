"""Orders: bijections with an exact inverse, equal to their definition; tiles that no statistic tells from random."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randomness import all_p_values, chi_square_p
from simulation import reference
from tiers import examples
from tokenfeed.kernels.permutation import permute_each
from tokenfeed.plan.listed import Listed
from tokenfeed.plan.orders import InOrder, Rest, Shuffled, Tiled
from tokenfeed.plan.permutation import Permutation

words = st.integers(0, 2**62)
shapes = st.tuples(*[st.one_of(st.integers(1, 50), st.integers(1, 2**31 - 1))] * 2)


def check_order(order, samples):
    """`order` has each of `samples` (sorted) once, `place` undoes `at`, also for some alone, and knows nothing else."""
    places = np.arange(order.size)
    delivered = order.at(places)
    assert np.array_equal(np.sort(delivered), samples)
    assert np.array_equal(order.place(delivered), places)
    some = np.random.default_rng(order.size).integers(0, order.size, 20)
    assert np.array_equal(order.at(some), delivered[some])
    assert np.array_equal(order.at(places[order.size // 2 :]), delivered[order.size // 2 :])
    others = np.setdiff1d([-(2**40), -1, 0, *range(order.size), order.size + 3, 2**40], samples)
    assert (order.place(others) == -1).all()


@st.composite
def plain_orders(draw, size=None):
    size = draw(st.integers(1, 400)) if size is None else size
    seed, epoch = draw(words), draw(st.integers(0, 2**40))
    made = Tiled(size, *draw(shapes), seed, epoch), Shuffled(size, seed, epoch), InOrder(size)
    return draw(st.sampled_from(made))


@given(plain_orders())
@settings(max_examples=examples(300), deadline=None)
def test_an_order_has_every_sample_once(order):
    check_order(order, np.arange(order.size))


@given(plain_orders(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_what_is_left_and_what_was_added_is_an_order(order, data):
    """Through any number of growths: what came before is gone, all else comes once."""
    samples, known = np.arange(order.size), order.size
    for _ in range(data.draw(st.integers(1, 4))):
        begin, added = data.draw(st.integers(0, order.size - 1)), data.draw(plain_orders())
        both = order.size - begin + added.size
        mixed = data.draw(st.sampled_from([None, Shuffled(both, data.draw(words), 1)]))
        before, order = order, Rest(order, begin, known, added, mixed)
        left = np.setdiff1d(samples, before.at(np.arange(begin)))
        samples, known = np.sort([*left, *range(known, known + added.size)]), known + added.size
        check_order(order, samples)
        if mixed is None:
            assert np.array_equal(order.at(np.arange(before.size - begin)), before.at(np.arange(begin, before.size)))


@given(st.integers(1, 2**62), shapes, words, st.integers(0, 2**40), st.lists(words, max_size=20))
@settings(max_examples=examples(300), deadline=None)
def test_tiles_are_what_they_are_defined_as(size, shape, seed, epoch, numbers):
    places = np.array(sorted({*(number % size for number in numbers), 0, size // 2, size - 1}), np.int64)
    order, plain = Tiled(size, *shape, seed, epoch), reference.Tiles(size, *shape, seed, epoch)
    samples = order.at(places)
    assert samples.tolist() == [plain.at(place) for place in places.tolist()]
    assert np.array_equal(order.place(samples), places)


def test_the_order_of_tiles_is_for_ever():
    """Checkpoints mean this order. If this test fails, the code must be put right, not the test."""
    assert Tiled(11, 2, 2, 0, 0).at(np.arange(11)).tolist() == [6, 7, 1, 0, 8, 4, 9, 5, 3, 2, 10]
    samples = Tiled(10**12 + 1, 1024, 128, 42, 3).at(np.array([0, 1, 10**12]))
    assert samples.tolist() == [769423549887, 708183004158, 900695589320]


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 30), words)
@settings(max_examples=examples(200), deadline=None)
def test_reads_stay_within_a_tile(size, block, tile, seed):
    """Every block is read within `tile` · `block` places, and a tile takes `tile` blocks at most."""
    blocks = Tiled(size, block, tile, seed, 0).at(np.arange(size)) // block
    places = [np.flatnonzero(blocks == each) for each in range(blocks.max() + 1)]
    assert max(each[-1] - each[0] for each in places) < tile * block
    if size % block == 0:  # else the tile with the short block is shorter
        for start in range(0, size, tile * block):
            assert np.unique(blocks[start : start + tile * block]).size <= tile


@pytest.mark.parametrize(("tile", "count"), [(64, 5000), (100, 5000), (1000, 500), (4096, 100), (65_536, 12)])
def test_no_statistic_tells_tiles_from_random_permutations(tile, count):
    """Rows are tiles that follow one another in one epoch, with blocks of one sample in the order of the data."""
    order = Tiled(tile * count, 1, tile, 7, 1)
    places = order._shuffle_tiles(np.arange(order.size), False)
    rows = places.reshape(count, tile) - np.arange(count)[:, None] * tile
    assert (np.sort(rows) == np.arange(tile)).all()
    p_values = all_p_values(rows)
    assert {name: p for name, p in p_values.items() if p < 0.001 / 5 / len(p_values)} == {}


@pytest.mark.parametrize(("block", "tile"), [(1, 4), (4, 4), (5, 2), (10, 1), (20, 3)])
def test_every_sample_may_come_anywhere(block, tile):
    """Over many epochs, and over many seeds, a place has every sample equally often."""
    count, size = 20_000, 100
    places = np.array([0, 1, 37, 50, 99])
    for orders in ((5, range(count)), (range(count), 2)):
        seeds, epochs = np.broadcast_arrays(*map(np.atleast_1d, orders))
        keys = zip(seeds.tolist(), epochs.tolist(), strict=True)
        rows = np.stack([Tiled(size, block, tile, *key).at(places) for key in keys])
        for column in rows.T:
            seen = np.bincount(column, minlength=size)
            assert chi_square_p(((seen - count / size) ** 2).sum() / (count / size), size - 1) > 0.001 / 100


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_permutations_of_every_row_are_those_of_each(data):
    keys = data.draw(st.lists(st.tuples(st.integers(1, 10**6), words), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(st.sampled_from(keys), words), min_size=1, max_size=60))
    sizes, seeds = np.array([key for key, _ in rows], np.int64).T.copy()
    numbers = np.array([number % key[0] for key, number in rows], np.int64)
    out = np.empty_like(numbers)
    for back in (False, True):
        assert permute_each(numbers, sizes, seeds, 3, back, out) == -1
        each = zip(sizes.tolist(), seeds.tolist(), numbers.tolist(), strict=True)
        orders = [(Permutation(size, seed, 3), number) for size, seed, number in each]
        assert out.tolist() == [order.inverse(number) if back else order[number] for order, number in orders]
    numbers[-1] = sizes[-1]
    assert permute_each(numbers, sizes, seeds, 3, False, out) == numbers.size - 1


@given(st.sets(st.integers(0, 10**12), min_size=1, max_size=300), st.randoms())
@settings(max_examples=examples(60), deadline=None)
def test_a_list_has_what_it_lists(samples, random):
    listed = random.sample(sorted(samples), len(samples))
    with tempfile.TemporaryDirectory() as folder:
        Listed.write(Path(folder, "order.npy"), listed)
        order = Listed(Path(folder, "order.npy"))
        assert order.at(np.arange(order.size)).tolist() == listed
        check_order(order, np.array(sorted(samples)))
