"""`tokenfeed verify PATH`: is it what it says it is?"""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from tokenfeed.cli.console import console, show_bytes
from tokenfeed.cli.options import Dtype, Eos, Json, StorePath
from tokenfeed.store.verify import Report, verify

__all__ = ["verify_command"]


def verify_command(
    path: StorePath,
    quick: Annotated[bool, typer.Option("--quick", help="Structure only, no checksums.")] = False,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Check every checksum and every structural invariant. Exit status 0 if all hold, 1 if not."""
    with Progress(
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=as_json,
    ) as bar:
        task = bar.add_task("", total=None)
        report = verify(
            path,
            quick=quick,
            dtype=dtype,
            eos=eos,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print(json.dumps({"path": path, "ok": report.ok, **asdict(report)}, indent=2))
    else:
        _show(path, report, quick)
    raise typer.Exit(0 if report.ok else 1)


def _show(path: str, report: Report, quick: bool) -> None:
    for problem in report.problems:
        console.print(Text.assemble(("✗ ", "red"), problem))
    for note in report.notes:
        console.print(Text.assemble(("· ", "dim"), note))
    looked = f"{report.num_shards:,} shards, {report.num_files:,} files"
    looked += ", structure only" if quick else f", {show_bytes(report.num_bytes)}"
    if report.ok:
        console.print(Text.assemble(("✓ ", "green"), f"{path} is sound: {looked}"))
    else:
        console.print(Text(f"{path} has {len(report.problems):,} problems: {looked}"))
