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
from tokenfeed.runs.diff import compare


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
        assert len(tokenfeed.Run(path, stores=place).trace(0)[0].documents) > 0
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
    moved = tokenfeed.Run(path, stores=tmp_path / "archive").trace(0)
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
        tokenfeed.Run(path, stores=changed).find(3)
    with pytest.raises(PlanMismatchError, match=r"windows\(64\).*windows\(32\)"):
        tokenfeed.Run(path, stores=store.windows(32)).find(3)
    with pytest.raises(ArgumentError, match="expected a path"):
        tokenfeed.Run(path, stores=5).find(3)
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


def test_what_was_not_looked_at(store, path, tmp_path):
    view = store.windows(64)
    count = len(view)
    deliver(view, path, count // 4 + 2)  # into the second epoch
    run = tokenfeed.Run(path)
    assert (run.find(17).epochs, run.find(17).not_looked_at) == ({"": [0, 1]}, ["epochs from 2 on"])
    assert run.find(17) == run.find(17, epochs=range(2))
    assert run.find(17, epochs=[1]).not_looked_at == ["other epochs"]
    assert list(run.epochs()) == [0, 1]
    deliver(view, tmp_path / "finite.jsonl", 2, epochs=1)
    assert tokenfeed.Run(tmp_path / "finite.jsonl").find(17).not_looked_at == []
    state = tokenfeed.Plan.of(view).state(count)
    deliver(view, tmp_path / "later.jsonl", 2, state=state)
    rest = tokenfeed.Run(tmp_path / "later.jsonl").find(17).not_looked_at
    assert rest == ["epochs from 2 on", f"samples before {count:,}, of which the run file tells nothing"]


def test_finding_samples_of_the_view(store, path):
    view = store.windows(64)
    deliver(view, path, 3)
    run = tokenfeed.Run(path)
    for row in run.trace(1):
        (found,) = run.find(index=row.index)
        assert (found.step, found.row, found.sample, found.document) == (1, row.row, row.sample, None)
    with pytest.raises(ArgumentError, match=f"the view has {len(view)} samples"):
        run.find(index=len(view))


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
        tokenfeed.Run(path, stores=tmp_path / "b").trace(4)


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


@pytest.fixture
def start(store, tmp_path):
    """Makes a run of some legs, each of (world size, batch size, steps)."""
    number = iter(range(100))

    def deliver_legs(*legs, base=None, **options):
        path, state = tmp_path / f"{next(number)}.jsonl", None
        for world_size, batch_size, steps in legs:
            view = store.windows(64) if base is None else base
            (*_, batch) = deliver(view, path, steps, batch_size, state=state, world_size=world_size, **options)
            state = batch.state
        return tokenfeed.Run(path)

    return deliver_legs


def parts(differences):
    return {each.part: (each.first, each.second) for each in differences}


def test_comparing(store, start, tmp_path):
    view = store.windows(64)
    one = start((1, 6, 5))
    assert compare(one, one).same
    assert compare(one, start((1, 6, 2), (1, 6, 9))).same
    divided = compare(one, start((1, 6, 2), (3, 2, 2), (2, 3, 2)))
    assert (divided.step, divided.division_step) == (None, 2)
    assert parts(divided.division) == {"world size": (1, 3), "batch size": (6, 2)}
    wider = compare(one, start((1, 6, 4), (2, 6, 1)))
    assert (wider.step, parts(wider.why)) == (4, {"world size": (1, 2)})
    assert not wider.planned
    finite = compare(one, start((1, 6, 1), epochs=2))
    assert finite.step == 2 * len(view) // 6
    assert (parts(finite.why)["end"], parts(finite.why)["sample"]) == ((None, 2 * len(view)), (2 * len(view), None))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(StateError, match="no start"):
        compare(one, tokenfeed.Run(tmp_path / "empty.jsonl"))


def test_what_differs_is_shown_as_it_is_on_both_sides(store, start):
    view = store.windows(64)
    one = start((1, 6, 1))
    for options, part in (
        ({"seed": 1}, {"seed": (0, 1)}),
        ({"shuffle": False}, {"seed": (0, None)}),
        ({"base": store.windows(32)}, {"view": ("windows(64)", "windows(32)")}),
    ):
        other = compare(one, start((1, 6, 1), **options))
        assert (other.step, parts(other.why)) == (0, {"index": parts(other.why)["index"], **part})
    unshuffled = start((1, 6, 1), shuffle=False)
    path, state = unshuffled.path.with_name("later.jsonl"), tokenfeed.Plan.of(view, shuffle=False).state(len(view))
    deliver(view, path, 1, 6, state=state, shuffle=False)
    found = compare(unshuffled, tokenfeed.Run(path))
    assert (found.step, parts(found.why)) == (0, {"sample": (0, len(view)), "epoch": (0, 1)})


@pytest.mark.parametrize("by", ["samples", "tokens"])
def test_changes_and_weights_are_shown(store, start, by):
    view = store.windows(64)
    bases = [tokenfeed.mix({"web": (view, share), "code": (view, 1 - share)}, by=by) for share in (0.75, 0.5)]
    one, other = (start((1, 6, 1), base=base) for base in bases)
    counted = " (by tokens)" if by == "tokens" else ""
    told = tuple(f"web {a}, code {b} from sample 0 on{counted}" for a, b in ((0.75, 0.25), (0.5, 0.5)))
    assert parts(compare(one, other).why)["weights"] == told
    changed = tokenfeed.Plan.of(bases[0]).amend(6 * 10**9, weights={"web": 1, "code": 2})
    found = compare(one, start((1, 6, 1), base=changed))
    assert (found.step, found.planned) == (10**9, True)
    assert parts(found.why)["last change"] == (None, "the change of weights at sample 6,000,000,000")


def test_plans_that_mask_alone_deliver_the_same_rows(store, start):
    view = store.windows(64)
    masked = tokenfeed.Plan.of(view).amend(12, mask=[3])
    found = compare(start((1, 6, 1)), start((1, 6, 1), base=masked))
    assert found.same
    assert parts(found.why)["last change"] == (None, "the mask at sample 12")
    assert "the plans differ from sample 12 on" in found.notes[0]


def test_steps_that_one_file_alone_tells_of_are_not_looked_at(store, tmp_path):
    view = store.windows(64)
    batches = deliver(view, tmp_path / "a.jsonl", 6)
    deliver(view, tmp_path / "b.jsonl", 2, state=batches[3].state)
    lines = (tmp_path / "b.jsonl").read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), "step": 4})
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    found = compare(*(tokenfeed.Run(tmp_path / f"{name}.jsonl") for name in "ab"))
    assert found.same
    assert "steps before 4 were not looked at" in found.notes[0]


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
    assert parts(found.why) == {"seed": (0, 1)}
    assert "the plans differ from sample 0 on, and deliver the same rows" in found.notes[0]
