"""`view.seen(run)` and `view.unseen(run)`: over resumes, resizes, returns, several epochs and damaged run files."""

import json

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, PlanMismatchError, StateError, TokenfeedError


def write(path, count, *, first=0, mode="x"):
    options = {"columns": {"tokens": "uint16"}, "spans": {"documents": None}, "sync": False}
    with tokenfeed.Writer(path, mode=mode, **options) as writer:
        for number in range(first, first + count):
            writer.append({"tokens": [number, number]})
    return tokenfeed.open(path).documents()


def go_on(view, path, state, steps, world_size, batch_size, **amendment):
    """Run some steps on all ranks; the documents that were delivered, and the state after the last."""
    loaders = [
        tokenfeed.Loader(view, batch_size, rank=rank, world_size=world_size, run=path) for rank in range(world_size)
    ]
    for loader in loaders if state is not None else ():
        loader.load_state_dict(state)
    for loader in loaders if amendment else ():
        loader.amend(**amendment)
    taken = []
    for _ in range(steps):
        batches = [next(loader) for loader in loaders]
        taken += [number for batch in batches for number in numbers_in(batch)]
        state = batches[0].state
    loaders[0].close()
    return taken, state


def numbers_in(batch):
    return batch.inputs[:, 0].tolist()


def everything(view):
    return sorted(numbers_in(view.read(np.arange(len(view))))) if len(view) else []


def test_a_run_on_changing_ranks(tmp_path):
    view, path = write(tmp_path / "store", 40), tmp_path / "run.jsonl"
    first, state = go_on(view, path, None, 3, 2, 2)
    second, state = go_on(view, path, state, 2, 3, 3)
    run = tokenfeed.Run(path)
    assert everything(view.seen(run)) == sorted(first + second)
    assert everything(view.unseen(run)) == sorted(set(range(40)) - {*first, *second})
    assert everything(view.seen(run, step=3)) == sorted(first)
    assert everything(view.unseen(run, step=0)) == list(range(40))
    third, _ = go_on(view, path, state, 3, 1, 10)  # into the second epoch
    assert len({*first, *second, *third}) == 40
    run = tokenfeed.Run(path)
    assert len(view.unseen(run)) == 0
    assert len(view.seen(run)) == 40
    with pytest.raises(ArgumentError, match="nothing to load"):
        tokenfeed.Loader(view.unseen(run), 2)


def test_a_run_that_returned(tmp_path):
    """What counts is what was finally run, as in a trace."""
    view, path = write(tmp_path / "store", 40), tmp_path / "run.jsonl"
    first, state = go_on(view, path, None, 3, 2, 2)
    go_on(view, path, state, 4, 1, 5)
    second, _ = go_on(view, path, state, 2, 1, 5, mask=[3])
    run = tokenfeed.Run(path)
    assert everything(view.seen(run)) == sorted(first + second)
    assert everything(view.unseen(run)) == sorted(set(range(40)) - {*first, *second})
    again = tokenfeed.open(tmp_path / "store").view(type(view.spec).from_json(view.unseen(run).spec.to_json()))
    assert everything(again) == everything(view.unseen(run))


def test_a_source_of_a_mixture(tmp_path):
    web, code = write(tmp_path / "web", 40), write(tmp_path / "code", 10, first=100)
    mixture, path = tokenfeed.mix({"web": (web, 2.0), "code": (code, 1.0)}), tmp_path / "run.jsonl"
    taken, _ = go_on(mixture, path, None, 3, 2, 3)
    run = tokenfeed.Run(path)
    assert everything(web.unseen(run)) == sorted(set(range(40)) - {*taken})
    assert everything(code.seen(run)) == sorted(number for number in taken if number >= 100)
    twice = tokenfeed.mix({"a": (web, 1.0), "b": (web, 1.0)})
    go_on(twice, tmp_path / "twice.jsonl", None, 2, 1, 4)
    with pytest.raises(ArgumentError, match=r"several sources .* a, b\. Say which: source="):
        web.unseen(tokenfeed.Run(tmp_path / "twice.jsonl"))
    assert len(web.seen(tokenfeed.Run(tmp_path / "twice.jsonl"), source="b")) == 4


def test_a_store_that_grew_since(tmp_path):
    view, path = write(tmp_path / "store", 20), tmp_path / "run.jsonl"
    taken, state = go_on(view, path, None, 3, 1, 4)
    later = write(tmp_path / "store", 5, first=20, mode="append")
    run = tokenfeed.Run(path)
    assert everything(later.unseen(run)) == sorted(set(range(25)) - {*taken})
    assert everything(later.seen(run)) == sorted(taken)
    with pytest.raises(PlanMismatchError):
        tokenfeed.Loader(later, 4).load_state_dict(state)
    tokenfeed.Loader(tokenfeed.open(tmp_path / "store", version=1).documents(), 4).load_state_dict(state)
    assert [row.documents[0].number for row in run.trace(0)] == taken[:4]  # the run finds the version it was over
    rows = [number for batch in tokenfeed.Loader(later.unseen(run), 4, epochs=1) for number in numbers_in(batch)]
    assert sorted(taken + rows) == list(range(25))


def test_sets_of_another_store(tmp_path):
    view, other = write(tmp_path / "store", 20), write(tmp_path / "other", 20, first=50)
    go_on(view, tmp_path / "run.jsonl", None, 3, 1, 4)
    run = tokenfeed.Run(tmp_path / "run.jsonl")
    with pytest.raises(
        PlanMismatchError, match=rf"whose identity is {other.identity}: the run was over .*{view.identity}"
    ):
        other.unseen(run)
    with pytest.raises(
        PlanMismatchError, match=r"the run was over documents\('documents'\), and this view is windows\(3\)"
    ):
        tokenfeed.open(tmp_path / "store").windows(3).unseen(run)
    with pytest.raises(ArgumentError, match="without a name; leave it out"):
        view.unseen(run, source="web")
    for wrong in (tmp_path / "run.jsonl", None, {"samples": 3}):
        with pytest.raises(ArgumentError, match=r"expected a run: view\.unseen\(tokenfeed\.Run"):
            view.unseen(wrong)


def test_steps_that_have_not_run_are_not_seen(tmp_path):
    view = write(tmp_path / "store", 20)
    go_on(view, tmp_path / "run.jsonl", None, 3, 1, 4)
    run = tokenfeed.Run(tmp_path / "run.jsonl")
    assert len(view.seen(run, step=3)) == 12
    with pytest.raises(ArgumentError, match=r"step 4 begins after 16 samples, and the run is .* delivered 12"):
        view.seen(run, step=4)
    with pytest.raises(ArgumentError, match="no step -1"):
        view.seen(run, step=-1)


def test_a_run_file_that_is_cut_off(tmp_path):
    """Wherever it is cut: what is there of it counts, or an error says that nothing does."""
    view, path = write(tmp_path / "store", 20), tmp_path / "run.jsonl"
    taken, state = go_on(view, path, None, 2, 1, 4)
    taken += go_on(view, path, state, 1, 1, 4)[0]
    data = path.read_bytes()
    ends = {0, len(data), *(at + shift for at in range(len(data)) if data[at] == 10 for shift in (-2, 0, 1, 2))}
    for end in sorted({*ends, *range(0, len(data), 97)}):
        path.write_bytes(data[:end])
        try:
            seen = view.seen(tokenfeed.Run(path))
        except TokenfeedError as error:
            assert isinstance(error, StateError)
            assert "run.jsonl" in str(error)
        else:
            assert everything(seen) == sorted(taken[: len(seen)])
    path.write_bytes(data + b'{"reached": 1')
    assert everything(view.seen(tokenfeed.Run(path))) == sorted(taken)


@pytest.mark.parametrize(
    "change",
    [
        {"left_out": [[0]]},
        {"left_out": [[5, 2]]},
        {"left_out": [[0, 99]]},
        {"left_out": 3},
        {"samples": -1},
        {"samples": "9"},
        {"seen": 1},
        {"plan": {}},
        {"base": None},
        {"more": 1},
    ],
)
def test_json_that_describes_no_set(tmp_path, change):
    view = write(tmp_path / "store", 9)
    go_on(view, tmp_path / "run.jsonl", None, 1, 1, 4)
    spec = view.unseen(tokenfeed.Run(tmp_path / "run.jsonl")).spec
    assert spec == type(spec).from_json(json.loads(json.dumps(spec.to_json())))
    with pytest.raises(StateError):
        type(spec).from_json({**spec.to_json(), **change})
