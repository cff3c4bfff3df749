"""What the page shows of a run is what its file and its plan say, of every source of its mixture."""

import numpy as np
import pytest

import tokenfeed
from tokenfeed.errors import ArgumentError, MissingError
from tokenfeed.runs.run import Run
from tokenfeed.ui.messages import Query
from tokenfeed.ui.overview import describe_store
from tokenfeed.ui.packing import show_waste
from tokenfeed.ui.runs import describe_run, find_sightings, show_ledger, trace_step
from tokenfeed.ui.samples import show_sample
from tokenfeed.ui.subject import open_subject


def query(**parameters):
    return Query({name: str(value) for name, value in parameters.items()})


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A run of two sources, amended on the way, as a subject."""
    root = tmp_path_factory.mktemp("mixture")
    made = {"columns": {"tokens": "uint16"}, "spans": {"documents": "json"}, "sync": False}
    for name, lengths in (("web", [number % 50 for number in range(300)]), ("code", [30] * 40)):
        with tokenfeed.Writer(root / name, shard_bytes=4000, **made) as writer:
            for number, length in enumerate(lengths):
                writer.append({"tokens": np.full(length, number)}, documents={name: number})
    web, code = (tokenfeed.open(root / name).windows(16) for name in ("web", "code"))
    views = {"web": (web, 0.75), "code": (code, 0.25)}
    plan = tokenfeed.Plan.of(tokenfeed.mix(views), seed=1).amend(40, weights={"web": 0.5, "code": 0.5})
    options = {"prefetch": 0, "rank": 0, "world_size": 2, "run": root / "run.jsonl"}
    with tokenfeed.Loader(plan, 40, **options) as loader:
        for _ in range(3):
            next(loader)
    return open_subject(str(root / "run.jsonl"))


def test_every_source_of_a_mixture_can_be_looked_at(mixture):
    assert mixture.describe()["has_store"]
    told = [describe_store(mixture, query(source=name))["items"] for name in ("web", "code")]
    assert told[0] != told[1] == 40 * 30
    assert show_sample(mixture, query(source="code", view="documents", index=7))["tokens"][0][0] == 7
    assert show_waste(mixture, query(source="code", length=64))["documents"] == 40
    with pytest.raises(ArgumentError, match="no source"):
        describe_store(mixture, query(source="elsewhere"))


def test_amendments_and_the_present_are_told(mixture):
    told = describe_run(mixture, query())
    assert told["amendments"] == [{"sample": 40, "step": 0, "told": "the change of weights"}]
    assert (told["reached"], told["step"]) == (240, 3)
    ledger = show_ledger(mixture, query())
    assert ledger["samples"] == 240
    assert sum(one["samples"] for one in ledger["sources"]) == 240
    assert [sum(samples for samples, _ in point[1:]) for point in ledger["points"]] == [
        point[0] for point in ledger["points"]
    ]


def test_a_step_comes_in_pages_and_tells_what_is_planned(mixture):
    pages = [trace_step(mixture, query(step=2, first=first)) for first in (0, 50)]
    assert [len(page["rows"]) for page in pages] == [50, 30]
    assert {page["num_rows"] for page in pages} == {80}
    rows = [row["sample"] for page in pages for row in page["rows"]]
    assert rows == tokenfeed.Run(mixture[Run].path).samples(2)
    assert not pages[0]["planned"]
    assert trace_step(mixture, query(step=3))["planned"]
    assert trace_step(mixture, query())["step"] == 3
    alone = trace_step(mixture, query(step=2, rank=1, first=30))
    assert ([row["rank"] for row in alone["rows"]], alone["num_rows"]) == ([1] * 10, 40)


def test_past_and_planned_sightings_are_told_apart(mixture):
    told = find_sightings(mixture, query(document=3, source="code"))
    seen = tokenfeed.Run(mixture[Run].path).find(3, source="code", epochs=told["epochs"]["code"])
    assert told["total"] == len(seen) > told["num_planned"] == sum(each.planned for each in seen) > 0


def test_when_a_window_is_seen(mixture):
    """As often as `trace` has it, in the same rows."""
    run = tokenfeed.Run(mixture[Run].path)
    told = find_sightings(mixture, query(index=3, source="code"))
    rows = [row for step in range(40) for row in run.trace(step)]
    last = max(row.sample for row in rows)
    expected = [row for row in rows if (row.source, row.index) == ("code", 3) and row.epoch in told["epochs"]["code"]]
    seen = [one for one in told["rows"] if one["sample"] <= last]
    assert [(one["sample"], one["step"], one["rank"], one["row"]) for one in seen] == [
        (row.sample, row.step, row.rank, row.row) for row in expected
    ]
    assert told["total"] - told["num_planned"] == sum(not row.planned for row in expected) > 0
    (alone,) = trace_step(mixture, query(sample=expected[0].sample))["rows"]
    assert (alone["sample"], alone["rank"], alone["source"]) == (expected[0].sample, expected[0].rank, "code")


def test_what_was_rolled_back(store_path, tmp_path):
    """Steps 4 to 6 are trained, the run goes back to step 4, skips there, and goes on with another batch size."""
    path, view = tmp_path / "run.jsonl", tokenfeed.open(store_path).windows(16)
    options = {"rank": 0, "world_size": 2, "run": path, "prefetch": 0}
    with tokenfeed.Loader(view, 3, **options) as loader:
        batches = [next(loader) for _ in range(7)]
    trained = batches[4].indices.tolist()
    with tokenfeed.Loader(view, 6, **options) as loader:
        loader.load_state_dict(batches[3].state)
        loader.skip_to(28)
        next(loader)
    subject = open_subject(str(path))
    told = describe_run(subject, query())
    ((start, first, stop),) = [(one["start"], one["first_step"], one["stop_step"]) for one in told["rolled_back"]]
    assert (start, first, stop) == (0, 4, 7)
    before, after = (trace_step(subject, query(step=4, **asked)) for asked in ({"start": 0}, {}))
    assert [row["sample"] for row in before["rows"]] == list(range(24, 30))
    assert [row["index"] for row in before["rows"] if row["rank"] == 0] == trained
    assert [row["sample"] for row in after["rows"]] == list(range(28, 40))
    assert not before["planned"]


def test_a_run_that_comes_later(store_path, tmp_path):
    """The page is opened before the run file exists, and follows it as it grows."""
    run = tmp_path / "run.jsonl"
    opened = open_subject(str(run))
    assert (opened.kind, opened.describe()["has_run"], opened.find(Run)) == ("run", False, None)
    with pytest.raises(MissingError, match="not there yet"):
        describe_run(opened, query())
    options = {"prefetch": 0, "rank": 0, "world_size": 1, "run": run}
    with tokenfeed.Loader(tokenfeed.open(store_path).windows(16), batch_size=2, **options) as loader:
        next(loader)
        assert opened.describe()["has_run"]
        loader.close()
        assert describe_run(opened, query())["reached"] == 2
        held = opened[Run]
        next(loader)
    assert describe_run(opened, query())["reached"] == 4
    assert opened[Run] is held
