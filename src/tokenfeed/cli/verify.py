from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import DownloadColumn, TransferSpeedColumn

from tokenfeed.cli.console import print_json, progress_bar, show_bytes, tell, tell_done
from tokenfeed.cli.options import Dtype, Eos, Json, StorePath
from tokenfeed.errors import quantity
from tokenfeed.store.verify import verify


def command(
    path: StorePath,
    quick: Annotated[bool, typer.Option("--quick", help="Check the structure only, not the checksums.")] = False,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Check every checksum and every structural invariant of a store. Exit status: 0 if all hold, 1 if not."""
    with progress_bar("verifying", DownloadColumn(), TransferSpeedColumn(), hidden=as_json) as progress:
        report = verify(path, quick=quick, dtype=dtype, eos=eos, progress=progress)
    if as_json:
        print_json({"path": path, "ok": report.ok, **asdict(report)})
        raise typer.Exit(0 if report.ok else 1)
    for problem in report.problems:
        tell(("✗ ", "red"), problem)
    for note in report.notes:
        tell(("· ", "dim"), note)
    checked = f"{quantity(report.num_shards, 'shard')}, {quantity(report.num_files, 'file')}"
    checked += ", structure only" if quick else f", {show_bytes(report.num_bytes)}"
    if report.ok:
        tell_done(f"{path} has no problems: {checked} checked")
    else:
        tell(f"{path} has {quantity(len(report.problems), 'problem')}: {checked} checked")
    raise typer.Exit(0 if report.ok else 1)
