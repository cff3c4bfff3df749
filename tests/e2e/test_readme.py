"""What the README shows is run as it stands; its file tree is the one there is."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1300


def test_examples_run(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "https://example.org/" in done.stdout


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)|(?:src|srcset)=\"([^\"]+)", README):
        assert (ROOT / "".join(target)).exists(), target


def test_the_tree_names_every_package():
    tree = README.split("## Where things are")[1].split("```")[1]
    source = ROOT / "src" / "tokenfeed"
    packages = {f"{path.name}/" for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"}
    packages |= {f"{path.name}/" for path in ROOT.iterdir() if path.name in ("tests", "bench", "docs", "examples")}
    named = set(re.findall(r"([a-z]+/)", tree)) - {"src/", "tokenfeed/", "peers/"}
    assert named == packages
