from collections.abc import Sequence

import typer

from tokenfeed.cli.console import console, make_table, print_json, tell
from tokenfeed.cli.options import Json, RunPath
from tokenfeed.runs.diff import Difference, compare
from tokenfeed.runs.run import Run

_LONGEST = 200


def command(first: RunPath, second: RunPath, as_json: Json = False) -> None:
    """Show from which step on two runs deliver other samples, and why. Exit status: 0 if they never differ, else 1."""
    found = compare(Run(first), Run(second))
    if as_json:
        print_json({"runs": [first, second], **found.to_json()})
        raise typer.Exit(0 if found.same else 1)
    if found.same:
        tell("The runs deliver the same samples in the same steps.")
    if found.division_step is not None:
        tell(
            f"From step {found.division_step:,} on the runs deliver the same samples, divided differently among ranks:"
        )
        _show(found.division)
    if found.step is not None:
        planned = " (planned: neither run is known to have got there)" if found.planned else ""
        tell(f"From step {found.step:,} on the runs deliver other samples{planned}:")
    if found.why:
        _show(found.why)
    for note in found.notes:
        tell(f"Note: {note}.")
    raise typer.Exit(0 if found.same else 1)


def _show(differences: Sequence[Difference]) -> None:
    rows = [(each.part, *map(_tell, (each.first, each.second))) for each in differences]
    console.print(make_table(["", "first run", "second run"], rows))


def _tell(value: object) -> str:
    return "none" if value is None else str(value)[:_LONGEST]
