from dataclasses import asdict

import typer
from rich.table import Table

from tokenfeed.cli.console import console, print_json, styled, tell, tell_done
from tokenfeed.cli.options import Json

_MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "problem": ("✗", "red")}


def command(as_json: Json = False) -> None:
    """Check Python, kernels, limits, disks, packages, GPUs and credentials. Exit status: 1 if tokenfeed cannot work."""
    # Imported here because it is slow, and other commands do not need it.
    from tokenfeed.observe.checks import check_all

    checks = list(check_all())
    problems = [check for check in checks if check.status == "problem"]
    if as_json:
        print_json({"ok": not problems, "checks": [asdict(check) for check in checks]})
        raise typer.Exit(1 if problems else 0)
    table = Table.grid(padding=(0, 1))
    for check in checks:
        told = styled(check.found, (f"\n{check.advice}" if check.advice else "", "dim"))
        table.add_row(styled(_MARKS[check.status]), styled(check.name, style="bold"), told)
    console.print(table)
    if problems:
        tell(f"tokenfeed does not work here: {', '.join(check.name for check in problems)}", style="red")
    else:
        tell_done("tokenfeed works here")
    raise typer.Exit(1 if problems else 0)
