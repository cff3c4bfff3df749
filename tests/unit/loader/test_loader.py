"""The loader: batches that are held, errors, clean ends, states of other plans, stats, launchers."""

import gc
import json
import math
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tokenfeed
from clock import Clock
from opening import open_store
from tokenfeed.errors import ArgumentError, MissingError, PlanMismatchError, ReadError, StateError
from tokenfeed.loader.launch import find_rank


@pytest.fixture
def store(store_path):
    return tokenfeed.open(store_path)


@pytest.fixture
def windows(store):
    return store.windows(64)


def working() -> set[threading.Thread]:
    """Threads that read ahead."""
    return {thread for thread in threading.enumerate() if thread.name == "tokenfeed"}


def test_a_batch(windows, plain):
    loader = tokenfeed.Loader(windows, batch_size=4, seed=3, rank=1, world_size=3)
    inputs, targets = batch = next(iter(loader))
    assert batch.samples.tolist() == [1, 4, 7, 10]
    order = tokenfeed.Permutation(len(windows), seed=3)
    for row, sample in enumerate(batch.samples):
        start = order[sample] * 64
        np.testing.assert_array_equal(inputs[row], plain.tokens[start : start + 64])
        np.testing.assert_array_equal(targets[row], plain.tokens[start + 1 : start + 65])
    assert batch.epoch == 0
    assert batch.inputs.dtype == np.uint16
    assert batch.state == loader.state_dict()
    assert batch.state["samples"] == 12
    assert batch.column("frame").shape == (4, 65, 2, 3)
    assert len(batch.spans["documents"]) == 4


@pytest.mark.parametrize("prefetch", [0, 1, 4, 9])
def test_a_batch_that_is_held_never_changes(windows, prefetch):
    loader = tokenfeed.Loader(windows, batch_size=3, prefetch=prefetch)
    held = [next(loader) for _ in range(40)]
    copies = [batch.tokens.copy() for batch in held]
    rows = [batch.inputs[0] for batch in held[::7]]
    kept = [row.copy() for row in rows]
    for _ in range(40):
        next(loader)
    for batch, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(batch.tokens, copy)
    del held, batch
    for _ in range(40):
        next(loader)
    for row, copy in zip(rows, kept, strict=True):  # an array alone keeps its memory
        np.testing.assert_array_equal(row, copy)


def test_memory_is_used_again(windows):
    loader = tokenfeed.Loader(windows, batch_size=3, prefetch=4)
    places = {next(loader).tokens.__array_interface__["data"][0] for _ in range(300)}
    assert len(places) < 40


def test_spans_are_read_ahead_with_the_batch(store, plain):
    loader = tokenfeed.Loader(store.windows(64, spans=["documents"]), batch_size=2, prefetch=4)
    for batch in (next(loader) for _ in range(9)):
        for row, index in enumerate(batch.indices):
            spans = [(span.number, span.payload) for span in batch.spans["documents"][row]]
            expected = plain.touched("documents", index * 64, index * 64 + 65)
            assert spans == [(number, payload) for number, _, _, payload in expected]


@pytest.mark.parametrize("prefetch", [0, 4])
def test_documents(store, plain, prefetch):
    loader = tokenfeed.Loader(store.documents(columns=["frame"]), batch_size=5, epochs=1, prefetch=prefetch)
    seen = []
    for batch in loader:
        for document in (batch[row] for row in range(len(batch))):
            np.testing.assert_array_equal(document.tokens, plain.documents[document.index].tokens)
            assert document.column("frame").shape == (len(document.tokens), 2, 3)
            assert document.payload == plain.documents[document.index].payload
            seen.append(document.index)
    assert sorted(seen) == list(range(120))


def test_collate_runs_in_the_background_and_its_result_comes_along(windows):
    names = set()

    def collate(rows):
        names.add(threading.current_thread().name)
        return {"sum": rows.inputs.sum(axis=1)}

    loader = tokenfeed.Loader(windows, batch_size=3, collate=collate)
    batch = next(loader)
    np.testing.assert_array_equal(batch.data["sum"], batch.inputs.sum(axis=1))
    assert names == {"tokenfeed"}


@pytest.mark.parametrize("prefetch", [0, 4])
def test_an_error_while_reading_reaches_the_training_loop(store_path, prefetch):
    loader = tokenfeed.Loader(open_store(store_path, open_files=0).windows(64), 2, prefetch=prefetch)
    delivered = [next(loader).samples.tolist() for _ in range(3)]
    folder = store_path / "part-00000"
    folder.rename(store_path / "gone")
    with pytest.raises(ReadError, match="part-00000") as caught:
        for batch in loader:
            delivered.append(batch.samples.tolist())
    assert any(entry.name == "read_windows" for entry in caught.traceback)  # where it happened
    (store_path / "gone").rename(folder)
    delivered.append(next(loader).samples.tolist())  # it goes on where it was
    assert [sample for samples in delivered for sample in samples] == list(range(len(delivered) * 2))


def test_threads_end_when_the_loader_is_collected_or_closed(windows):
    others = working()  # of loaders that other tests left behind
    loader = tokenfeed.Loader(windows, 2, prefetch=4, threads=3)
    next(loader)
    assert len(working() - others) == 3
    loader.close()
    assert not working() - others
    next(loader)
    del loader
    gc.collect()
    assert not working() - others


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("for _ in range(3): next(loader)", 0),
        ("next(loader); 1 / 0", 1),
        pytest.param("next(loader); raise SystemExit(7)", 7, marks=pytest.mark.slow),
        pytest.param(
            "next(loader); import os, signal; os.kill(os.getpid(), signal.SIGINT)",
            -signal.SIGINT,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import threading; threading.Thread(target=lambda: next(loader)).start()", 0, marks=pytest.mark.slow
        ),
        ("batch = next(loader); pid = os.fork(); sys.exit(0) if not pid else sys.exit(os.waitpid(pid, 0)[1])", 0),
    ],
)
def test_no_hang_at_exit(store_path, code, status):
    loader = f"tokenfeed.Loader(tokenfeed.open({str(store_path)!r}).windows(64), 2)"
    code = f"import os, sys, tokenfeed\nloader = {loader}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=100)
    assert done.returncode == status, done.stderr


def test_ctrl_c_while_waiting_for_data(store_path):
    """The reading thread is stuck; the training loop can still be interrupted."""
    code = f"""
import os, signal, threading, time, tokenfeed
def stuck(rows):
    time.sleep(1000)
loader = tokenfeed.Loader(tokenfeed.open({str(store_path)!r}).windows(64), 2, collate=stuck)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    next(loader)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True)
    assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"seed": 1}, "seed 0, this plan has 1"),
        ({"length": 32}, r"view .windows\(64\)., this plan has .windows\(32\)."),
        ({"extra": 0}, "view .*extra=0"),
        ({"shuffle": False}, "seed 0, this plan has None"),
        ({"mask": [5]}, "different amendments"),
    ],
)
def test_a_state_of_another_plan(store, options, part):
    state = next(tokenfeed.Loader(store.windows(64), 8)).state
    view = store.windows(options.pop("length", 64), extra=options.pop("extra", 1))
    with pytest.raises(PlanMismatchError, match=part):
        tokenfeed.Loader(view, 8, **options).load_state_dict(state)


@pytest.mark.parametrize(
    "state",
    [None, [], "x", {}, {"version": 2}, {"version": 1}, {"version": 1, "samples": -1, "plan": {}},
     {"version": 1, "samples": 1.0, "plan": {}}, {"version": 1, "samples": 1, "plan": None}],
)  # fmt: skip
def test_what_is_no_state(windows, state):
    with pytest.raises(StateError):
        tokenfeed.Loader(windows, 8).load_state_dict(state)


def test_a_store_that_grew_since_the_checkpoint(tmp_path):
    def write():
        with tokenfeed.Writer(tmp_path, mode="append", columns={"tokens": "u1"}) as writer:
            writer.append({"tokens": range(200)})

    write()
    state = next(tokenfeed.Loader(tokenfeed.open(tmp_path).windows(10), 2)).state
    assert tokenfeed.Loader(tokenfeed.open(tmp_path).windows(10), 2).plan.accept(state)[1] == 2
    write()
    with pytest.raises(PlanMismatchError, match="data"):
        tokenfeed.Loader(tokenfeed.open(tmp_path).windows(10), 2).load_state_dict(state)


def test_the_same_data_elsewhere_is_the_same(store_path, tmp_path):
    import shutil

    state = next(tokenfeed.Loader(tokenfeed.open(store_path).windows(64), 2)).state
    shutil.copytree(store_path, tmp_path / "elsewhere")
    tokenfeed.Loader(tokenfeed.open(tmp_path / "elsewhere").windows(64), 2).load_state_dict(state)


def test_the_state_is_small_and_plain(windows):
    state = next(tokenfeed.Loader(windows, 8)).state
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) <= 300


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"batch_size": -1}, {"batch_size": 1.5}, {"batch_size": True}, {"batch_size": {}},
     {"batch_size": {0: 1}}, {"rank": 1}, {"world_size": 2}, {"rank": 2, "world_size": 2},
     {"rank": -1, "world_size": 2}, {"rank": 0, "world_size": 0}, {"prefetch": -1}, {"threads": 0}, {"epochs": 0},
     {"seed": -1}, {"seed": 2**63}],
)  # fmt: skip
def test_bad_arguments(windows, options):
    with pytest.raises(ArgumentError):
        tokenfeed.Loader(windows, **{"batch_size": 2, **options})


def test_tiny_data(tmp_path):
    with tokenfeed.Writer(tmp_path, columns={"tokens": "u1"}) as writer:
        writer.append({"tokens": range(10)})
    store = tokenfeed.open(tmp_path)
    with pytest.raises(ArgumentError, match="0 samples"):
        tokenfeed.Loader(store.windows(10), 2)
    one = next(tokenfeed.Loader(store.windows(9), 5))  # a batch larger than the data
    assert one.inputs[:, 0].tolist() == [0] * 5
    assert one.epochs.tolist() == [0, 1, 2, 3, 4]


def test_stats(windows):
    loader = tokenfeed.Loader(windows, 4, prefetch=2)
    assert loader.stats().wait_fraction == 0
    for _ in range(10):
        next(loader)
    while loader.stats().queued < 2:
        time.sleep(0.01)
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (10, 40)
    assert stats.bytes >= 40 * 65 * 2
    assert 0 < stats.wait_seconds < stats.wall_seconds
    assert 0 < stats.wait_fraction < 1
    assert stats.queued == 2
    assert stats.read_seconds > 0
    assert stats.headroom == pytest.approx((stats.wall_seconds - stats.wait_seconds) * 2 / stats.read_seconds)


def test_headroom_of_a_loop_that_waits(windows, monkeypatch):
    clock = Clock()
    for module in ("delivery", "reading"):
        monkeypatch.setattr(f"tokenfeed.loader.{module}.time", clock.module("perf_counter"))
    with tokenfeed.Loader(windows, 4, threads=1, collate=lambda _: clock.work(0.02)) as loader:
        assert loader.stats().headroom == math.inf
        for _ in range(20):
            next(loader)
        assert loader.stats().headroom == pytest.approx(0)
    with tokenfeed.Loader(windows, 4, threads=1, collate=lambda _: clock.advance(0.001)) as loader:
        for _ in range(5):
            next(loader)
            while loader.stats().queued < 1:
                time.sleep(0.001)
            clock.advance(0.02)
        assert loader.stats().headroom > 2


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
    ],
)
def test_launchers(environment, expected):
    assert find_rank(None, None, environment) == expected
    assert find_rank(5, 9, environment) == (5, 9)


@pytest.mark.parametrize(("name", "missing"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_half_of_what_a_launcher_sets(name, missing):
    """Every process took itself for the only one."""
    with pytest.raises(ArgumentError, match=f"{name}=1 and no {missing}.*Set both, or give rank= and world_size="):
        find_rank(None, None, {name: "1"})
    assert find_rank(1, 2, {name: "1"}) == (1, 2)
    assert find_rank(None, None, {name: "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}) == (1, 2)


def test_a_launcher_that_talks_nonsense():
    with pytest.raises(ArgumentError, match="WORLD_SIZE"):
        find_rank(None, None, {"RANK": "x", "WORLD_SIZE": "1"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number of at least 1"),
        ({"batch_size": "32"}, "batch_size is '32'; it must be a whole number"),
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be a whole number"),
        ({"prefetch": -1}, "prefetch is -1; it must be a whole number of at least 0"),
        ({"prefetch": 1.5}, "prefetch is 1.5; it must be a whole number of at least 0"),
        ({"threads": 0}, "threads is 0; it must be a whole number of at least 1"),
        ({"epochs": 0}, "epochs is 0; it must be a whole number of at least 1"),
        ({"epochs": 0.5}, "epochs is 0.5; it must be a whole number of at least 1"),
        ({"seed": "0"}, "seed"),
        ({"rank": 2, "world_size": 2}, "rank is 2 and world_size is 2; ranks are 0 to 1"),
        ({"rank": -1, "world_size": 2}, "rank is -1; it must be a whole number of at least 0"),
        ({"rank": "0", "world_size": 2}, "rank is '0'; it must be a whole number of at least 0"),
        ({"rank": 0, "world_size": 0}, "world_size is 0; it must be a whole number of at least 1"),
        ({"rank": 0}, "rank is 0, world_size is None; give both or neither"),
    ],
)
def test_arguments_that_cannot_be_meant(windows, arguments, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        tokenfeed.Loader(windows, **{"batch_size": 4, **arguments})


def test_what_is_no_view_is_refused(store, store_path, windows):
    for given, message in (
        (str(store_path), f"not a path: Loader(tokenfeed.open({str(store_path)!r}).windows(2048), 32)"),
        (store_path, "not a path: Loader(tokenfeed.open("),
        (store, "a view of a store, which says what one sample is: store.windows(2048), store.documents()"),
        ([windows, windows], "or a mixture of several: Loader(tokenfeed.mix({"),
        ({"web": windows}, "or a mixture of several: Loader(tokenfeed.mix({"),
        (None, "a Loader takes a view such as store.windows(2048), or tokenfeed.mix(…), not None"),
    ):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            tokenfeed.Loader(given, 4)


def test_steps_per_epoch(windows):
    endless = tokenfeed.Loader(windows, 7)
    assert endless.steps_per_epoch == len(tokenfeed.Loader(windows, 7, epochs=1)) == -(-len(windows) // 7)
    halves = [tokenfeed.Loader(windows, 7, epochs=2, rank=rank, world_size=2) for rank in range(2)]
    assert {loader.steps_per_epoch for loader in halves} == {-(-len(windows) // 14)}
    assert {len(loader) for loader in halves} == {sum(1 for _ in halves[0])} == {-(-2 * len(windows) // 14)}
    with pytest.raises(TypeError, match="no end, and so no length: epochs=1 makes it finite"):
        len(endless)
    with pytest.raises(ArgumentError, match="epochs of their own"):
        assert tokenfeed.Loader(tokenfeed.mix({"a": (windows, 1), "b": (windows, 1)}), 4).steps_per_epoch


def test_a_loader_says_how_far_it_is(windows):
    loader = tokenfeed.Loader(windows, 4, epochs=1)
    next(loader)
    assert repr(loader).endswith(f"batch_size=4, rank 0 of 1, 4 of {len(windows):,} samples delivered)")
    assert repr(tokenfeed.Loader(windows, 4)).endswith("rank 0 of 1, 0 samples delivered)")


def test_missing_columns(windows):
    batch = next(tokenfeed.Loader(windows, 2))
    with pytest.raises(MissingError):
        batch.column("nothing")


def test_the_rank_of_a_process_group():
    """With `mp.spawn`, no variable says which rank a process is: every one had all of the data."""
    script = (
        "import sys, torch.distributed as dist\n"
        "from tokenfeed.loader.launch import find_rank\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "assert find_rank(None, None, {}) == (0, 1)\n"
        "dist.get_rank, dist.get_world_size = lambda: 3, lambda: 8\n"
        "assert find_rank(None, None, {}) == (3, 8)\n"
        "assert find_rank(None, None, {'RANK': '1', 'WORLD_SIZE': '2'}) == (1, 2)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
