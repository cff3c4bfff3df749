from dataclasses import asdict

import typer

from tokenfeed.cli.console import console, make_table, print_json, tell, tell_done
from tokenfeed.cli.options import Json, RunPath
from tokenfeed.runs.comparison import Comparison, Difference, compare
from tokenfeed.runs.run import Run

_LONGEST = 200


def command(first: RunPath, second: RunPath, as_json: Json = False) -> None:
    """Show from which step on two runs deliver other samples, and why. Exit status: 0 if they never differ, else 1."""
    found = compare(Run(first), Run(second))
    if as_json:
        print_json({"runs": [first, second], "same": found.same, **asdict(found)})
    else:
        _show(found)
    raise typer.Exit(0 if found.same else 1)


def _show(found: Comparison) -> None:
    if found.division_step is not None:
        tell(f"From step {found.division_step:,} on: the same samples, divided differently among ranks.")
        _show_parts(found.division)
    if found.step is not None and found.samples is not None:
        first, second = found.samples
        tell(f"From step {found.step:,} on: other samples, first at {first:,} and {second:,}.")
        _show_parts(found.why)
    if found.same:
        tell_done("the runs deliver the same samples in the same steps")
    if found.note is not None:
        tell(found.note, style="dim")


def _show_parts(differences: tuple[Difference, ...]) -> None:
    rows = [(each.part, *(_clip(str(value)) for value in (each.first, each.second))) for each in differences]
    console.print(make_table(("", "first run", "second run"), rows))


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
