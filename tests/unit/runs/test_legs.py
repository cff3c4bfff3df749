"""Run files of token budgets and balanced steps: any step, sample and document is found as it was delivered."""

import json
import shutil

import numpy as np
import pytest

import tokenfeed
from dealing import Ranks, write
from tokenfeed.errors import ArgumentError, StateError
from tokenfeed.runs.diff import compare


@pytest.fixture
def documents(tmp_path):
    return write(tmp_path / "store", np.random.default_rng(5).integers(1, 40, 70)).documents()


def leg(view, path, state, num_steps, world_size, **options):
    """Run some steps: (samples of every rank in each, state after them)."""
    return take(Ranks(view, world_size, state, run=path, **options), num_steps)


def take(ranks, num_steps):
    steps = []
    for _ in range(num_steps):
        step = ranks.step()
        by_rank = zip(*step, strict=True)
        steps.append([np.concatenate([batch.samples for batch in batches]).tolist() for batches in by_rank])
        state = step[-1][0].state
    return steps, state


def check(run, steps):
    """Everything that a run file tells of steps, against what was delivered."""
    for number, ranks in enumerate(steps):
        together = sorted(sample for samples in ranks for sample in samples)
        assert run.samples(number) == together
        for rank, samples in enumerate(ranks):
            assert run.samples(number, rank=rank) == samples
            traced = run.trace(number, rank=rank)
            assert [(row.sample, row.step, row.rank, row.row) for row in traced] == [
                (sample, number, rank, row) for row, sample in enumerate(samples)
            ]
            for row, sample in enumerate(samples):
                assert run.place(sample) == (number, rank, row)
    places = {row.sample: (row.step, row.rank, row.row) for number in range(len(steps)) for row in run.trace(number)}
    found = {seen.sample: (seen.step, seen.rank, seen.row) for number in range(70) for seen in run.find(number)}
    assert {sample: place for sample, place in places.items() if sample < 70} == {
        sample: found[sample] for sample in places if sample < 70
    }


@pytest.mark.parametrize(
    "options",
    [
        {"tokens": 60},
        {"tokens": 60, "balance": tokenfeed.Cost(1, 0.1), "accumulate": 2},
        {"batch_size": 3, "balance": True, "accumulate": 2},
    ],
)
def test_any_step_can_be_traced(documents, tmp_path, options):
    """After resumes on other ranks, from states that the file does not note; and after a return to an earlier one."""
    path = tmp_path / "run.jsonl"
    first, state = leg(documents, path, None, 4, 2, **options)
    second, later = leg(documents, path, state, 3, 3, **options)
    run = tokenfeed.Run(path)
    check(run, first + second)
    third, _ = leg(documents, path, state, 2, 1, **options)
    run = tokenfeed.Run(path)
    check(run, first + third)
    assert [start.step for start in run.starts] == [0, 4, 4]
    assert run.legs[1].stop is None
    assert len(documents.seen(run, step=3)) == sum(len(samples) for ranks in first[:3] for samples in ranks)
    assert later["samples"] > state["samples"]


def test_steps_are_found_from_the_nearest_note(documents, tmp_path, monkeypatch):
    """A long run is not walked through from its beginning."""
    path = tmp_path / "run.jsonl"
    ranks = Ranks(documents, 2, tokens=60, run=path)
    starts = []
    for _ in range(200):
        starts.append(ranks.loaders[0].state_dict()["samples"])
        ranks.step()
        ranks.loaders[0]._run.note()
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if json.loads(line).get("step", 0) % 50 == 0) + "\n")
    run = tokenfeed.Run(path)
    looked_at = []
    count = tokenfeed.plan.dealing.TokenCounts.__call__
    monkeypatch.setattr(
        "tokenfeed.plan.dealing.TokenCounts.__call__",
        lambda self, samples: looked_at.append(samples.min()) or count(self, samples),
    )
    assert run.samples(170) == list(range(starts[170], starts[171]))
    assert min(looked_at) == starts[150]
    assert run.place(starts[70]).step == 70
    assert sorted(looked_at)[0] == starts[50]


def test_data_that_moved(documents, tmp_path):
    path = tmp_path / "run.jsonl"
    steps, _ = leg(documents, path, None, 3, 2, tokens=60, balance=True)
    shutil.move(tmp_path / "store", tmp_path / "moved")
    run = tokenfeed.Run(path, stores=tmp_path / "moved")
    assert run.samples(2, rank=1) == steps[2][1]
    assert [row.sample for row in run.trace(2, rank=1)] == steps[2][1]
    assert run.find(int(documents.rows(np.array([0])).indices[0]))


def test_the_end_of_a_finite_run(documents, tmp_path):
    path = tmp_path / "run.jsonl"
    ranks = Ranks(documents, 3, tokens=60, epochs=1, run=path)
    count = min(len(list(loader)) for loader in ranks.loaders)
    run = tokenfeed.Run(path)
    assert sum(len(run.samples(step)) for step in range(count)) == len(documents)
    with pytest.raises(ArgumentError, match=f"no step {count}: the run ended after 70 samples"):
        run.samples(count)


@pytest.mark.parametrize(
    "options", [{"tokens": 60}, {"tokens": 40, "balance": True, "accumulate": 2}, {"batch_size": 3}]
)
def test_samples_that_are_left_out(documents, tmp_path, options):
    """Steps go on counting; what lies between belongs to none, and is not seen."""
    path, width = tmp_path / "run.jsonl", 2
    first, state = leg(documents, path, None, 3, width, **options)
    ranks = Ranks(documents, width, state, run=path, **options)
    begin = state["samples"]
    for loader in ranks.loaders:
        loader.skip_to(begin + 7)
        loader.skip_to(begin + 9)  # before anything was delivered
    second, state = take(ranks, 2)
    assert min(sample for samples in second[0] for sample in samples) == begin + 9
    for loader in ranks.loaders:
        loader.close()
    run = tokenfeed.Run(path)
    check(run, first + second)
    given = sorted(sample for each in first + second for samples in each for sample in samples)
    assert len(given) < 70  # all of the first epoch
    indices = tokenfeed.Plan.of(documents).locate(given)[2]
    tokens = sorted(documents[int(index)].tokens.tobytes() for index in indices)
    seen = documents.seen(run)
    assert sorted(seen[number].tokens.tobytes() for number in range(len(seen))) == tokens
    assert len(documents.unseen(run)) == 70 - len(given)
    again = Ranks(documents, 1, state, run=path, **options)
    third, _ = take(again, 1)
    again.loaders[0].close()
    check(tokenfeed.Run(path), first + second + third)
    with pytest.raises(ArgumentError, match="it can go forward alone"):
        again.loaders[0].skip_to(3)


@pytest.mark.parametrize(
    ("others", "differing"),
    [
        ({}, set()),
        ({"world_size": 1, "tokens": 120}, {"world size", "tokens"}),
        ({"balance": True}, {"balance"}),
        ({"tokens": 80}, {"tokens"}),
        ({"tokens": None, "batch_size": 3}, {"tokens", "batch size"}),
        ({"seed": 1}, {"seed"}),
    ],
)
def test_runs_are_compared(documents, tmp_path, others, differing):
    usual = {"world_size": 2, "tokens": 60}
    steps = []
    for name, options in (("first", usual), ("second", {**usual, **others})):
        steps.append(leg(documents, tmp_path / name, None, 12, **options)[0])
    comparison = compare(tokenfeed.Run(tmp_path / "first"), tokenfeed.Run(tmp_path / "second"))
    assert {each.part for each in (*comparison.why, *comparison.division)} - {"index"} == differing
    together = [[sorted(sample for samples in ranks for sample in samples) for ranks in each] for each in steps]
    if "seed" not in others:
        differing = [number for number in range(12) if together[0][number] != together[1][number]]
        assert comparison.step == (differing[0] if differing else None)


def test_notes_that_cannot_be_are_refused(documents, tmp_path):
    path = tmp_path / "run.jsonl"
    leg(documents, path, None, 1, 1, tokens=60)
    good = path.read_text()
    for wrong in ('{"reached": 3}', '{"reached": 3, "step": 70}', '{"reached": 9, "step": -1}'):
        path.write_text(good + wrong + "\n")
        with pytest.raises(StateError, match=r"line [34]"):
            tokenfeed.Run(path)
