"""`loader.amend` and `loader.resize` on loaders that are running, with batches read ahead."""

import json
import pickle

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, StateError


def write(path, count, first):
    with tokenfeed.Writer(
        path, columns={"tokens": "uint32"}, spans={"documents": "json"}, mode="append", sync=False
    ) as writer:
        for number in range(first, first + count):
            writer.append({"tokens": np.arange(4 * number, 4 * number + 4)}, documents={"id": number})
    return tokenfeed.open(path)


class Ranks:
    """All ranks of a run, in one process."""

    def __init__(self, view, world_size, batch_size, **options):
        self.loaders = [
            tokenfeed.Loader(view, batch_size, rank=rank, world_size=world_size, prefetch=5, **options)
            for rank in range(world_size)
        ]
        self.rows = []

    def take(self, steps):
        for _ in range(steps):
            batches = [next(loader) for loader in self.loaders]
            assert len({json.dumps(batch.state) for batch in batches}) == 1
            places = [
                (int(k), row) for each in batches for k, row in zip(each.samples, each.tokens.tolist(), strict=True)
            ]
            self.rows += [row for _, row in sorted(places)]

    def amend(self, **change):
        for loader in self.loaders:
            loader.amend(**change)

    def close(self):
        for loader in self.loaders:
            loader.close()


def test_a_running_run_loses_and_repeats_nothing(tmp_path):
    """Growth, a new source and other ranks on the way; every item of the first epoch exactly once."""
    view = write(tmp_path / "web", 60, 0).windows(4, extra=0)
    ranks = Ranks(view, 2, 3, run=tmp_path / "run.jsonl", seed=3)
    ranks.take(3)
    ranks.amend(grow=write(tmp_path / "more", 30, 60))
    ranks.take(2)
    ranks.amend(grow={"": write(tmp_path / "last", 8, 90).windows(4, extra=0)})
    ranks.take(2)
    code = write(tmp_path / "code", 50, 10_000).windows(4, extra=0)
    ranks.amend(sources={"code": code}, weights={"web": 1, "code": 1})
    ranks.take(2)
    ranks.loaders[0].resize(rank=0, world_size=1, same_global_batch=True)
    ranks.loaders.pop().close()
    assert ranks.loaders[0].rule.size == 6
    ranks.take(2)
    ranks.amend(weights={"web": 1, "code": 0})
    samples = len(ranks.rows)
    while samples < 400:
        ranks.take(1)
        samples += 6
    items = [item for row in ranks.rows for item in row if item < 40_000]
    assert sorted(items[: 98 * 4]) == list(range(98 * 4))
    ranks.close()
    told = tokenfeed.Run(tmp_path / "run.jsonl")
    assert [start.world_size for start in told.starts] == [2, 2, 2, 2, 1, 1]
    replay = Ranks(told.plan(), 3, 2)
    replay.take(len(ranks.rows) // 6)
    assert replay.rows == ranks.rows
    replay.close()


def test_a_grown_run_is_found_where_it_was_moved(tmp_path):
    """Rows of every store of a source, in their order."""
    view, path = write(tmp_path / "web", 20, 0).windows(4, extra=0), tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(view, 2, rank=0, world_size=1, run=path)
    next(loader)
    loader.amend(grow=write(tmp_path / "more", 20, 20))
    state = loader.state_dict()
    rows = [next(loader).tokens.tolist() for _ in range(20)]
    loader.close()
    for name in ("web", "more"):
        (tmp_path / name).rename(tmp_path / f"{name}-moved")
    places = [tmp_path / "web-moved", tmp_path / "more-moved"]
    run = tokenfeed.Run(path, stores=places)
    again = tokenfeed.Loader(run.plan(), 2, rank=0, world_size=1)
    again.load_state_dict(state)
    assert [next(again).tokens.tolist() for _ in range(20)] == rows
    traced = [row for step in range(20) for row in run.trace(step)]
    assert {row.documents[0].payload["id"] for row in traced} == set(range(40))
    with pytest.raises(ArgumentError, match="rows of 2 stores, end to end"):
        tokenfeed.Run(path, stores=places[:1]).plan()


def test_what_was_read_ahead_is_dropped_beyond_the_point_only(tmp_path):
    view = write(tmp_path / "web", 60, 0).windows(4, extra=0)
    plain, amended = Ranks(view, 1, 2), Ranks(view, 1, 2)
    for each in (plain, amended):
        each.take(3)
    amended.amend(at=14, grow=write(tmp_path / "more", 60, 1000))
    for each in (plain, amended):
        each.take(8)
        each.close()
    assert amended.rows[:14] == plain.rows[:14]
    assert any(row[0] >= 4000 for row in amended.rows[14:])
    loader = amended.loaders[0]
    with pytest.raises(ArgumentError, match=r"at is 21, and 22 samples were delivered.*Give at >= 22, or go back"):
        loader.amend(21, weights={"a": 1})
    state = loader.state_dict()
    again = pickle.loads(pickle.dumps(loader))
    assert again.state_dict() == state
    assert next(again).tokens.tolist() == next(loader).tokens.tolist()


def test_ranks_that_amend_differently_are_seen(tmp_path):
    view = write(tmp_path / "web", 60, 0).windows(4, extra=0)
    loaders = [tokenfeed.Loader(view, 2, rank=rank, world_size=2) for rank in range(2)]
    for loader in loaders:
        next(loader)
    loaders[1].amend(mask=[7])
    states = [next(loader).state for loader in loaders]
    with pytest.raises(StateError, match=r"ranks 0 and 1 differ.*amended their runs differently"):
        loaders[0].load_state_dict(states)
    for state in states:  # each is whole
        for loader in loaders:
            loader.load_state_dict(state)
        assert [loader.state_dict() for loader in loaders] == [state, state]
    for loader in loaders:
        loader.close()


def test_training_steps_are_kept(tmp_path):
    """Four batches are a step; a resume goes on counting, and a new file is told."""
    view = write(tmp_path / "web", 60, 0).windows(4, extra=0)
    path = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(view, 2, rank=0, world_size=1, run=path, accumulate=4)
    batches = [next(loader) for _ in range(8)]
    loader.close()
    more = tokenfeed.Loader(view, 1, rank=0, world_size=1, run=path, accumulate=3)
    more.load_state_dict(batches[-1].state)
    batches += [next(more) for _ in range(6)]
    more.close()
    run = tokenfeed.Run(path)
    assert [start.step for start in run.starts] == [0, 2]
    assert [run.samples(step) for step in range(4)] == [[*range(8)], [*range(8, 16)], [16, 17, 18], [19, 20, 21]]
    assert run.place(19) == (3, 0, 0)
    assert [row.planned for row in run.trace(3)] == [False] * 3
    assert all(row.planned for row in run.trace(4))
    other = tokenfeed.Loader(view, 2, rank=0, world_size=1, run=tmp_path / "other.jsonl")
    other.load_state_dict(batches[-1].state, step=4)
    next(other)
    other.close()
    assert tokenfeed.Run(tmp_path / "other.jsonl").starts[0].step == 4


def test_a_run_file_cut_off_in_the_middle_of_an_amendment(tmp_path):
    view = write(tmp_path / "web", 60, 0).windows(4, extra=0)
    path = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(view, 2, rank=0, world_size=1, run=path)
    next(loader)
    loader.amend(mask=[7])
    state = next(loader).state
    loader.close()
    text = path.read_text()
    path.write_text(text[: text.index('"amend"') + 20])
    assert tokenfeed.Run(path).plan().amendments == ()
    again = tokenfeed.Loader(loader.plan, 2, rank=0, world_size=1, run=path)
    again.load_state_dict(state)
    next(again)
    again.close()
    assert tokenfeed.Run(path).plan() == loader.plan


def test_growth_that_is_none(tmp_path):
    view = write(tmp_path / "web", 20, 0).windows(4, extra=0)
    loader = tokenfeed.Loader(view, 2, rank=0, world_size=1)
    more = write(tmp_path / "more", 5, 20)
    with pytest.raises(ArgumentError, match=r"has shard .* already, and its samples would come twice"):
        loader.amend(grow=write(tmp_path / "web", 5, 20))
    with pytest.raises(ArgumentError, match="cannot be read together"):
        loader.amend(grow=more.windows(2, extra=0))
    with pytest.raises(ArgumentError, match=r"the data grows by rows of a store, .* not by 'more'"):
        loader.amend(grow="more")
    loader.amend(20, grow=more)
    with pytest.raises(ArgumentError, match="grows at sample 20 already"):
        loader.amend(10, grow=write(tmp_path / "last", 5, 40))
    loader.close()


def test_a_steered_run_is_replayed_without_the_model_on_other_ranks(tmp_path):
    """Weights that follow from what was delivered: the run file is enough to deliver it again."""
    sources = {name: write(tmp_path / name, 100, first).windows(4) for name, first in (("web", 0), ("code", 1000))}
    mixture = tokenfeed.mix({name: (view, 1) for name, view in sources.items()})
    steered = Ranks(mixture, 1, 6, run=tmp_path / "run.jsonl")
    for step in range(5):
        steered.take(6)
        share = 0.2 + 0.6 * (sum(map(sum, steered.rows)) % 100) / 100
        if step < 4:
            steered.loaders[0].amend(weights={"web": share, "code": 1 - share})
    steered.loaders[0].close()
    run = tokenfeed.Run(tmp_path / "run.jsonl")
    assert len(run.plan().amendments) == 4
    replayed = Ranks(run.plan(), 3, 2)
    replayed.take(30)
    assert replayed.rows == steered.rows
    assert [entry.samples for entry in run.plan().ledger(180)] != [90, 90]
