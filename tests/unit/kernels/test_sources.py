"""Machine code that is kept on disk: used again as long as no source of a kernel has changed, not just its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokenfeed

CHECK = """
import numpy as np
from tokenfeed.kernels.blocks import checksum_blocks
print(int(checksum_blocks(np.zeros(8, np.uint8), 8)[0]), sum(checksum_blocks.stats.cache_hits.values()))
"""


def run(package):
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={"PYTHONPATH": str(package), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
def test_a_change_of_what_a_kernel_calls_is_noticed(tmp_path):
    sources = Path(tokenfeed.__file__).parent
    shutil.copytree(sources, tmp_path / "tokenfeed", ignore=shutil.ignore_patterns("__pycache__"))
    first, hits = run(tmp_path)
    assert hits == 0
    assert run(tmp_path) == [first, 1]
    other = tmp_path / "tokenfeed" / "kernels" / "checksum.py"
    text = other.read_text()
    assert "def block_checksum(" in text
    other.write_text(
        text.replace(
            "def block_checksum(", "def block_checksum(data):\n    return np.uint64(17)\n\n\n@inlined\ndef _real("
        )
    )
    assert run(tmp_path) == [17, 0]
    assert run(tmp_path) == [17, 1]
