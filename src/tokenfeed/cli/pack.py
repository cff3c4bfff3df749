"""`tokenfeed pack PATH --length N`: which documents go into which row."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.options import Dtype, Eos, Json, StorePath
from tokenfeed.store.packing import PackReport
from tokenfeed.store.store import open_store

__all__ = ["pack_command"]


def pack_command(
    path: StorePath,
    length: Annotated[int, typer.Option(help="Inputs of a row; it has one item more.", min=1)],
    table: Annotated[str, typer.Option(help="The spans to pack.")] = "documents",
    cache: Annotated[Path | None, typer.Option(help="Where to put the plan. Default: into the store.")] = None,
    split: Annotated[str | None, typer.Option(help="Only the shards of this split.")] = None,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Plan how whole documents fill rows of one length, for store.packed(LENGTH). Reads no tokens."""
    store = open_store(path, split=split, dtype=dtype, eos=eos)
    with Progress(
        TextColumn("packing"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=as_json,
    ) as bar:
        task = bar.add_task("", total=None)
        report = store.pack(
            length,
            table=table,
            cache=cache,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print(json.dumps({"path": path, **asdict(report)}, indent=2, default=str))
    else:
        _show(path, table, length, report)


def _show(path: str, table: str, length: int, report: PackReport) -> None:
    documents = f"{report.documents:,} {table} of {path}, {report.cut_documents:,} of them longer than a row"
    rows = f"{report.rows:,} rows of {length:,} + 1 items, {report.used:.2%} of them used"
    console.print(Text.assemble(("✓ ", "green"), f"{rows}: {documents}"))
    console.print(Text(f"  {report.seconds:.1f} s; the plan is {report.folder}", style="dim"))
