"""Run files: what any step delivered, after resumes, resizes, returns to earlier checkpoints, crashes in mid-line."""

import gc
import json
import pickle
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import command_line
import tokenfeed
from clock import Clock
from golden import golden_tokenizer
from tokenfeed import observe
from tokenfeed.errors import ArgumentError, NotFoundError, StateError
from tokenfeed.ui.subject import open_subject


@pytest.fixture
def windows(store_path):
    return tokenfeed.open(store_path).windows(64)


def leg(windows, path, state, steps, world_size, batch_size, **options):
    """Run some steps on all ranks; what each delivered, and the state behind the last."""
    loaders = [
        tokenfeed.Loader(windows, batch_size, rank=rank, world_size=world_size, run=path, **options)
        for rank in range(world_size)
    ]
    delivered = []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    for _ in range(steps):
        batches = [next(loader) for loader in loaders]
        delivered.append([(batch.samples.tolist(), batch.indices.tolist()) for batch in batches])
        state = batches[0].state
    return delivered, state


def test_any_step_can_be_traced(windows, tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    first, state = leg(windows, path, None, 5, 2, 3)
    second, _ = leg(windows, path, state, 4, 3, 2)
    assert_traced(path, first + second)
    plan = tokenfeed.Plan.of(windows)  # back to step 5, and another way from there
    plan = plan.amend(36, mask=[3])
    third, state = leg(plan, path, state, 3, 1, 6)
    assert_traced(path, first + third)
    fourth, _ = leg(plan, path, state, 2, 2, 6)
    assert_traced(path, first + third + fourth)
    run = tokenfeed.Run(path)
    assert [start.step for start in run.starts] == [0, 5, 5, 8]
    assert [start.world_size for start in run.starts] == [2, 3, 1, 2]
    assert sum("reached" not in line for line in path.read_text().splitlines()) == 6  # a plan, an amendment, 4 starts
    with pytest.raises(ArgumentError, match="no rank 5"):
        run.trace(3, rank=5)
    with pytest.raises(ArgumentError, match="no step -1"):
        run.trace(-1)


def assert_traced(path, steps):
    run = tokenfeed.Run(path)
    for step, ranks in enumerate(steps):
        for rank, (samples, indices) in enumerate(ranks):
            traced = run.trace(step, rank=rank)
            assert [trace.sample for trace in traced] == samples
            assert [trace.index for trace in traced] == indices
        together = sorted(sample for samples, _ in ranks for sample in samples)
        assert [trace.sample for trace in run.trace(step)] == together


def test_what_was_seen_is_told_from_what_is_planned(windows, tmp_path):
    """Steps that never ran were reported as seen."""
    path = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(windows, 2, run=path, rank=0, world_size=1, prefetch=2)

    def known():
        run = tokenfeed.Run(path)
        rows = [row for step in range(6) for row in run.trace(step)]
        found = {seen.sample: seen.planned for document in range(9) for seen in run.find(document)}
        planned = {row.sample: row.planned for row in rows}
        assert all(planned[sample] == found[sample] for sample in found.keys() & planned.keys())
        assert [row.sample for row in rows if not row.planned] == list(range(run.reached))
        return run.reached

    next(loader)
    state = next(loader).state
    assert (known(), state["samples"]) == (0, 4)
    loader.close()
    assert known() == 4
    next(loader)
    loader.close()
    assert known() == 6
    loader.load_state_dict(state)  # back: what follows is planned again
    next(loader)
    assert known() == 4
    again = tokenfeed.Loader(windows, 2, run=path, rank=0, world_size=1)
    again.load_state_dict(loader.state_dict())
    next(again)
    assert known() == 6
    (row,) = tokenfeed.Run(path).trace(5)[:1]
    assert row.planned
    assert "planned=True" in repr(row)
    assert repr(tokenfeed.Run(path)).startswith(f"Run('{path}': 4 starts, 6 samples delivered, Plan(")


def test_what_reads_a_state_leaves_the_run_file_as_it_is(windows, tmp_path):
    path = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(windows, 2, run=path, rank=0, world_size=1)
    with observe.publish(loader, tmp_path / "run.stats.jsonl"):
        batch, before = next(loader), path.read_bytes()
        assert loader.state_dict() == batch.state == pickle.loads(pickle.dumps(loader)).state_dict()
        assert observe.measure(loader)["data/samples"] == 2
        observe.log(1, loss=0.5)
    assert path.read_bytes() == before
    loader.close()
    assert path.read_bytes() == before + b'{"reached": 2}\n'


@pytest.mark.parametrize("scheme", ["s3", "gs", "https", "file", "hdfs"])
def test_run_and_stats_files_at_an_address_are_refused(scheme, windows, tmp_path, monkeypatch):
    """They made a folder called `s3:` in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("text.jsonl").write_text('{"text": "a"}\n')
    before, options = sorted(tmp_path.rglob("*")), {"rank": 0, "world_size": 1, "val": None}
    run, stats = f"{scheme}://bucket/run.jsonl", f"{scheme}://bucket/run.stats.jsonl"
    loader = tokenfeed.Loader(windows, 2, rank=1, world_size=2)
    calls = [
        lambda: tokenfeed.Loader(windows, 2, rank=1, world_size=2, run=run),
        lambda: tokenfeed.Loader(windows, 2, rank=0, world_size=1, run=Path(run)),
        lambda: tokenfeed.stream("text.jsonl", golden_tokenizer(), batch_size=1, length=4, run=run, **options),
        lambda: tokenfeed.Run(run),
        lambda: observe.publish(loader, stats),
        lambda: observe.read_snapshots(stats),
        lambda: open_subject(run),
        lambda: open_subject(stats),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=f"{scheme}://… is an address, and run files"):
            call()
    for command in (("top", run), ("serve", stats), ("trace", run, "--step", 0)):
        assert f"{scheme}://… is an address, and run files" in command_line.run(*command).stderr
    assert sorted(tmp_path.rglob("*")) == before


BREAK = """
import os, sys
import tokenfeed

path, run, how = sys.argv[1:]
loader = tokenfeed.Loader(tokenfeed.open(path).windows(64), 2, run=run, rank=0, world_size=1, prefetch=4)
for batch in loader:
    if batch.num_delivered == 6:
        break
if how == "fork":
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        assert "reached" not in open(run).read()
        os._exit(0)
elif how == "error":
    raise SystemExit(7)
"""


@pytest.mark.parametrize(("how", "status", "reached"), [("end", 0, 6), ("error", 7, 6), ("fork", 0, 0)])
def test_a_script_that_ends_without_close(how, status, reached, store_path, tmp_path):
    """Its steps were told to be planned. A forked child that ends says nothing."""
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", BREAK, str(store_path), str(path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (status, "")
    assert tokenfeed.Run(path).reached == reached


KILLED = """
import sys, time
from types import SimpleNamespace
import tokenfeed, tokenfeed.runs.file

path, run = sys.argv[1:]
now = 0.0
tokenfeed.runs.file.time = SimpleNamespace(time=time.time, monotonic=lambda: now)
loader = tokenfeed.Loader(tokenfeed.open(path).windows(64), 2, run=run, rank=0, world_size=1)
for batch in loader:
    saved = batch.state
    if batch.num_delivered == 8:
        print("killed here", flush=True)
        time.sleep(600)
    now += 25
"""


def test_a_killed_script_that_saves_the_states_of_batches(store_path, tmp_path):
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", KILLED, str(store_path), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout.readline() == "killed here\n"
        script.kill()
    assert script.returncode == -signal.SIGKILL
    assert tokenfeed.Run(path).reached == 8  # the fourth batch came after 75 seconds


def test_progress_is_noted_more_rarely_as_a_run_grows(windows, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tokenfeed.runs.file.time", clock.module("monotonic"))
    path = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(windows, 1, run=path, rank=0, world_size=1)
    noted = []
    for _ in range(1500):
        clock.advance(30)
        size = path.stat().st_size if path.exists() else 0
        next(loader)
        if path.stat().st_size > size:
            noted.append(clock.now)
    pauses = np.diff(noted)
    assert set(pauses[:80]) == {60.0}
    assert pauses[-1] == 450
    assert all(pause <= max(60, 0.01 * now) + 30 for pause, now in zip(pauses, noted, strict=False))
    assert len(noted) < 350


def test_a_loader_that_is_collected_notes_its_progress(windows, tmp_path):
    path = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(windows, 2, run=path, rank=0, world_size=1)
    next(loader)
    there = weakref.ref(loader)
    del loader
    gc.collect()
    assert there() is None
    assert tokenfeed.Run(path).reached == 2


def test_an_earlier_loader_says_nothing_about_a_later_start(windows, tmp_path):
    path = tmp_path / "run.jsonl"
    earlier, later = (tokenfeed.Loader(windows, 2, run=path, rank=0, world_size=1) for _ in range(2))
    for _ in range(5):
        next(earlier)
    next(later)
    earlier.close()
    later.close()
    assert tokenfeed.Run(path).reached == 2


def test_a_run_file_that_was_removed_stays_away(windows, tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    loader = tokenfeed.Loader(windows, 2, run=path, rank=0, world_size=1)
    next(loader)
    path.unlink()
    path.parent.rmdir()
    loader.close()
    assert not path.parent.exists()


def test_progress_of_a_damaged_file(windows, tmp_path):
    path = tmp_path / "run.jsonl"
    leg(windows, path, None, 1, 1, 2)
    lines = path.read_text().splitlines()[:2]
    for damage in ('{"reached": -1}', '{"reached": "4"}', '{"reached": true}'):
        path.write_text("\n".join([*lines, damage, lines[-1]]) + "\n")
        with pytest.raises(StateError, match="line 3: reached is"):
            tokenfeed.Run(path)
    path.write_text("\n".join([lines[0], '{"reached": 4}', lines[1]]) + "\n")
    with pytest.raises(StateError, match="line 2"):
        tokenfeed.Run(path)


def test_a_finite_run_ends(windows, tmp_path):
    path = tmp_path / "run.jsonl"
    loader = tokenfeed.Loader(windows, 7, epochs=1, run=path, rank=0, world_size=2)
    delivered = [batch.samples.tolist() for batch in loader]
    run = tokenfeed.Run(path)
    assert [run.samples(step, rank=0) for step in range(len(delivered))] == delivered
    with pytest.raises(ArgumentError, match="the run ended"):
        run.trace(len(delivered))


def test_a_line_that_a_crash_cut_short(windows, tmp_path):
    path = tmp_path / "run.jsonl"
    first, state = leg(windows, path, None, 3, 1, 2)
    with path.open("a") as file:
        file.write('{"step": 3, "samp')
    assert_traced(path, first)
    second, _ = leg(windows, path, state, 2, 1, 2)
    assert_traced(path, first + second)


@pytest.mark.parametrize(
    "text",
    [
        "[]\n",
        '{"step": 0}\n',
        '{"plan": {}}\n',
        "nonsense\n{}\n",
        '{"kind": "run", "version": 9, "plan": {}}\n',
        '{"kind": "run", "version": 2, "plan": {"version": 2}, "stores": {}}\n',
        '{"kind": "stream", "version": 2, "plan": {}, "stores": {}}\n',
    ],
)
def test_what_is_no_run_file(tmp_path, text):
    (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(StateError, match=r"run\.jsonl"):
        tokenfeed.Run(tmp_path / "run.jsonl")


def test_no_run_file(tmp_path):
    with pytest.raises(NotFoundError, match="there is no run file"):
        tokenfeed.Run(tmp_path / "run.jsonl")


def test_plans_are_saved_and_loaded(windows, tmp_path):
    plan = tokenfeed.Plan.of(windows, seed=5).amend(7, mask=[3])
    plan.save(tmp_path / "plan.json")
    loaded = tokenfeed.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.trace([0, 5, 99]) == plan.trace([0, 5, 99])
    saved = json.loads((tmp_path / "plan.json").read_text())
    for damage in ({}, [], {**saved, "version": 1}, {**saved, "sources": [{}]}, {**saved, "amendments": [[1]]}):
        (tmp_path / "plan.json").write_text(json.dumps(damage))
        with pytest.raises((StateError, ArgumentError)):
            tokenfeed.Plan.load(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(StateError, match="no plan"):
        tokenfeed.Plan.load(tmp_path / "plan.json")
