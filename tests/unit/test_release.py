"""What a release consists of fits together: versions, workflows, targets, the size of the wheel."""

import re
import tomllib
import zlib
from pathlib import Path

import pytest
import yaml

import tokenfeed

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version_everywhere():
    assert re.search(rf"^## {re.escape(tokenfeed.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == tokenfeed.__version__


def test_there_are_workflows():
    assert {path.stem for path in WORKFLOWS} == {"test", "nightly", "release", "docs"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_what_there_is(path):
    """Every `make` target and every script that they run is here."""
    workflow = yaml.safe_load(path.read_text())
    assert True in workflow, "the word `on`, which YAML takes for a truth value"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    for job in workflow["jobs"].values():
        assert all("run" in step or "uses" in step for step in job["steps"])
    for command in commands:
        for words in re.findall(r"\bmake ([a-z -]+)", command):
            assert set(words.split()) <= targets, command
        for script in re.findall(r"(\.ci/\w+)", command):
            assert (ROOT / script).exists(), command


def test_python_versions_agree():
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["install"]["strategy"]
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert matrix["matrix"]["python"] == [*named, "3.14"]  # which is tried there first: no interpreter was at hand


def test_forms_for_issues_can_be_read():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_wheel_stays_small():
    """At most 1 MB; `make install-check` looks at the wheel itself."""
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(len(zlib.compress(path.read_bytes(), 6)) + 200 for path in files) < 1_000_000


def test_extras_say_what_they_add():
    """`tokenfeed doctor` names the extra of everything optional that pyproject.toml has one for."""
    from tokenfeed.cli.doctor import check_all

    extras = PROJECT["optional-dependencies"]
    assert {"text", "remote", "ui", "all"} <= set(extras)
    names = {each.name for each in check_all()}
    assert {"pyarrow", "orjson", "tiktoken", "rustbpe", "obstore", "psutil"} <= names


def test_the_container_copies_what_there_is():
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            *sources, _ = line.split()[1:]
            assert all((ROOT / source).exists() for source in sources), line
    assert (ROOT / "examples" / "demo.py").exists()
