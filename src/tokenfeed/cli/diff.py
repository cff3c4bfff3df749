from dataclasses import asdict

import typer

from tokenfeed.cli.console import print_json, tell
from tokenfeed.cli.options import Json, RunPath
from tokenfeed.runs.comparison import compare
from tokenfeed.runs.run import Run


def command(first: RunPath, second: RunPath, as_json: Json = False) -> None:
    """Show from which step on two runs deliver other samples, and why. Exit status: 0 if they never differ, else 1."""
    found = compare(Run(first), Run(second))
    if as_json:
        print_json({"runs": [first, second], "same": found.same, **asdict(found)})
    else:
        tell(str(found))
    raise typer.Exit(0 if found.same else 1)
