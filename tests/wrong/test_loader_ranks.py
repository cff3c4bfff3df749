"""Ranks that should be alike and are not, and processes that share an array. What is wrong today.

What a later design calls by another name is called in one place: the functions at the top.
"""

import re
import subprocess
import sys
import time

import numpy as np
import pytest

import command_line
import tokenfeed
import torchrun
from servers import free_port
from tokenfeed.observe import publish, read_snapshots
from wrong.small_stores import SIZES, load, mix, write_sources, write_store

PATIENCE = 60
"""Seconds until a test gives up on what must happen, on however busy a machine."""


def digest(loader):
    """What all ranks have in common: plan, data and progress."""
    return loader.digest


def check_ranks():
    """What compares the ranks of torch.distributed, and raises on all of them where they differ."""
    return tokenfeed.torch.check_ranks


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def other_copy(tmp_path_factory):
    """Source a with other tokens: another copy of the data, as one of the hosts may have it."""
    return write_store(tmp_path_factory.mktemp("copy") / "a", SIZES["a"], first=1)


def start(views, copy, how, **options):
    """Two ranks that train on other rows from step 3 on, or from the first."""
    ranks = [
        load(mix({**views, "a": copy} if how == "copy" and rank == 1 else views, a=1, b=1), rank=rank, **options)
        for rank in (0, 1)
    ]
    for _ in range(3):
        for loader in ranks:
            next(loader)
    if how == "change":
        ranks[0].amend(weights={"a": 1, "b": 4})  # as under `if rank == 0`
    for _ in range(3):
        for loader in ranks:
            next(loader)
    return ranks


def says_that_ranks_differ(text):
    return re.search(r"(?i)\branks?\b[^.]*\bdiffers?\b|\bdiffers?\b[^.]*\branks?\b", text) is not None


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 4: nothing notices that one rank trains on other rows"
)
@pytest.mark.parametrize("how", ["change", "copy"])
@pytest.mark.parametrize("command", ["top", "trace"])
def test_ranks_that_differ_are_named(command, how, views, other_copy, tmp_path):
    """`top` and `trace` say that ranks differ: one was changed alone, or reads another copy of the data."""
    run, stats = tmp_path / "run.jsonl", tmp_path / "run.stats.jsonl"
    ranks = start(views, other_copy, how, world_size=2, run=run)
    publishers = [publish(loader, stats, every=0.02) for loader in ranks]
    deadline = time.monotonic() + PATIENCE
    while any([each.rank for each in read_snapshots(stats)].count(rank) < 3 for rank in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for loader in ranks:
        loader.close()
    done = command_line.run(*(("top", stats, "--once") if command == "top" else ("trace", run, "--step", 4)))
    for each in publishers:
        each.close()
    assert done.returncode == 0, done.stderr
    assert says_that_ranks_differ(done.stdout), done.stdout[:2000]


@pytest.mark.xfail(strict=True, raises=AttributeError, reason="floor 4: a loader has no digest to compare ranks by")
def test_the_digest_of_a_loader_tells_ranks_apart(views, other_copy):
    """The digest of a loader is the same on all ranks, and another one where plan, data or progress differ."""
    alike = start(views, other_copy, "not at all", world_size=2)
    assert digest(alike[0]) == digest(alike[1])
    assert 0 <= digest(alike[0]) < 1 << 64
    for how in ("change", "copy"):
        ranks = start(views, other_copy, how, world_size=2)
        assert digest(ranks[0]) != digest(ranks[1])
    next(alike[0])
    assert digest(alike[0]) != digest(alike[1])


CHECKED = """
import sys
import torch.distributed
import tokenfeed, tokenfeed.torch

torch.distributed.init_process_group("gloo")
views = {name: tokenfeed.open(f"{sys.argv[1]}/{name}").windows(4) for name in "ab"}
loader = tokenfeed.Loader(tokenfeed.mix({name: (view, 1) for name, view in views.items()}), 4)
next(loader)
tokenfeed.torch.check_ranks(loader)
if loader.rank == 0:
    loader.amend(weights={"a": 1, "b": 4})
try:
    tokenfeed.torch.check_ranks(loader)
except tokenfeed.errors.TokenfeedError as error:
    print("refused", error)
torch.distributed.destroy_process_group()
"""


@pytest.mark.xfail(strict=True, raises=AttributeError, reason="floor 4: nothing compares ranks")
def test_ranks_are_compared_when_asked(views, tmp_path):
    """Ranks of torch.distributed that differ are refused on every rank, and those that agree are not."""
    check_ranks()
    script = tmp_path / "script.py"
    script.write_text(CHECKED)
    folder = str(views["a"].paths[0]).rpartition("/")[0]
    told = torchrun.run(2, script, folder, output=tmp_path / "output")
    assert told.count("refused") == 2, told


GLOBAL = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
path, address, process = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, 2, process)
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import tokenfeed, tokenfeed.jax

sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
loader = tokenfeed.Loader(tokenfeed.open(path).documents(), 2, **tokenfeed.jax.data_parallel(sharding))
try:
    shapes = [next(batches).inputs.shape for batches in [tokenfeed.jax.to_arrays(loader, sharding)] for _ in range(5)]
    print("told", shapes, flush=True)
except tokenfeed.errors.TokenfeedError:
    print("told", "refused", flush=True)
"""


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="floor 4: every process pads documents to the longest of its own"
)
def test_documents_have_one_shape_in_all_processes(tmp_path):
    """Documents as global arrays of JAX have one shape in all processes, or are refused in all."""
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, spans={"documents": "json"}) as writer:
        for number in range(40):
            writer.append({"tokens": np.arange(rng.integers(2, 60))}, documents=number)
    command = [sys.executable, "-c", GLOBAL, str(tmp_path / "store"), f"localhost:{free_port()}"]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    told = [[line for line in output.splitlines() if line.startswith("told")] for output in outputs]
    if not all(len(lines) == 1 for lines in told):
        pytest.fail("\n".join(outputs))
    assert told[0] == told[1]
