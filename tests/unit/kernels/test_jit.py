"""Kernels loaded from the cache import nothing, and leave Numba as they found it for everybody else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokenfeed

READ = """
import sys
import numpy as np
import tokenfeed
from tokenfeed.kernels import checksum, permutation
before = set(sys.modules)
assert checksum.checksum(b"abc") == "78af5f94892f3950"
out = np.empty(4, np.int64)
permutation.permute(np.arange(4), 4, 0, 0, False, out)
assert sorted(out) == [0, 1, 2, 3]
"""

FIRST = READ + "print(sum(checksum._absorb.stats.cache_hits.values()))"

IMPORTED = READ + "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"

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
    assert run(FIRST) == "0"
    assert run(FIRST) == "1"
    assert set(run(IMPORTED).split()) <= {"numba", "numpy"}


@pytest.mark.slow
def test_numba_code_of_others_finds_its_extensions(run):
    pytest.importorskip("scipy")
    run(READ)
    assert run(OWN_CODE) == "well"


@pytest.mark.slow
def test_a_numba_that_moved_its_parts_is_used_as_it_is(run):
    moved = "import numba.core.registry\ndel numba.core.registry.CPUDispatcher\n" + FIRST
    assert run(moved) == "0"
    assert run(moved) == "1"


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
