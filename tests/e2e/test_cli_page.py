"""What `docs/observability.md` shows is run as it stands."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from tokenfeed import observe
from tokenfeed.loader.delivery import Stats
from tokenfeed.observe.watching import watch

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()


def test_the_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "51,200 tokens" in done.stdout
    assert "oop waits" in done.stdout
    last = observe.read_snapshots(tmp_path / "run.jsonl")[-1]
    assert last.ended
    assert last.stats.batches == 100
    assert watch(tmp_path / "run.jsonl")[0].state == "ended"


def test_every_field_is_on_the_page():
    for field in fields(Stats):
        assert f"`{field.name}`" in PAGE
