"""Every promise of docs/guarantees.md and SECURITY.md names the test that would fail if it were untrue."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["docs/guarantees.md", "SECURITY.md"]


def rows_of(text: str) -> list[str]:
    """The lines of all tables, without their heads."""
    tables = re.findall(r"^\|.*\n\|[-|: ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [row for table in tables for row in table.splitlines()]


def problems_of(row: str) -> list[str]:
    """What is wrong with the tests that a line names."""
    named = re.findall(r"`((?:tests|bench)/[\w/.]+|make [a-z-]+)(?:::(\w+))?[^`]*`", row)
    problems = [] if named else ["names no test"]
    for place, test in named:
        if place.startswith("make "):
            if f"\n{place.removeprefix('make ')}:" not in (ROOT / "Makefile").read_text():
                problems.append(f"{place}: there is no such target")
        elif not (ROOT / place).is_file():
            problems.append(f"{place}: there is no such file")
        elif place.startswith("tests/") and not test:
            problems.append(f"{place}: which of its tests?")
        elif test and test not in _tests_in(ROOT / place):
            problems.append(f"{place}: there is no {test}")
    return problems


def _tests_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_line_names_its_test(page):
    rows = rows_of((ROOT / page).read_text())
    assert len(rows) > 15
    assert {row[:60]: problems_of(row) for row in rows if problems_of(row)} == {}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| a promise | |", "names no test"),
        ("| a promise | `tests/e2e/test_promises.py` |", "which of its tests"),
        ("| a promise | `tests/e2e/test_promises.py::test_nothing` |", "there is no test_nothing"),
        ("| a promise | `tests/e2e/test_nowhere.py::test_x` |", "no such file"),
        ("| a promise | `make wishes` |", "no such target"),
    ],
)
def test_lines_without_a_test_are_found(row, problem):
    (found,) = problems_of(row)
    assert problem in found
