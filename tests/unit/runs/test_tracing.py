"""Tracing rows to the data behind them: hints in the run file, views made again, stores that moved or changed."""

import json
import shutil

import numpy as np
import pytest

import tokenfeed
from plain import spans_of
from tokenfeed.errors import (
    ArgumentError,
    MissingError,
    NotAStoreError,
    PlanMismatchError,
    SampleIndexError,
    StateError,
)
from tokenfeed.runs.comparison import compare


def deliver(view, path, steps=3, batch_size=4, *, state=None, **options):
    """The batches of a run on one rank."""
    options = {"rank": 0, "world_size": 1, "prefetch": 0, **options}
    loader = tokenfeed.Loader(view, batch_size, run=path, **options)
    if state is not None:
        loader.load_state_dict(state)
    batches = [next(loader) for _ in range(steps)]
    loader.close()
    return batches


@pytest.fixture
def store(store_path):
    return tokenfeed.open(store_path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.mark.parametrize(
    "make",
    [
        lambda store: store.windows(64),
        lambda store: store.windows(64, extra=0),
        lambda store: store.windows(64, extra=3),
        lambda store: store.documents(),
        lambda store: store.documents("concepts"),
        lambda store: store.packed(64),
        lambda store: store.packed(50, table="concepts"),
    ],
)
def test_views_are_opened_again_from_the_run_file(store, path, make):
    store.pack(64)
    store.pack(50, table="concepts")
    view = make(store)
    batches = deliver(view, path)
    run = tokenfeed.Run(path)
    (source,) = run.starts[0].plan.sources
    again = store.view(source.spec)
    assert again.spec.sample == view.spec.sample
    assert len(again) == len(view)
    np.testing.assert_array_equal(again[3].tokens, view[3].tokens)
    table = view.spec.table
    for step, batch in enumerate(batches):
        rows = run.trace(step)
        for place, row in enumerate(rows):
            assert row.locations == view.locate(row.index)
            assert spans_of(row.documents) == spans_of(batch.spans[table][place])
            np.testing.assert_array_equal(row.content.tokens, batch[place].tokens)


@pytest.mark.parametrize(
    "change",
    [{"kind": "windows"}, {"kind": "rows", "length": 64}, {"kind": "windows", "length": "64"}, "windows(64)", None],
)
def test_run_files_that_describe_no_view(store, path, change):
    deliver(store.windows(64), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["plan"]["sources"][0]["view"] = change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StateError, match=r"run.jsonl, line 1.*(describes no view|field 'length')"):
        tokenfeed.Run(path)


def test_rows_that_another_algorithm_packed(store, path):
    store.pack(64)
    deliver(store.packed(64), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["plan"]["sources"][0]["view"]["algorithm"] = 99
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StateError, match="algorithm 99"):
        _ = tokenfeed.Run(path).trace(0)[0].documents


def test_no_token_is_read(store, store_path, path):
    deliver(store.windows(64), path)
    for file in store_path.rglob("tokens.npy"):
        file.unlink()
    rows = tokenfeed.Run(path).trace(1)
    assert all(row.documents and row.locations for row in rows)
    assert [span.payload for row in rows for span in row.documents]


def test_where_the_data_was(store, store_path, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deliver(tokenfeed.open("store").windows(64), path)
    (start,) = tokenfeed.Run(path).starts
    assert start.stores == {"": [str(store_path)]}
    several = tokenfeed.open([store_path, "store"])
    assert several.paths == [str(store_path)] * 2
    deliver(several.windows(64), tmp_path / "other.jsonl")
    assert len(tokenfeed.Run(tmp_path / "other.jsonl").trace(2)[0].documents) > 0


def test_a_run_file_that_does_not_tell_where_the_data_lies(store, path):
    deliver(store.windows(64), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["stores"] = {}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = tokenfeed.Run(path)
    rows = run.trace(0)
    assert [row.sample for row in rows] == [0, 1, 2, 3]
    with pytest.raises(MissingError, match="does not tell where the data lies"):
        _ = rows[0].documents
    for place in (store, store.paths[0], store.windows(64), {"": store}):
        assert len(run.trace(0, stores=place)[0].documents) > 0
    lines[0]["stores"] = {"": "somewhere"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StateError, match="expected lists of paths"):
        tokenfeed.Run(path)


def test_the_data_has_moved(store, store_path, path, tmp_path):
    (batch, *_) = deliver(store.windows(64), path, 1)
    shutil.move(store_path, tmp_path / "archive")
    run = tokenfeed.Run(path)
    with pytest.raises(NotAStoreError, match=r"was in .*store when the run began.*stores="):
        run.find(5)
    moved = run.trace(0, stores=tmp_path / "archive")
    np.testing.assert_array_equal(moved[2].content.tokens, batch[2].tokens)
    # A resume from there is noted, though the plan is the same.
    deliver(tokenfeed.open(tmp_path / "archive").windows(64), path, 1, state=batch.state)
    assert [start.stores[""] for start in tokenfeed.Run(path).starts] == [
        [str(store_path)],
        [str(tmp_path / "archive")],
    ]


def test_the_data_has_changed(store, store_path, path):
    deliver(store.windows(64), path)
    columns = {"tokens": "uint16", "frame": ("uint8", (2, 3))}
    spans = {"documents": "json", "concepts": "msgpack"}
    with tokenfeed.Writer(store_path, mode="append", columns=columns, spans=spans) as writer:
        frame = np.zeros((3, 2, 3), np.uint8)
        writer.append({"tokens": [1, 2, 3], "frame": frame}, documents="new", concepts=None)
    changed = tokenfeed.open(store_path)
    run = tokenfeed.Run(path)
    assert run.trace(0)[0].content.tokens.tolist() == store.windows(64)[run.trace(0)[0].index].tokens.tolist()
    with pytest.raises(PlanMismatchError, match=f"{store.identity}.*{changed.identity}"):
        run.find(3, stores=changed)
    with pytest.raises(PlanMismatchError, match=r"windows\(64\).*windows\(32\)"):
        run.find(3, stores=store.windows(32))
    with pytest.raises(ArgumentError, match="expected a path"):
        run.find(3, stores=5)
    shutil.rmtree(store_path)
    with tokenfeed.Writer(store_path, columns=columns, spans=spans) as writer:
        writer.append({"tokens": [1, 2, 3], "frame": frame}, documents="new", concepts=None)
    changed = tokenfeed.open(store_path)
    with pytest.raises(PlanMismatchError, match=f"{store.identity}.*{changed.identity}"):
        _ = tokenfeed.Run(path).trace(0)[0].documents


def test_the_data_is_one_split(tmp_path, path):
    for split in ("train", "val"):
        with tokenfeed.Writer(
            tmp_path / "split",
            mode="append",
            columns={"tokens": "u1"},
            spans={"documents": "json"},
            split=split,
            sync=False,
        ) as writer:
            for number in range(9):
                writer.append({"tokens": [number] * 5}, documents=[split, number])
    deliver(tokenfeed.open(tmp_path / "split", split="val").windows(4, extra=0), path)
    payloads = [span.payload for row in tokenfeed.Run(path).trace(0) for span in row.documents]
    assert payloads
    assert all(split == "val" for split, _ in payloads)


def test_finding_documents(store, plain, path):
    view = store.windows(64)
    deliver(view, path, 2)
    run = tokenfeed.Run(path)
    found = run.find(17, epochs=range(3))
    assert sorted({seen.index for seen in found}) == view.samples_touching([17]).tolist()
    assert {seen.epoch for seen in found} == {0, 1, 2}
    for seen in found:
        assert (seen.step, seen.rank, seen.row) == run.place(seen.sample)
        (row,) = [row for row in run.trace(seen.step) if row.row == seen.row]
        assert (row.epoch, row.index) == (seen.epoch, seen.index)
        assert 17 in [span.number for span in row.documents]
    assert found[:2] == list(found)[:2]
    assert found != list(found)[:2]
    assert str(len(found)) in repr(found)
    numbers = [number for number, document in enumerate(plain.documents) if isinstance(document.payload, dict)]
    number = max(numbers, key=lambda each: len(plain.documents[each].tokens))
    assert run.find(where={"number": number}) == run.find(number)
    assert run.find(where=lambda payload: isinstance(payload, dict) and payload["number"] == number) == run.find(number)
    assert run.find(where={"number": -1}) == []
    assert run.find(where={"nothing": None}) == []
    assert {seen.document for seen in run.find(where=lambda payload: isinstance(payload, dict))} == {
        number for number in numbers if len(view.samples_touching([number]))
    }
    with pytest.raises(SampleIndexError, match="120"):
        run.find(120)
    for arguments in ({}, {"document": 3, "where": {"number": 3}}):
        with pytest.raises(ArgumentError, match="which document"):
            run.find(**arguments)
    with pytest.raises(ArgumentError, match="no source 'web': the run is over one view"):
        run.find(3, source="web")
    assert {seen.source for seen in found} == {""}


def test_sources_of_a_mixture(store, tmp_path, path):
    with tokenfeed.Writer(tmp_path / "b", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
        for number in range(30):
            writer.append({"tokens": [number] * 70}, documents={"id": number})
    views = {"a": store.windows(64), "b": tokenfeed.open(tmp_path / "b").windows(64)}
    mixed = tokenfeed.mix({"a": (views["a"], 1)})
    (*_, last) = deliver(mixed, path, 3)
    later = tokenfeed.Plan.of(mixed).amend(12, weights={"a": 1, "b": 2}, sources={"b": views["b"]})
    batches = deliver(later, path, 4, state=last.state)
    run = tokenfeed.Run(path)
    assert run.starts[-1].stores == {"a": store.paths, "b": [str(tmp_path / "b")]}
    for step, batch in enumerate(batches, 3):
        for place, row in enumerate(run.trace(step)):
            np.testing.assert_array_equal(row.content.tokens, batch[place].tokens)
            assert row.locations == views[row.source].locate(row.index)
    found = run.find(7, source="b", epochs=range(2))
    assert {seen.source for seen in found} == {"b"}
    assert min(seen.step for seen in found) >= 3
    assert run.find(where={"id": 7}, epochs=range(2)) == found
    for seen in found:
        (row,) = [row for row in run.trace(seen.step) if row.row == seen.row]
        assert {"id": 7} in [span.payload for span in row.documents]
    assert run.find(7, source="a")[0].source == "a"
    for arguments, message in (({}, "of which source"), ({"source": "c"}, "no source 'c'")):
        with pytest.raises(ArgumentError, match=message):
            run.find(7, **arguments)
    with pytest.raises(ArgumentError, match="of which source is"):
        run.trace(4, stores=tmp_path / "b")


def test_places(store, path):
    loader = tokenfeed.Loader(store.windows(64), 2, run=path, rank=0, world_size=2, epochs=1, prefetch=0)
    state = next(loader).state
    loader.close()
    run = tokenfeed.Run(path)
    assert run.place(0) == (0, 0, 0)
    assert run.place(11) == (2, 1, 1)
    assert run.place(12) == (3, 0, 0)
    assert run.place(15) == (3, 1, 1)
    num_samples = len(store.windows(64))
    for sample in (-1, num_samples):
        with pytest.raises(ArgumentError, match=f"no sample {sample}: it begins with sample 0 and ends with"):
            run.place(sample)
    path.unlink()
    deliver(store.windows(64), path, 1, state=state)
    with pytest.raises(ArgumentError, match="it begins with sample 4 and has no end"):
        tokenfeed.Run(path).place(3)


def test_comparing(store, tmp_path):
    view = store.windows(64)
    number = iter(range(100))

    def run(*legs, base=view, **options):
        path = tmp_path / f"{next(number)}.jsonl"
        state = None
        for world_size, batch_size, steps in legs:
            (*_, batch) = deliver(base, path, steps, batch_size, state=state, world_size=world_size, **options)
            state = batch.state
        return tokenfeed.Run(path)

    one = run((1, 6, 5))
    assert compare(one, one).same
    assert compare(one, run((1, 6, 2), (1, 6, 9))).same
    divided = compare(one, run((1, 6, 2), (3, 2, 2), (2, 3, 2)))
    assert (divided.step, divided.division_step) == (None, 2)
    wider = compare(one, run((1, 6, 4), (2, 6, 1)))
    assert (wider.step, wider.samples, [each.part for each in wider.why]) == (4, (30, 30), ["world size"])
    for options, part in (({"seed": 1}, "seed"), ({"shuffle": False}, "seed"), ({"base": store.windows(32)}, "view")):
        other = compare(one, run((1, 6, 1), **options))
        assert other.step == 0
        assert part in [each.part for each in other.why]
    plan, at = tokenfeed.Plan.of(view), 6 * 10**8 + 1
    with tokenfeed.Writer(tmp_path / "more", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
        writer.append({"tokens": range(200)}, documents=0)
    plan = plan.amend(at, grow=tokenfeed.open(tmp_path / "more").windows(64))
    grown = compare(one, run((1, 6, 1), base=plan))
    assert (grown.step, grown.samples) == (10**8, (6 * 10**8 + 1, 6 * 10**8 + 1))
    assert [each.part for each in grown.why] == ["amendments"]
    assert grown.planned
    told = "because of the growth of the data at sample 600,000,001 in the second run alone. Neither run is known to"
    assert told in str(grown)
    assert not wider.planned
    assert not divided.division_planned
    finite = compare(one, run((1, 6, 1), epochs=2))
    assert finite.step == 2 * len(view) // 6
    assert [each.part for each in finite.why] == ["end"]
    mixed = tokenfeed.mix({"a": (view, 2), "b": (view, 1)})
    changed = tokenfeed.Plan.of(mixed).amend(6 * 10**9, weights={"a": 1, "b": 2})
    first, later = run((1, 6, 1), base=mixed), run((1, 6, 1), base=changed)
    assert compare(first, first).same
    found = compare(first, later)
    assert (found.step, found.why[0].part) == (10**9, "amendments")
    assert "because of the change of weights at sample 6,000,000,000 in the second run alone" in str(found)
    assert compare(one, first).step == 0
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(StateError, match="no start"):
        compare(one, tokenfeed.Run(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize("by", ["samples", "tokens"])
def test_comparisons_tell_weights_as_they_were_given(store, tmp_path, by):
    """They told how many samples of each source had come."""
    view = store.windows(64)
    even, uneven = tokenfeed.Stage({"web": 1, "code": 1}), tokenfeed.Stage({"web": 2, "code": 1}, 600)
    bases = [tokenfeed.mix({"web": (view, share), "code": (view, 1 - share)}, by=by) for share in (0.75, 0.5)]
    bases += [
        tokenfeed.mix({"web": view, "code": view}, stages=[first, even], by=by)
        for first in (uneven, tokenfeed.Stage(uneven.weights, 300))
    ]
    runs = []
    for number, base in enumerate([*bases, view]):
        deliver(base, tmp_path / f"{number}.jsonl", 1)
        runs.append(tokenfeed.Run(tmp_path / f"{number}.jsonl"))
    told = " (by tokens)" if by == "tokens" else ""
    for first, second, expected in (
        (0, 1, f"with weights web 0.75, code 0.25{told} in the first run and web 0.5, code 0.5{told} in the second"),
        (2, 3, f"with weights web 2, code 1{told} in the first run and web 1, code 1{told} in the second"),
        (4, 1, f"with weights one view in the first run and web 0.5, code 0.5{told} in the second"),
    ):
        assert expected in str(compare(runs[first], runs[second]))


def test_comparisons_read_as_sentences(store, tmp_path):
    view = store.windows(64)
    state = tokenfeed.Plan.of(view, shuffle=False).state(len(view))
    runs = []
    for number, options in enumerate(({}, {"state": state}, {"world_size": 2, "batch_size": 2}, {"shuffle": True})):
        deliver(view, tmp_path / f"{number}.jsonl", **{"shuffle": False, **options})
        runs.append(tokenfeed.Run(tmp_path / f"{number}.jsonl"))
    one, later, wide, shuffled = runs
    assert str(compare(one, one)) == "The runs deliver the same samples in the same steps."
    found = compare(one, later)  # it said: other samples
    assert (found.step, found.epochs) == (0, (0, 1))
    assert str(found) == (
        "From step 0 on the runs deliver the same rows of the data in another epoch, 0 in the first run and 1 in the "
        f"second: with first sample 0 in the first run and {len(view)} in the second."
    )
    assert str(compare(one, wide)) == (
        "From step 0 on the runs deliver the same samples, divided differently among ranks: with world size 1 in the "
        "first run and 2 in the second, and with batch size 4 in the first run and 2 in the second."
    )
    assert str(compare(one, shuffled)).endswith("with seed none in the first run and 0 in the second.")
    assert compare(one, shuffled).epochs is None


def test_what_was_rolled_back_was_seen(store, path):
    """What was delivered is what the run file says was seen, by whichever plan it was delivered."""
    view = store.windows(64)
    delivered = {}

    def log(first, batches):
        for step, batch in enumerate(batches, first):
            delivered.setdefault(step, []).append(batch.indices.tolist())

    first = deliver(view, path, 6)
    log(0, first)
    log(3, deliver(view, path, 2, state=first[2].state, seed=0))
    plan = tokenfeed.Plan.of(view)
    amended = plan.amend(8, mask=[17])
    log(2, deliver(amended, path, 2, state=first[1].state))
    run = tokenfeed.Run(path)
    for step, times in delivered.items():
        last, before = run.trace(step), run.trace(step, rolled_back=True)
        if step > 3:  # the run may come there again
            assert all(row.planned for row in last)
        else:
            assert [row.index for row in last] == times[-1]
        shown = times if step > 3 else times[:-1]
        assert [row.index for row in before] == [index for indices in shown for index in indices]
        assert all(row.rolled_back and not row.planned and row.documents for row in before)
        assert not any(row.rolled_back for row in last)
    assert run.trace(7, rolled_back=True) == run.trace(3, rank=1, rolled_back=True) == []
    document = run.trace(5, rolled_back=True)[0].documents[0].number
    seen = [(each.step, each.index) for each in run.find(document) if each.rolled_back]
    touching = set(view.samples_touching([document]).tolist())
    kept = [(step, times if step > 3 else times[:-1]) for step, times in sorted(delivered.items())]
    expected = [(step, index) for step, times in kept for rows in times for index in rows if index in touching]
    assert sorted(seen) == sorted(expected)
    assert run.reached == 16


def test_masked_documents_are_marked(store, path):
    view = store.windows(64)
    first = deliver(view, path, 2, shuffle=False)
    numbers = [span.number for span in tokenfeed.Run(path).trace(2)[0].documents]
    plan = tokenfeed.Plan.of(view, shuffle=False).amend(8, mask=numbers[:1])
    (batch,) = deliver(plan, path, 1, state=first[1].state)
    assert not batch.loss_mask.all()
    run = tokenfeed.Run(path)
    rows = [row for step in range(3) for row in run.trace(step)]
    assert {number for row in rows for number in row.masked} == {numbers[0]}
    assert next(row.sample for row in rows if row.masked) == 8
    found = run.find(numbers[0], epochs=range(2))
    assert [each.masked for each in found] == [each.sample >= 8 for each in found]


def test_plans_that_are_written_differently_and_do_the_same(tmp_path):
    with tokenfeed.Writer(tmp_path / "one", columns={"tokens": "u1"}, sync=False) as writer:
        writer.append({"tokens": [1, 2, 3]})
    view = tokenfeed.open(tmp_path / "one").windows(2)
    assert len(view) == 1
    runs = []
    for seed in (0, 1):
        deliver(view, tmp_path / f"{seed}.jsonl", 1, seed=seed)
        runs.append(tokenfeed.Run(tmp_path / f"{seed}.jsonl"))
    found = compare(*runs)
    assert found.same
    assert "written differently" in found.note
