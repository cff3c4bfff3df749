"""Every script that `make bench` names still runs: in its quick form, which holds no figure against a bar."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = re.findall(r"bench/(\w+)\.py", re.search(r"(?ms)^bench:.*?^$", (ROOT / "Makefile").read_text())[0])


@pytest.mark.slow
@pytest.mark.xdist_group("bench")  # they make the data that they share
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_quick_form_runs(script):
    command = [sys.executable, ROOT / "bench" / f"{script}.py", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_make_names_scripts_that_exist():
    assert len(SCRIPTS) > 10
    assert all((ROOT / "bench" / f"{script}.py").exists() for script in SCRIPTS)
