"""`tokenfeed trace`, `tokenfeed find` and `tokenfeed diff`, as a user types them after a small run."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest

import command_line
import tokenfeed

NUM_DOCUMENTS = 40


def run(*arguments, status=0, how=command_line.run):
    done = how(*map(str, arguments))
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def run_json(*arguments, status=0):
    return json.loads(run(*arguments, "--json", status=status).stdout)


def refused(*arguments):
    """The words of the error."""
    return run(*arguments, status=2).stderr


def follow(places, *command):
    """What a command tells once it was told where the data is now: again and again the command that its error advises,
    with a place put in for PATH."""
    while (done := command_line.run(*command)).returncode:
        assert "NotAStoreError" in done.stderr
        found = re.search(r"is not there now .*; say where it is: tokenfeed (.* --store (?:(\w+)=)?)PATH", done.stderr)
        assert found, done.stderr
        command = shlex.split(found[1] + shlex.quote(str(places[found[2]])))
    return json.loads(done.stdout)


def write(path):
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": "json"}, shard_bytes=150) as writer:
        for number in range(NUM_DOCUMENTS):
            payload = {"url": f"https://{path.name}/{number}", "id": number}
            writer.append({"tokens": np.arange(number % 7 + 3)}, documents=payload)


def deliver(view, path, world_size=2, steps=4, **options):
    loaders = [
        tokenfeed.Loader(view, 3, rank=rank, world_size=world_size, run=path, prefetch=0, **options)
        for rank in range(world_size)
    ]
    steps = [[next(loader) for loader in loaders] for _ in range(steps)]
    for loader in loaders:
        loader.close()
    return steps


@pytest.fixture
def web(tmp_path):
    write(tmp_path / "web")
    return tmp_path / "web"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def delivered(web, path):
    return deliver(tokenfeed.open(web).windows(8), path)


def test_what_a_step_was_trained_on(web, path, delivered):
    traced = run_json("trace", path, "--step", 2)
    assert traced["step"] == 2
    view = tokenfeed.open(web).windows(8)
    by_place = {(row["rank"], row["row"]): row for row in traced["rows"]}
    assert len(by_place) == 6
    for rank, batch in enumerate(delivered[2]):
        for number in range(3):
            row = by_place[rank, number]
            assert row["sample"] == batch.samples[number]
            assert (row["source"], row["epoch"], row["index"]) == ("", 0, batch.indices[number])
            assert [tuple(place.values()) for place in row["locations"]] == view.locate(row["index"])
            spans = batch.spans["documents"][number]
            assert [(each["number"], each["start"], each["payload"]) for each in row["documents"]] == [
                (span.number, span.start, span.payload) for span in spans
            ]
    of_one = run_json("trace", path, "--step", 2, "--rank", 1)["rows"]
    assert of_one == [row for row in traced["rows"] if row["rank"] == 1]
    shown = run("trace", path, "--step", 2, "--rank", 1).stdout
    for text in (
        "Step 2",
        "document ",
        of_one[0]["locations"][0]["shard"],
        of_one[0]["documents"][0]["payload"]["url"],
    ):
        assert text in shown


def test_in_a_process_of_its_own(path, delivered):
    for arguments, status in ((("trace", path, "--step", 2), 0), (("diff", path, path), 0), (("find", path), 2)):
        done = run(*arguments, status=status, how=command_line.run_process)
        assert (done.stdout, done.stderr) == run(*arguments, status=status)[1:]


def test_where_a_document_was_seen(path, delivered):
    seen = run_json("find", path, "--document", 17, "--epochs", "0:2")["rows"]
    assert {row["epoch"] for row in seen} == {0, 1}
    for row in seen:
        (traced,) = [
            each
            for each in run_json("trace", path, "--step", row["step"], "--rank", row["rank"])["rows"]
            if each["row"] == row["row"]
        ]
        assert 17 in [document["number"] for document in traced["documents"]]
    first = [row for row in seen if row["epoch"] == 0]
    assert run_json("find", path, "--document", 17)["rows"] == first
    assert run_json("find", path, "--where", "url=https://web/17")["rows"] == first
    assert run_json("find", path, "--where", "id=17", "--where", "url=https://web/17", "--epochs", 0)["rows"] == first
    assert run_json("find", path, "--where", "id=17", "--where", "url=https://web/18")["rows"] == []
    assert f"{first[0]['sample']}" in run("find", path, "--document", 17).stdout


def test_why_no_document_was_found(path, delivered):
    told = run("find", path, "--where", "id=x").stdout
    assert "No row has it: no document has such a payload" in told


def test_what_was_seen_is_told_from_what_is_planned(path, delivered):
    assert "Step 2: 6 rows, seen" in run("trace", path, "--step", 2).stdout
    assert (
        "Step 200: 6 rows, planned: the run is not known to have got there" in run("trace", path, "--step", 200).stdout
    )
    rows = run_json("find", path, "--document", 17, "--epochs", "0:60")["rows"]
    assert {row["planned"] for row in rows if row["step"] < 4} <= {False}
    assert {row["planned"] for row in rows if row["step"] > 40} == {True}
    assert "planned" in run("find", path, "--document", 17, "--epochs", "50:60").stdout


def test_what_cannot_be_traced(path, delivered, tmp_path):
    assert "SampleIndexError" in refused("find", path, "--document", NUM_DOCUMENTS)
    assert "which has 40 spans" in refused("find", path, "--document", NUM_DOCUMENTS)
    assert "no rank 2" in refused("trace", path, "--step", 1, "--rank", 2)
    assert "no step -1" in refused("trace", path, "--step", -1)
    assert "which document" in refused("find", path)
    for option in ("--step", "--rank", "--tokenizer"):  # never taken and ignored
        assert "No such option" in refused("find", path, "--document", 1, option, 1)
    for option in ("--document", "--where", "--source", "--epochs"):
        assert "No such option" in refused("trace", path, "--step", 1, option, 1)
    assert "which document" in refused("find", path, "--document", 1, "--where", "id=1")
    assert "expected FIELD=VALUE" in refused("find", path, "--where", "id")
    assert "no source 'web'" in refused("find", path, "--document", 1, "--source", "web")
    for epochs in ("2:1", "x", "-1:2", ":"):
        assert "expected START:STOP" in refused("find", path, "--document", 1, f"--epochs={epochs}")
    assert "no run file" in refused("trace", tmp_path / "nothing.jsonl", "--step", 1)


def test_the_data_has_moved_or_changed(web, path, delivered, tmp_path):
    before = run_json("trace", path, "--step", 3)
    shutil.move(web, tmp_path / "a=b")
    assert follow({None: tmp_path / "a=b"}, "trace", path, "--step", 3, "--json") == before
    write(tmp_path / "other")
    told = refused("find", path, "--document", 3, "--store", tmp_path / "other")
    assert "PlanMismatchError" in told
    for store in ("a=b", "other"):
        assert tokenfeed.open(tmp_path / store).identity in told


def test_a_mixture(web, path, tmp_path):
    write(tmp_path / "code")
    views = {name: tokenfeed.open(tmp_path / name).windows(8) for name in ("web", "code")}
    deliver(tokenfeed.mix({"web": (views["web"], 2), "code": (views["code"], 1)}), path)
    rows = run_json("trace", path, "--step", 1)["rows"]
    assert sorted(row["source"] for row in rows) == ["code"] * 2 + ["web"] * 4
    for row in rows:
        assert all(row["source"] in document["payload"]["url"] for document in row["documents"])
    assert "of which source" in refused("find", path, "--document", 5)
    seen = run_json("find", path, "--document", 5, "--source", "code")["rows"]
    assert seen == run_json("find", path, "--where", "url=https://code/5")["rows"]
    shutil.move(tmp_path / "code", tmp_path / "moved")
    assert follow({"code": tmp_path / "moved"}, "find", path, "--where", "url=https://code/5", "--json")["rows"] == seen
    shutil.move(web, tmp_path / "moved too")
    places = {"code": tmp_path / "moved", "web": tmp_path / "moved too"}
    assert follow(places, "trace", path, "--step", 1, "--json")["rows"] == rows
    assert "of which source" in refused("trace", path, "--step", 1, "--store", tmp_path / "moved")
    moved = f"code={tmp_path / 'moved'}"
    assert run_json("find", path, "--document", 5, "--source", "code", "--store", moved)["rows"] == seen
    assert "code" in run("find", path, "--document", 5, "--source", "code", "--store", moved).stdout


def test_how_two_runs_differ(web, path, delivered, tmp_path):
    view = tokenfeed.open(web).windows(8)
    assert "the same samples in the same steps" in run("diff", path, path).stdout
    assert run_json("diff", path, path)["same"]
    other = tmp_path / "other.jsonl"
    state = delivered[1][0].state
    deliver(view, other)
    loader = tokenfeed.Loader(view, 6, rank=0, world_size=1, run=other, prefetch=0)
    loader.load_state_dict(state)
    next(loader)
    loader.close()
    assert "divided differently among ranks" in run("diff", path, other, status=1).stdout
    found = run_json("diff", path, other, status=1)
    assert (found["same"], found["step"], found["division_step"]) == (False, None, 2)
    growing = tmp_path / "growing.jsonl"
    write(tmp_path / "more")
    more = tokenfeed.open(tmp_path / "more").windows(8)
    deliver(tokenfeed.Plan.of(view).amend(6 * 10**7, grow=more), growing)
    found = run_json("diff", path, growing, status=1)
    assert (found["step"], [each["part"] for each in found["why"]]) == (10**7, ["index", "amendments", "last change"])
    assert "From step 10,000,000 on the runs deliver other samples" in run("diff", path, growing, status=1).stdout
    assert "no run file" in refused("diff", path, tmp_path / "nothing.jsonl")
