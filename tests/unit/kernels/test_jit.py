"""Kernels loaded from the cache import nothing, and leave Numba as they found it for everybody else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenfeed
from tokenfeed.kernels.jit import inlined, kernel, step

READ = """
import sys
import numpy as np
import tokenfeed
from tokenfeed.kernels.permutation import permute
before = set(sys.modules)
samples = np.empty(3, np.int64)
permute(np.arange(3), 3, 0, 0, False, samples)
assert sorted(samples) == [0, 1, 2]
"""

FIRST = (
    READ
    + """
print(sum(permute.stats.cache_hits.values()))
print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))
"""
)

OWN_CODE = (
    READ
    + """
assert "stranger" not in sys.modules
import numba

@numba.njit
def solve(matrix, vector):
    return np.linalg.solve(matrix, vector)

assert np.allclose(solve(np.eye(3) * 2, np.ones(3)), 0.5)  # needs the BLAS of SciPy
assert sys.modules["stranger"].calls == 1
from tokenfeed.kernels import blocks
assert blocks.checksum_blocks(np.zeros(8, np.uint8), 8).size == 1  # compiled, of parts that were loaded
print("well")
"""
)


@inlined
def half(values, i):
    if values[i] < 0:
        raise ValueError("below 0")
    return values[i] / 2


@step
def halves(values):
    total = 0.0
    for i in range(values.size):
        total += half(values, i)
    return total


@kernel
def three_halves(values):
    return halves(values) + 2 * halves(values)


def test_parts_are_compiled_into_kernels_and_never_by_themselves():
    assert three_halves(np.arange(5)) == 15
    assert three_halves(np.arange(5, dtype=np.float32)) == 15
    with pytest.raises(ValueError, match="below 0"):
        three_halves(np.array([1, -1]))
    compiled = [*half.overloads.values(), *halves.overloads.values()]
    if compiled:  # else the kernel was in the cache
        assert len(compiled) == 4, "one for each type of array"
        assert {each.library.get_pointer_to_function(each.fndesc.llvm_func_name) for each in compiled} == {0}


def test_a_part_that_python_calls_is_a_kernel():
    assert halves(np.arange(5)) == 5
    assert half(np.arange(5), 3) == 1.5


@pytest.fixture
def run(tmp_path):
    """Runs code with a cache of its own, where a package is installed that extends Numba."""
    site = tmp_path / "site"
    shutil.copytree(
        Path(tokenfeed.__file__).parent, site / "tokenfeed", ignore=shutil.ignore_patterns("__pycache__", "ui")
    )
    (site / "stranger.py").write_text("calls = 0\n\n\ndef init():\n    global calls\n    calls += 1\n")
    info = site / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[numba_extensions]\ninit = stranger:init\n")

    def run(code):
        environment = {**os.environ, "PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_loading_a_kernel_imports_nothing_but_numba(run):
    assert run(FIRST)[0] == "0"
    hits, *imported = run(FIRST).split()
    assert hits == "1"
    assert set(imported) <= {"numba", "numpy"}


@pytest.mark.slow
def test_numba_code_of_others_finds_its_extensions(run):
    pytest.importorskip("scipy")
    run(READ)
    assert run(OWN_CODE) == "well"


@pytest.mark.slow
def test_a_numba_that_moved_its_parts_is_used_as_it_is(run):
    moved = "import numba.core.registry\ndel numba.core.registry.CPUDispatcher\n" + FIRST
    assert run(moved)[0] == "0"
    assert run(moved)[0] == "1"


@pytest.mark.slow
def test_long_compiling_is_said_once(run):
    said = "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
    impatient = "from tokenfeed.kernels import jit\njit._Watch.patience_seconds = 0.0\n"
    assert run(said + "from tokenfeed.kernels import jit\njit._Watch.patience_seconds = 1000.0\n" + READ) == ""
    assert run(said + impatient + READ) == "", "all is in the cache"
    lines = run(
        said
        + impatient
        + READ
        + "from tokenfeed.kernels import blocks\nblocks.checksum_blocks(np.zeros(8, np.uint8), 8)"
    )
    assert len(lines.splitlines()) == 1
    assert lines.startswith("tokenfeed is compiling its kernels")
