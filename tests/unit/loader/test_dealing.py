"""Loaders with token budgets and balanced batches: what a state means, what may change when, what is refused."""

import json
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

import tokenfeed
from dealing import Ranks, samples_of, write
from tokenfeed.errors import ArgumentError


@pytest.fixture
def documents(tmp_path):
    lengths = np.random.default_rng(3).lognormal(2.5, 0.8, 80).astype(int) + 1
    return write(tmp_path / "store", np.minimum(lengths, 60)).documents()


def test_the_state_is_that_of_the_beginning_until_a_step_is_whole(documents):
    ranks = Ranks(documents, 2, tokens=60, accumulate=3, balance=True)
    first = ranks.step()
    states = [batches[0].state["samples"] for batches in first]
    assert states == [0, 0, len(samples_of(first))]
    second = [ranks.batch(), ranks.batch()]
    again = Ranks(documents, 2, ranks.loaders[0].state_dict(), tokens=60, accumulate=3, balance=True)
    copied = pickle.loads(pickle.dumps(ranks.loaders[1]))
    repeated = [again.batch(), again.batch()]
    for batches, others in zip(second, repeated, strict=True):
        assert [batch.samples.tolist() for batch in batches] == [batch.samples.tolist() for batch in others]
    assert next(copied).samples.tolist() == second[0][1].samples.tolist()


@pytest.mark.parametrize("prefetch", [0, 4])
def test_closing_in_the_middle_of_a_step_loses_and_repeats_nothing(documents, prefetch):
    whole = Ranks(documents, 1, tokens=60, accumulate=3, prefetch=prefetch)
    expected = [whole.batch()[0].samples.tolist() for _ in range(9)]
    ranks = Ranks(documents, 1, tokens=60, accumulate=3, prefetch=prefetch)
    seen = []
    for _ in range(9):
        seen.append(ranks.batch()[0].samples.tolist())
        ranks.loaders[0].close()
    assert seen == expected


def test_nothing_changes_in_the_middle_of_a_step(documents):
    (loader,) = Ranks(documents, 1, tokens=60, accumulate=2).loaders
    next(loader)
    with pytest.raises(ArgumentError, match="amend in the middle of a training step, after batch 1 of 2"):
        loader.amend(mask=[1])
    with pytest.raises(ArgumentError, match="resize in the middle of a training step"):
        loader.resize(rank=0, world_size=1)
    next(loader)
    loader.amend(mask=[1])
    loader.resize(rank=0, world_size=1, tokens=120)
    next(loader)
    loader.load_state_dict(loader.state_dict())  # a checkpoint is always the beginning of a step
    loader.resize(rank=0, world_size=1, batch_size=4)
    assert len(next(loader)) == 4


def test_a_long_sample_is_named_with_the_way_out(documents):
    lengths = documents.lengths(np.arange(len(documents)))
    longest = int(np.argmax(lengths))
    budget = int(lengths.max()) - 2  # a document has one input fewer than items
    loader = tokenfeed.Loader(documents, tokens=budget, rank=0, world_size=1, prefetch=2)
    told = rf"\(document {longest}\) has {budget + 1} tokens; the budget of one rank is tokens={budget}"
    for _ in range(2):  # the next call tries again
        with pytest.raises(ArgumentError, match=told):
            for _ in range(100):
                next(loader)


def test_no_number_of_rows_is_promised(documents):
    loader = tokenfeed.Loader(documents, tokens=60, rank=0, world_size=1)
    with pytest.raises(ArgumentError, match="no fixed number of rows"):
        _ = loader.next_batch_size
    assert "tokens=60" in repr(loader)
    assert tokenfeed.Loader(documents, 4, balance=True, rank=0, world_size=1).next_batch_size == 4


def test_counting_steps_has_a_limit(documents, monkeypatch):
    monkeypatch.setattr("tokenfeed.loader.loader._MOST_COUNTED", 50)
    with pytest.raises(TypeError, match="80 samples take under a token budget"):
        len(tokenfeed.Loader(documents, tokens=60, rank=0, world_size=1, epochs=1))


def test_a_process_killed_in_the_middle_of_a_step(documents, tmp_path):
    """Another process finds the same bins, and what it had not finished comes again."""
    options = {"tokens": 60, "balance": tokenfeed.Cost(1, 0.01), "accumulate": 2}
    code = f"""
import json, os, signal
import tokenfeed
from tokenfeed import Cost
view = tokenfeed.open({str(tmp_path / "store")!r}).documents()
loader = tokenfeed.Loader(view, rank=1, world_size=3, **{options!r})
for _ in range(5):
    batch = next(loader)
    print(json.dumps([batch.samples.tolist(), batch.state]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == -signal.SIGKILL
    killed = [json.loads(line) for line in told.stdout.splitlines()]
    ranks = Ranks(documents, 3, **options)
    whole = [ranks.batch() for _ in range(8)]
    assert [samples for samples, _ in killed] == [batches[1].samples.tolist() for batches in whole[:5]]
    again = Ranks(documents, 2, killed[-1][1], tokens=90, accumulate=2)  # on fewer ranks, with the same budget in all
    assert samples_of(again.step()) == samples_of(whole[4:6])
    assert samples_of(again.step()) == samples_of(whole[6:8])
