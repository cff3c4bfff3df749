"""Loaders under random histories: exactly once, and equal to the uninterrupted run, byte for byte."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenfeed
from oracle import Leg, check_exactly_once, run
from tiers import examples
from tokenfeed.loader.loader import Loader

LEGS = st.lists(
    st.builds(Leg, st.integers(1, 6), st.integers(1, 7), st.integers(0, 6), st.sampled_from([0, 1, 2, 5])),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def stores():
    """Stores of 1 to 60 windows of 4 items, each window unlike any other."""
    with tempfile.TemporaryDirectory() as folder:
        opened = {}
        for num_samples in (1, 2, 3, 7, 16, 33, 60):
            path = Path(folder, str(num_samples))
            with tokenfeed.Writer(
                path, columns={"tokens": "uint16"}, spans={"documents": "json"}, shard_bytes=100, sync=False
            ) as writer:
                for document in np.array_split(np.arange(num_samples * 4), max(1, num_samples // 3)):
                    writer.append({"tokens": document}, documents=int(document[0]))
            opened[num_samples] = tokenfeed.open(path).windows(4, extra=0, spans=["documents"])
            assert len(opened[num_samples]) == num_samples
        yield opened


@given(num_samples=st.sampled_from([1, 2, 3, 7, 16, 33, 60]), history=LEGS, seed=st.integers(0, 5))
@settings(max_examples=examples(300))
def test_any_history_delivers_every_sample_once_per_epoch(stores, num_samples, history, seed):
    view = stores[num_samples]
    rows = run(history, lambda **options: Loader(view, seed=seed, **options))
    check_exactly_once(rows, num_samples)
    uninterrupted = run([Leg(1, 1, len(rows))], lambda **options: Loader(view, seed=seed, **options))
    assert rows == uninterrupted


@pytest.mark.parametrize("prefetch", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("threads", [1, 3])
def test_resume_at_every_step(stores, prefetch, threads):
    view = stores[33]

    def make(**options):
        return Loader(view, threads=threads, **options)

    whole = run([Leg(2, 3, 15)], make)
    for step in range(16):
        resumed = run([Leg(2, 3, step, prefetch), Leg(2, 3, 15 - step, prefetch)], make)
        assert resumed == whole
        moved = run([Leg(2, 3, step, prefetch), Leg(3, 5, 2, prefetch)], make)
        check_exactly_once(moved, 33)
        assert moved[: 6 * step] == whole[: 6 * step]


@given(
    num_samples=st.sampled_from([1, 2, 7, 33, 60]),
    world_size=st.integers(1, 9),
    batch_size=st.integers(1, 9),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    prefetch=st.sampled_from([0, 4]),
)
def test_finite_iteration(stores, num_samples, world_size, batch_size, epochs, shuffle, prefetch):
    view = stores[num_samples]
    loaders = [
        Loader(view, batch_size, rank=rank, world_size=world_size, epochs=epochs, shuffle=shuffle, prefetch=prefetch)
        for rank in range(world_size)
    ]
    for _ in range(2):  # a second loop begins again
        ranks = [list(loader) for loader in loaders]
        assert {len(batches) for batches in ranks} == {-(-num_samples * epochs // (world_size * batch_size))}
        seen = np.concatenate([batch.indices for batches in ranks for batch in batches])
        np.testing.assert_array_equal(np.bincount(seen, minlength=num_samples), epochs)
        for batches in ranks:
            for batch in batches:
                assert batch.inputs.shape == (len(batch), 4)
    if not shuffle and world_size == 1:
        assert np.concatenate([batch.samples for batch in ranks[0]]).tolist() == list(range(num_samples * epochs))
