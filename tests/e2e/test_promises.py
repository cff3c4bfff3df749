"""Promises name the test that would fail if they were untrue; figures, the command that makes them, and a date."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["docs/guarantees.md", "SECURITY.md"]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers")]

import capabilities  # noqa: E402
import report  # noqa: E402

FIGURE = re.compile(
    r"\d[\d,.]*\s?(?:(?:M |k )?(?:tokens|MB|GB|batches|samples|windows|rows)/s|M tokens a second|µs|ms\b|ns an index"
    r"|times (?:as fast|its rate|the rate))"
)
COMMAND = re.compile(
    r"bench/[\w/]+\.py|make [a-z-]+|tests/[\w/]+\.py|scripts/base_train\.py|benchmarks/[\w-]+\.md|decisions/20"
)
DATE = re.compile(r"20\d\d-\d\d-\d\d|\d November 2026|benchmarks/peers\.md")
RULES = {("docs/observability.md", "What the loop waits for")}  # numbers that we chose, and did not measure


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


def without_origin(page: str, text: str) -> list[str]:
    """Sections with measured figures, and neither they nor the page's beginning tell a command and a date."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    beginning, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    found = []
    for section in (beginning, *sections):
        title = section.partition("\n")[0]
        origin = section if section is beginning else beginning + section
        if FIGURE.search(section) and not (COMMAND.search(origin) and DATE.search(origin)):
            found.append(title)
    return [title for title in found if (page, title) not in RULES]


def test_every_figure_has_a_command_and_a_date():
    """But those of decisions, which are records of their day."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"]
    texts = {page.relative_to(ROOT).as_posix(): page.read_text() for page in (ROOT / "README.md", *pages)}
    assert {name: without_origin(name, text) for name, text in texts.items() if without_origin(name, text)} == {}


def test_every_section_of_a_benchmark_names_its_command():
    for page in sorted((ROOT / "docs" / "benchmarks").glob("20*.md")):
        head, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
        assert DATE.search(head)
        assert [section.partition("\n")[0] for section in sections if not COMMAND.search(section)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# Page\n\nIt gives 9 M tokens/s.\n", ["# Page"]),
        ("# Page\n\n## Speed\n\n9 MB/s by `bench/x.py`\n", ["Speed"]),
        ("# Page\n\nBy `bench/x.py` on 2026-11-16.\n\n## Speed\n\n9 MB/s\n", []),
        ("# Page\n\n9 times as fast ([how](benchmarks/2026-11-16.md))\n", []),
        ("# Page\n\n```\n9 µs\n```\n", []),
    ],
)
def test_figures_without_an_origin_are_found(text, found):
    assert without_origin("docs/page.md", text) == found


def test_the_readme_tells_what_was_measured_beside_others():
    raw = json.loads((ROOT / "docs" / "benchmarks" / "peers.json").read_text())
    assert "\n".join(report.readme_table(raw)) in (ROOT / "README.md").read_text()


def test_what_each_system_can_do_has_something_behind_it():
    """A test of ours, or a public page; and the table in the documentation is this one."""
    lines = capabilities.capability_table({}, {})
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert {row[:60]: problems_of(row) for row in rows if "[**no**]" not in row and problems_of(row)} == {}
    page = (ROOT / "docs" / "benchmarks" / "peers.md").read_text()
    for what, _, theirs in capabilities.CAPABILITIES:
        assert f"| {what} |" in page
        assert set(theirs) < set(capabilities.SYSTEMS)
        assert all(word and link.startswith("https://") for word, link in theirs.values())
