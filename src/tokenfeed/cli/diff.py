"""`tokenfeed diff RUN RUN`: from which step on two runs differ, and why."""

import json
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.options import Json
from tokenfeed.cli.trace import RunPath
from tokenfeed.runs.comparison import Comparison, Difference, compare
from tokenfeed.runs.run import Run

__all__ = ["diff"]


def diff(first: RunPath, second: RunPath, as_json: Json = False) -> None:
    """Show from which step on two runs deliver other samples, and why. Exit status: 0 if they never differ, else 1."""
    found = compare(Run(first), Run(second))
    if as_json:
        print(json.dumps({"runs": [str(first), str(second)], "same": found.same, **asdict(found)}, indent=2))
    else:
        _show(found)
    raise typer.Exit(0 if found.same else 1)


def _show(found: Comparison) -> None:
    if found.division_step is not None:
        console.print(Text(f"From step {found.division_step:,} on: the same samples, divided differently among ranks."))
        _show_parts(found.division)
    if found.step is not None and found.samples is not None:
        first, second = found.samples
        console.print(Text(f"From step {found.step:,} on: other samples, first at {first:,} and {second:,}."))
        _show_parts(found.why)
    if found.same:
        console.print(Text.assemble(("✓ ", "green"), "the runs deliver the same samples in the same steps"))
    if found.note is not None:
        console.print(Text(found.note, style="dim"))


def _show_parts(differences: tuple[Difference, ...]) -> None:
    table = Table("", "first run", "second run")
    for each in differences:
        table.add_row(each.part, *(Text(_clip(str(value))) for value in (each.first, each.second)))
    console.print(table)


def _clip(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
