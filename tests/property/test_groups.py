"""Windows in groups: shuffled by groups, and a change of length in mid-epoch that loses and repeats nothing."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenfeed
from oracle import Leg, check_exactly_once, run
from tiers import examples
from tokenfeed.errors import ArgumentError, PlanMismatchError
from tokenfeed.loader.loader import Loader

GROUP = 24
LENGTHS = [1, 2, 3, 4, 6, 8, 12, 24]


@pytest.fixture(scope="module")
def store():
    with tempfile.TemporaryDirectory() as folder:
        with tokenfeed.Writer(Path(folder, "s"), columns={"tokens": "uint16"}, shard_bytes=150, sync=False) as writer:
            writer.append({"tokens": np.arange(GROUP * 20 + 7)})
        yield tokenfeed.open(Path(folder, "s"))


@given(
    first=st.sampled_from(LENGTHS),
    second=st.sampled_from(LENGTHS),
    groups=st.integers(0, 50),
    seed=st.integers(0, 3),
    world_size=st.integers(1, 3),
)
@settings(max_examples=examples(150))
def test_a_change_of_length_in_mid_epoch(store, first, second, groups, seed, world_size):
    """After whole groups of one length, windows of another: every item of the epoch exactly once."""
    per_group = GROUP // first
    view = store.windows(first, group=GROUP, extra=0)
    one = [
        Loader(view, per_group, seed=seed, rank=rank, world_size=world_size, prefetch=0) for rank in range(world_size)
    ]
    seen = []
    state = one[0].state_dict()
    for _ in range(groups // world_size):
        batches = [next(loader) for loader in one]
        rows = sorted(
            (k, row.tolist()) for batch in batches for k, row in zip(batch.samples, batch.tokens, strict=True)
        )
        seen += [item for _, row in rows for item in row]
        state = batches[0].state
    two = Loader(
        tokenfeed.Plan.of(view, seed=seed).amend(state["samples"], length=second), 1, rank=0, world_size=1, prefetch=0
    )
    two.load_state_dict(state)
    num_items = 20 * GROUP
    while len(seen) < 3 * num_items:
        seen += next(two).tokens.reshape(-1).tolist()
    for epoch in range(3):
        assert sorted(seen[epoch * num_items : (epoch + 1) * num_items]) == list(range(num_items))


def test_groups_stay_together_and_are_shuffled(store):
    loader = Loader(store.windows(6, group=GROUP), 4)
    groups = [next(loader).indices for _ in range(20)]
    assert all((indices // 4 == indices[0] // 4).all() and (np.diff(indices) == 1).all() for indices in groups)
    order = [int(indices[0]) // 4 for indices in groups]
    assert sorted(order) == list(range(20))
    assert order != sorted(order)
    plan = loader.plan
    assert [plan.find(int(index), epochs=[0]).tolist() for index in groups[3]] == [[12], [13], [14], [15]]
    loader.close()


@given(
    history=st.lists(
        st.builds(Leg, st.integers(1, 4), st.integers(1, 5), st.integers(0, 6), st.sampled_from([0, 2])),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=examples(30))
def test_exactly_once(store, history):
    view = store.windows(4, group=GROUP)
    rows = run(history, lambda **options: Loader(view, **options))
    check_exactly_once(rows, len(view))
    assert rows == run([Leg(1, 1, len(rows))], lambda **options: Loader(view, **options))


def test_a_mixture_of_groups(store):
    mixed = tokenfeed.mix({"a": (store.windows(4, group=8), 1), "b": (store.windows(4, group=8), 1)})
    loader = Loader(mixed, 2)
    batches = [next(loader) for _ in range(len(mixed.joined) // 2)]
    sources, indices = (np.concatenate([getattr(each, name) for each in batches]) for name in ("sources", "indices"))
    for source in range(2):
        own = indices[sources == source]
        assert sorted(own.tolist()) == list(range(len(store.windows(4, group=8))))
        assert (own[::2] + 1 == own[1::2]).all()
    loader.close()


def test_what_is_refused(store):
    with pytest.raises(ArgumentError, match="no whole number of windows"):
        store.windows(5, group=GROUP)
    loader = Loader(store.windows(6, group=GROUP), 3)
    next(loader)
    state = loader.state_dict()
    with pytest.raises(ArgumentError, match=r"at sample 3 a group of windows has begun.*give at=4"):
        loader.amend(length=24)
    loader.amend(4, length=24)
    with pytest.raises(ArgumentError, match="in the middle of a step: steps begin at 3 and 6"):
        next(loader)
    for length in (0, 7, 48, "12"):
        with pytest.raises(ArgumentError, match="which another length must divide"):
            Loader(store.windows(6, group=GROUP), 3).amend(length=length)
    for view in (store.windows(6, group=12), store.windows(6), store.windows(24, group=GROUP)):
        with pytest.raises(PlanMismatchError, match="samples are windows"):
            Loader(view, 3).load_state_dict(state)
    loader.close()
