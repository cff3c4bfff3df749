"""Half an epoch by the real Megatron-core and the real OLMo-core, the rest by us.

They need Python packages of their own, so they may be in another environment: ADOPTION_PYTHON names its interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adopting import RUNS, check

PACKAGES = {
    "megatron": ("megatron-core", "megatron.core.datasets.gpt_dataset"),
    "olmo": ("ai2-olmo-core", "olmo_core.data"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_half_an_epoch_by_the_real_one(kind, tmp_path):
    python = os.environ.get("ADOPTION_PYTHON", sys.executable)
    package, module = PACKAGES[kind.partition("-")[0]]
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(
            f"{package} cannot be imported by {python}; ADOPTION_PYTHON may name one that has it. {found.stderr}"
        )
    script = Path(__file__).parents[1] / "half_epochs.py"
    subprocess.run([python, script, kind, tmp_path], check=True, capture_output=True)
    check(kind, tmp_path)
