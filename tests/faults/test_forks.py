"""Loaders in several threads, before and after a fork, in spawned processes, and in subinterpreters."""

import importlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from torch.utils.data import DataLoader

import tokenfeed
import tokenfeed.torch
from flaky_server import FlakyServer
from tiers import slow
from tokenfeed.errors import ForkError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

STEPS = 40


def make(path, **options):
    return tokenfeed.Loader(tokenfeed.open(path).windows(64), 4, rank=0, world_size=1, **options)


def content(batch):
    return batch.samples.tolist(), batch.tokens.tobytes()


@pytest.fixture
def expected(store_path):
    loader = make(store_path, prefetch=0)
    return [content(next(loader)) for _ in range(STEPS)]


@pytest.mark.parametrize("prefetch", [0, 1, 8])
@pytest.mark.parametrize("before", [0, 1, 7])
def test_both_sides_of_a_fork_go_on(store_path, expected, prefetch, before):
    """The child has none of the threads; it starts after what its parent had delivered."""
    loader = make(store_path, prefetch=prefetch)
    for step in range(before):
        assert content(next(loader)) == expected[step]
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        right = all(content(next(loader)) == each for each in expected[before:])
        loader.close()
        os._exit(0 if right else 1)
    assert [content(next(loader)) for _ in range(STEPS - before)] == expected[before:]
    assert os.waitpid(child, 0)[1] == 0
    loader.close()


def test_remote_data_in_a_forked_child_is_an_error_that_names_the_way_out(store_path, expected):
    """Where the parent had opened some. The child still reads local files, and a spawned one reads everything."""
    with FlakyServer() as server:
        server.put_folder(store_path)
        loaders = [make(server.url(""), prefetch=prefetch) for prefetch in (0, 2)]
        assert [content(next(loader)) for loader in loaders] == [expected[0]] * 2
        view = tokenfeed.open(server.url("")).windows(64)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            refused = 0
            try:
                acts = [partial(next, loader) for loader in loaders]
                acts += [lambda: view[0], lambda: view[-1], lambda: tokenfeed.open(server.url(""))]
                for act in acts:
                    try:
                        act()
                    except ForkError as error:
                        refused += "spawn" in str(error) and "after the fork" in str(error)
                refused *= content(next(make(store_path, prefetch=2))) == expected[0]
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert [content(next(loader)) for loader in loaders] == [expected[1]] * 2
        batches = DataLoader(Opened(server.url("")), num_workers=1, multiprocessing_context="spawn", sampler=range(3))
        assert [row.tolist() for batch in batches for row in batch] == [view[i].tokens.tolist() for i in range(3)]


def test_forks_at_any_moment(store_path, expected):
    """While threads read, and so hold whatever locks there are."""
    loader = make(store_path, prefetch=4, threads=3)
    children = []
    for step in range(STEPS - 2):
        assert content(next(loader)) == expected[step]
        if step % 2 == 0:
            children.append(os.fork())
            if children[-1] == 0:
                signal.alarm(60)
                os._exit(0 if [content(next(loader)) for _ in range(2)] == expected[step + 1 : step + 3] else 1)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    loader.close()


def test_a_forked_child_leaves_by_the_front_door(store_path):
    """`sys.exit` runs what was registered for the end; none of it waits for threads that are not there."""
    code = f"""
import os, sys, tokenfeed
loader = tokenfeed.Loader(tokenfeed.open({str(store_path)!r}).windows(64), 2, prefetch=8)
for _ in range(3):
    next(loader)
    child = os.fork()
    if not child:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, timeout=100, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["fork", *slow("spawn")])
def test_the_views_of_a_map_style_dataset(store_path, method):
    """Any worker may read a view: it has no state."""
    view = tokenfeed.open(store_path).windows(64)
    whole = [Windows(view)[index].tolist() for index in range(24)]
    dataset = Windows(view) if method == "fork" else Opened(store_path)
    batches = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context=method, sampler=range(24))
    assert [row for batch in batches for row in batch.tolist()] == whole


class Windows:
    def __init__(self, view):
        self.view = view

    def __len__(self):
        return len(self.view)

    def __getitem__(self, index):
        return self.view[index].tokens.astype("int64")


class Opened(Windows):
    """Opens the store where it is used: what is spawned gets a path."""

    def __init__(self, path):
        self.path = path

    @property
    def view(self):
        return tokenfeed.open(self.path).windows(64)


def test_two_loaders_in_two_threads(store_path, expected):
    """Over one store, each with threads of its own."""
    view = tokenfeed.open(store_path).windows(64)

    def load(prefetch):
        with tokenfeed.Loader(view, 4, rank=0, world_size=1, prefetch=prefetch, threads=2) as loader:
            return [content(next(loader)) for _ in range(STEPS)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(load, range(4))) == [expected] * 4


def test_subinterpreters_are_refused():
    """Numba would wait for ever with the first kernel; so the import says no, and why."""
    name = next(each for each in ("_interpreters", "_xxsubinterpreters") if has_module(each))
    call = "exec" if name == "_interpreters" else "run_string"
    code = f"""
import {name} as interpreters
other = interpreters.create()
try:
    print(interpreters.{call}(other, "import warnings; warnings.simplefilter('ignore'); import tokenfeed"))
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "InterpreterError" in done.stdout, done.stdout + done.stderr
    assert "use the main interpreter, or another process" in done.stdout


def has_module(name):
    try:
        return bool(importlib.import_module(name))
    except ImportError:
        return False
