"""Token budgets and balanced steps: the same samples in every step for any number of ranks, each exactly once."""

import tempfile
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenfeed
from dealing import Ranks, cut, samples_of, write
from oracle import Leg, check_exactly_once, run
from tiers import examples, pick

BUDGET = 192
"""Tokens of all ranks in a training step."""
SPLITS = [(world_size, parts) for world_size in (1, 2, 3, 4, 6, 8, 16, 24, 32, 64) for parts in (1, 2, 3)]
SPLITS = [(world_size, parts) for world_size, parts in SPLITS if BUDGET % (world_size * parts) == 0]
BALANCES = st.sampled_from([None, True, tokenfeed.Cost(1, 0.1)])


@pytest.fixture(scope="module")
def store():
    """61 documents of 0 to 400 items: one is longer than the whole budget, most are shorter than that of one rank."""
    lengths = np.random.default_rng(0).lognormal(2.5, 1.0, 61).astype(int)
    lengths[[3, 20, 21, 47]] = 400, 0, 0, 150
    with tempfile.TemporaryDirectory() as folder:
        yield write(f"{folder}/store", lengths.tolist())


def counts_of(view, num_samples):
    """Tokens of the first samples of a run."""
    indices = tokenfeed.Plan.of(view).locate(np.arange(num_samples))[2]
    return np.maximum(1, view.lengths(indices) - 1).tolist()


@pytest.fixture(scope="module")
def short():
    with tempfile.TemporaryDirectory() as folder:
        yield write(f"{folder}/store", list(range(1, 38)))


@given(
    history=st.lists(
        st.tuples(st.sampled_from(SPLITS), st.integers(0, 4), st.integers(0, 2), BALANCES, st.sampled_from([0, 3])),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=examples(150))
def test_steps_have_the_same_samples_for_any_number_of_ranks(store, history):
    """Legs of some steps each, with a crash after some batches of the next: what was not finished comes again."""
    view = store.documents()
    expected = cut(counts_of(view, 400), BUDGET)
    state, done = None, 0
    for (world_size, parts), num_steps, num_batches, balance, prefetch in history:
        budget = BUDGET // (world_size * parts)
        options = {"tokens": budget, "accumulate": parts, "balance": balance, "too_long": "own", "prefetch": prefetch}
        ranks = Ranks(view, world_size, state, **options)
        for _ in range(num_steps):
            step = ranks.step()
            assert len(step) == parts
            assert samples_of(step) == expected[done]
            for batches in step:
                for batch in batches:
                    assert batch.samples.tolist() == sorted(batch.samples)
                    assert len(batch) == 1 or batch.lengths.max(initial=0) - 1 <= budget
            done += 1
            state = step[-1][0].state
            assert state["samples"] == expected[done - 1][-1] + 1
        for _ in range(min(num_batches, parts - 1)):
            (first, *_) = ranks.batch()
            assert first.state["samples"] == (0 if state is None else state["samples"])
        for loader in ranks.loaders:
            loader.close()


@given(
    history=st.lists(
        st.builds(Leg, st.sampled_from([1, 2, 4, 8]), st.just(0), st.integers(0, 5), st.sampled_from([0, 2])),
        min_size=1,
        max_size=4,
    ),
    balance=BALANCES,
)
@settings(max_examples=examples(60))
def test_any_history_delivers_every_sample_once_per_epoch(short, history, balance):
    """The oracle that all loaders share; budgets of one rank, so that the steps of legs differ."""
    view = short.documents()

    def make(batch_size, **options):
        return tokenfeed.Loader(view, tokens=40, balance=balance, **options)

    check_exactly_once(run(history, make), len(view))


@given(world_size=st.integers(1, 5), batch_size=st.integers(1, 4), parts=st.integers(1, 3), balance=BALANCES)
def test_balanced_batches_keep_their_rows(store, world_size, batch_size, parts, balance):
    balance = balance or True
    ranks = Ranks(store.documents(), world_size, batch_size=batch_size, accumulate=parts, balance=balance)
    wide = world_size * batch_size * parts
    for number in range(3):
        step = ranks.step()
        assert samples_of(step) == list(range(number * wide, (number + 1) * wide))
        assert {len(batch) for batches in step for batch in batches} == {batch_size}
    loads = np.array([[np.maximum(1, batch.lengths - 1).sum() for batch in batches] for batches in step])
    in_turn = np.array(counts_of(store.documents(), 3 * wide))[-wide:].reshape(-1, world_size * parts).sum(axis=0)
    assert balance is not True or loads.max() <= in_turn.max()


@given(
    world_size=st.integers(1, 6),
    tokens=st.integers(1, 120),
    parts=st.integers(1, 3),
    epochs=st.integers(1, 2),
    balance=BALANCES,
    prefetch=st.sampled_from([0, 4]),
)
@settings(max_examples=examples(60))
def test_finite_iteration(store, world_size, tokens, parts, epochs, balance, prefetch):
    view = store.documents()
    options = {"accumulate": parts, "balance": balance, "too_long": "own", "prefetch": prefetch}
    ranks = Ranks(view, world_size, tokens=tokens, epochs=epochs, **options)
    for _ in range(2):  # a second loop begins again
        delivered = [list(loader) for loader in ranks.loaders]
        assert {len(batches) for batches in delivered} == {len(ranks.loaders[0])}
        seen = np.concatenate([batch.indices for batches in delivered for batch in batches])
        np.testing.assert_array_equal(np.bincount(seen, minlength=len(view)), epochs)
    if epochs == 1:
        assert len(ranks.loaders[0]) == parts * len(cut(counts_of(view, len(view)), tokens * world_size * parts))
        assert ranks.loaders[0].steps_per_epoch == len(ranks.loaders[0])


def views(store, path):
    """Every kind of view, plan and mixture, of rows whose tokens are told by `lengths`."""
    store.pack(24)
    other = write(path / "other", [5, 9, 2, 30, 8, 1, 14] * 3)
    documents, windows = store.documents(), store.windows(16)
    grown = write(path / "grown", [7] * 9)
    plan = tokenfeed.Plan.of(grown.documents())
    seen = tokenfeed.Loader(documents, 20, rank=0, world_size=1, run=path / "run.jsonl")
    next(seen)
    seen.close()
    yield "documents", documents
    yield "packed", store.packed(24)
    yield "windows", windows
    yield "subset", documents.unseen(tokenfeed.Run(path / "run.jsonl"))
    yield "mixture", tokenfeed.mix({"web": (documents, 0.6), "code": (other.documents(), 0.4)})
    yield "grown", plan.amend(4, grow=write(path / "more", range(3, 15)).documents())


def test_budgets_hold_for_every_kind_of_view(store, tmp_path):
    for name, view in views(store, tmp_path):
        for balance in (None, True):
            ranks = Ranks(view, 3, tokens=64, balance=balance, too_long="own")
            steps = [ranks.step() for _ in range(pick(8, 30))]
            tokens = {}
            for step in steps:
                for batch in step[0]:
                    counts = np.maximum(1, batch.lengths - 1).tolist()
                    tokens |= dict(zip(batch.samples.tolist(), counts, strict=True))
            assert sorted(tokens) == list(range(len(tokens))), name
            for step, following in pairwise(steps):
                samples, (after, *_) = samples_of(step), samples_of(following)
                total = sum(tokens[sample] for sample in samples)
                assert total >= sum(batch.flat.inputs.size for batch in step[0]), name
                assert total <= 192 or len(samples) == 1, name
                assert total + tokens[after] > 192, name


def test_a_resized_run_keeps_its_steps(store):
    view = store.documents()
    expected = cut(counts_of(view, 200), BUDGET)
    ranks = Ranks(view, 2, tokens=96, too_long="own", balance=True)
    assert [samples_of(ranks.step()) for _ in range(3)] == expected[:3]
    ranks.loaders.append(tokenfeed.Loader(view, tokens=96, too_long="own", balance=True, rank=0, world_size=1))
    ranks.loaders[-1].load_state_dict(ranks.loaders[0].state_dict())
    ranks.loaders[-1].resize(rank=0, world_size=2)
    for rank, loader in enumerate(ranks.loaders):
        loader.resize(rank=rank, world_size=3, same_global_batch=True)
    assert [samples_of(ranks.step()) for _ in range(3)] == expected[3:6]
    with pytest.raises(tokenfeed.errors.ArgumentError, match="192 tokens of all ranks cannot be divided among 5"):
        ranks.loaders[0].resize(rank=0, world_size=5, same_global_batch=True)
