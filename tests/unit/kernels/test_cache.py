"""The kernel cache where the package folder is read-only, and where nothing can be written at all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokenfeed

CODE = """
import ctypes, sys
if sys.platform == "linux":  # even root shall not write to read-only folders: give up all capabilities
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, none) == 0
from tokenfeed.kernels import blocks, jit
assert jit.address_of(blocks.read_through) != 0
print(sum(blocks.read_through.stats.cache_misses.values()))
"""


@pytest.fixture
def readonly(tmp_path):
    """Runs CODE with a copy of the package that may not be written to."""
    package = tmp_path / "readonly" / "tokenfeed"
    shutil.copytree(Path(tokenfeed.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    home = tmp_path / "home"
    home.mkdir()
    for path in [package.parent, package, *package.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def run() -> str:
        environment = {"PYTHONPATH": str(package.parent), "HOME": str(home), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-B", "-c", CODE]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    yield run, home
    for path in [package.parent, package, *package.rglob("*")]:
        path.chmod(0o755)


def test_second_process_does_not_compile_again(readonly):
    run, home = readonly
    assert run() == "1"
    assert list(home.rglob("*.nbc"))
    assert run() == "0"


@pytest.mark.slow
def test_kernels_work_where_no_cache_can_be_written(readonly):
    run, home = readonly
    home.chmod(0o555)
    run()
    assert not list(home.rglob("*"))
