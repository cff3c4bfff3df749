"""Local orders: bijections whose reads stay within few blocks, tiles that no statistic knows, and loaders over them."""

import tempfile
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenfeed
from oracle import Leg, check_exactly_once, run
from randomness import all_p_values, chi_square_p
from tiers import examples
from tokenfeed.errors import PlanMismatchError
from tokenfeed.kernels import locality as kernels
from tokenfeed.kernels.locality import permute_local_run
from tokenfeed.loader.loader import Loader
from tokenfeed.plan.permutation import Locality, LocalPermutation
from tokenfeed.runs.diff import compare

words = st.integers(0, 2**63 - 1)
localities = st.builds(
    Locality,
    st.one_of(st.integers(1, 50), st.integers(1, 2**31 - 1)),
    st.one_of(st.integers(1, 50), st.integers(1, 2**31 - 1)),
)
large_n = st.one_of(
    st.integers(1, 2**62),
    st.builds(lambda exponent, away: max(1, 2**exponent + away), st.integers(0, 62), st.integers(-3, 3)),
    st.integers(2**63 - 2**33, 2**63 - 1),
)


@settings(max_examples=examples(600), deadline=None)
@given(large_n, localities, words, words, st.lists(words, max_size=50))
def test_the_inverse_undoes_it(n, locality, seed, epoch, numbers):
    order = LocalPermutation(n, seed, epoch, locality)
    ends = range(min(n, 5)), range(max(0, n - 5), n)
    positions = np.array(sorted({*(number % n for number in numbers), *ends[0], *ends[1]}), np.int64)
    samples = order(positions)
    assert samples.min() >= 0
    assert samples.max() < n
    assert np.unique(samples).size == positions.size
    assert np.array_equal(order.inverse(samples), positions)
    assert np.array_equal(order(order.inverse(positions)), positions)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 30), words)
def test_reads_stay_within_two_tiles(n, block, tile, seed):
    """A block is done after 2 T positions, and any T positions (less a block) come from at most 3 · tile blocks."""
    samples = LocalPermutation(n, seed, 0, Locality(block, tile))(np.arange(n))
    assert np.array_equal(np.sort(samples), np.arange(n))
    blocks, size = samples // block, block * tile
    first = np.full(blocks.max() + 1, n)
    np.minimum.at(first, blocks, np.arange(n))
    last = np.zeros_like(first)
    np.maximum.at(last, blocks, np.arange(n))
    assert (last - first).max() < 2 * size
    for start in range(0, n, max(1, n // 20)):
        assert np.unique(blocks[start : start + size - block + 1]).size <= 3 * tile
    if n % block == 0 and n // block >= tile:  # else tiles are shorter
        for start in range(tile // 2 * block, n, size):
            assert np.unique(blocks[start : start + size]).size <= 2 * tile


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 300), localities, words, st.integers(0, 2**40), st.data())
def test_a_run_is_the_orders_of_its_epochs(n, locality, seed, first, data):
    steps = data.draw(st.lists(st.integers(-3, 2 * n), min_size=1, max_size=60))
    samples = np.maximum(0, first + np.cumsum(steps)).astype(np.int64)
    epochs, indices = np.empty_like(samples), np.empty_like(samples)
    permute_local_run(samples, n, locality.block, locality.tile, seed, epochs, indices)
    assert epochs.tolist() == (samples // n).tolist()
    assert indices.tolist() == [LocalPermutation(n, seed, int(k // n), locality)[int(k % n)] for k in samples]


# The mixing within a tile is as good as a random permutation


@numba.njit
def mix_tiles(places, n, size, seed, epoch, stage):
    """What one stage does with places in tiles of `size`, all full."""
    layout = kernels._lay_out(n, 1, size)
    _, keys, gap_at = kernels._make_keys(layout, n, seed, epoch)
    known = np.empty((3, kernels._CHUNK), np.uint64)
    for start in range(0, places.size, kernels._CHUNK):
        chunk = places[start : start + kernels._CHUNK]
        kernels._mix(chunk, np.uint64(0), layout, n, gap_at, keys[stage], known, False)


@pytest.mark.parametrize(("size", "count"), [(64, 5000), (100, 5000), (1000, 500), (4096, 100), (65_536, 12)])
@pytest.mark.parametrize("stage", [0, 1])
def test_no_statistic_tells_tiles_from_random_permutations(size, count, stage):
    """Rows are tiles that follow one another in one epoch: their keys differ by a word alone."""
    places = np.arange(size * count, dtype=np.uint64)
    mix_tiles(places, size * count, size, 7, 1, stage)
    rows = places.astype(np.int64).reshape(count, size) - np.arange(count)[:, None] * size
    assert (np.sort(rows) == np.arange(size)).all()
    p_values = all_p_values(rows)
    assert {name: p for name, p in p_values.items() if p < 0.001 / 10 / len(p_values)} == {}


@pytest.mark.parametrize(("block", "tile"), [(1, 4), (4, 4), (5, 2), (10, 1), (20, 3)])
def test_every_sample_may_come_anywhere(block, tile):
    """Over many epochs, and over many seeds, a position has every sample equally often."""
    count, n = 20_000, 100
    by_epoch = np.empty((2, count * n), np.int64)
    permute_local_run(np.arange(count * n), n, block, tile, 5, by_epoch[0], by_epoch[1])
    by_seed = [LocalPermutation(n, seed, 2, Locality(block, tile))([0, 1, 37, 50, 99]) for seed in range(count)]
    for rows in (by_epoch[1].reshape(count, n)[:, [0, 1, 37, 50, 99]], np.stack(by_seed)):
        for column in rows.T:
            seen = np.bincount(column, minlength=n)
            assert chi_square_p(((seen - count / n) ** 2).sum() / (count / n), n - 1) > 0.001 / 100


@pytest.mark.parametrize(("block", "tile"), [(64, 16), (128, 32), (256, 8)])
def test_batches_are_spread_over_two_tiles(block, tile):
    """Of the pairs in a batch within one shifted tile, 1 in 2 · tile come from one block, and no place is preferred."""
    n, size = 1 << 19, block * tile
    blocks = LocalPermutation(n, 3, 0, Locality(block, tile))(np.arange(n)) // block
    whole = blocks[size // 2 : size // 2 + size * ((n - size) // size)].reshape(-1, 256)
    equal = sum(int((np.unique(batch, return_counts=True)[1] ** 2).sum()) - 256 for batch in whole)
    share = equal / (whole.shape[0] * 256 * 255)
    assert share == pytest.approx(1 / (2 * tile), rel=0.05)


# Loaders

SHUFFLES = [Locality(1), Locality(3, 2), Locality(7, 4), Locality(100, 3), Locality(16, 1)]


@pytest.fixture(scope="module")
def store():
    with tempfile.TemporaryDirectory() as folder:
        columns, spans = {"tokens": "uint16"}, {"documents": "json"}
        with tokenfeed.Writer(Path(folder, "s"), columns=columns, spans=spans, shard_bytes=500, sync=False) as writer:
            for number in range(50):
                writer.append({"tokens": np.arange(number * 10, number * 10 + 10)}, documents={"number": number})
        yield tokenfeed.open(Path(folder, "s"))


@given(
    history=st.lists(
        st.builds(Leg, st.integers(1, 4), st.integers(1, 5), st.integers(0, 20), st.sampled_from([0, 2])),
        min_size=1,
        max_size=3,
    ),
    shuffle=st.sampled_from(SHUFFLES),
    seed=st.integers(0, 3),
)
@settings(max_examples=examples(60))
def test_any_history_is_exactly_once(store, history, shuffle, seed):
    view = store.windows(4)
    rows = run(history, lambda **options: Loader(view, shuffle=shuffle, seed=seed, **options))
    check_exactly_once(rows, len(view))
    assert rows == run([Leg(1, 1, len(rows))], lambda **options: Loader(view, shuffle=shuffle, seed=seed, **options))


def test_a_checkpoint_of_another_locality_is_refused(store):
    state = Loader(store.windows(12, extra=0), 1, shuffle=Locality(5, 4)).state_dict()
    with pytest.raises(PlanMismatchError, match=r"locality \[5, 4\], this plan has \[6, 4\]"):
        Loader(store.windows(12, extra=0), 1, shuffle=Locality(6, 4)).load_state_dict(state)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_runs_are_traced_and_documents_found_offline(store, tmp_path, is_mixed):
    view = store.windows(4)
    mixed = tokenfeed.mix({"a": (view, 2), "b": (store.windows(4), 1)})
    loader = Loader(mixed if is_mixed else view, 6, shuffle=Locality(8, 3), run=tmp_path / "run.jsonl")
    loader.amend(20, skip=tokenfeed.Skip(indices=view.samples_touching([7]), source="a" if is_mixed else None))
    batches = [next(loader) for _ in range(80)]
    loader.close()
    told = tokenfeed.Run(tmp_path / "run.jsonl")
    for step, batch in enumerate(batches):
        traced = told.trace(step=step)
        assert [row.sample for row in traced] == batch.samples.tolist()
        assert [row.content.tokens.tolist() for row in traced] == [batch[row].tokens.tolist() for row in range(6)]
    delivered = {}
    for step, batch in enumerate(batches):
        for row in range(6):
            for span in batch.spans["documents"][row]:
                source = batch.source_names[batch.sources[row]] or "a"
                delivered.setdefault((source, span.payload["number"]), set()).add((step, row))
    for document in (0, 7, 23, 49):
        found = told.find(document, source="a" if is_mixed else None, epochs=range(5))
        assert {(seen.step, seen.row) for seen in found if seen.step < 80} == delivered.get(("a", document), set())


def test_a_run_without_locality_is_told_from_one_with(store, tmp_path):
    runs = []
    for name, shuffle in (("one", True), ("two", Locality(8, 3))):
        loader = Loader(store.windows(4), 6, shuffle=shuffle, run=tmp_path / name)
        next(loader)
        loader.close()
        runs.append(tokenfeed.Run(tmp_path / name))
    _, difference = compare(*runs).why  # the first is the index of the row
    assert (difference.part, difference.first, difference.second) == ("locality", None, [8, 3])
