"""`tokenfeed diff RUN RUN`: from which step on two runs differ, and why."""

import json
from dataclasses import asdict

import typer
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.options import Json
from tokenfeed.cli.trace import RunPath
from tokenfeed.runs.comparison import compare
from tokenfeed.runs.run import Run

__all__ = ["diff"]


def diff(first: RunPath, second: RunPath, as_json: Json = False) -> None:
    """Show from which step on two runs deliver other samples, and why. Exit status: 0 if they never differ, else 1."""
    found = compare(Run(first), Run(second))
    if as_json:
        print(json.dumps({"runs": [str(first), str(second)], "same": found.same, **asdict(found)}, indent=2))
    else:
        console.print(Text(str(found)), soft_wrap=True)
    raise typer.Exit(0 if found.same else 1)
