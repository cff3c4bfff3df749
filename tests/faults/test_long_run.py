"""Nothing grows while a loader runs: 8 s here, an hour with `LONG_SECONDS=3600`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.long_run import judge

SCRIPT = Path(__file__).parents[1] / "simulation" / "long_run.py"
SECONDS = float(os.environ.get("LONG_SECONDS", "8"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_memory_descriptors_and_threads_stay_flat():
    every = max(0.25, min(60, SECONDS / 24))
    command = [sys.executable, str(SCRIPT), "--seconds", str(SECONDS), "--every", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 100)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["verdict"] == "flat"
    assert verdict["batches"] > 50 * SECONDS
    assert verdict["descriptors"][1] < 200  # 96 shards, of which two loaders keep 64 open each


def looks(**growing):
    """Twenty looks, a minute apart, at a process in which some things grow by so much a look."""
    flat = {"bytes": 200 << 20, "descriptors": 80, "threads": 5}
    return [
        {"seconds": 60.0 * number, "batches": number}
        | {name: value + growing.get(name, 0) * number for name, value in flat.items()}
        for number in range(1, 21)
    ]


@pytest.mark.parametrize("name", ["bytes", "descriptors", "threads"])
def test_what_grows_is_noticed(name):
    assert judge(looks())["verdict"] == "flat"
    assert name in judge(looks(**{name: 400 << 10 if name == "bytes" else 1}))["verdict"]
