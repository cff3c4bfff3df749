"""Packed rows with document-masked attention are what each document gives alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch/document_mask.py"


@pytest.mark.slow
def test_document_mask(tmp_path):
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    differences = re.findall(r"max abs difference from each document alone (\S+), loss", done.stdout)
    assert len(differences) == 2
    assert all(0 <= float(difference) < 1e-4 for difference in differences)
    assert len(EXAMPLE.read_text().splitlines()) < 100
