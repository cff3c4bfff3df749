from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TaskProgressColumn

from tokenfeed.cli.console import print_json, progress_bar, tell, tell_done
from tokenfeed.cli.options import Dtype, Eos, Json, Split, StorePath
from tokenfeed.errors import quantity
from tokenfeed.store.store import open_store


def command(
    path: StorePath,
    length: Annotated[int, typer.Option(help="Inputs per row; a row holds one item more.", min=1)],
    table: Annotated[str, typer.Option(help="Span table whose spans are packed.")] = "documents",
    cache: Annotated[Path | None, typer.Option(help="Folder for the plan. Default: inside the store.")] = None,
    split: Split = None,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Plan how whole documents fill rows of one length, for store.packed(LENGTH). Reads no tokens."""
    store = open_store(path, split=split, dtype=dtype, eos=eos)
    with progress_bar("packing", TaskProgressColumn(), hidden=as_json) as progress:
        report = store.pack(length, table=table, cache=cache, progress=progress)
    if as_json:
        print_json({"path": path, **asdict(report)})
        return
    rows = f"{quantity(report.rows, 'row')} of {length:,} + 1 items, {report.used:.2%} filled"
    spans = f"{quantity(report.documents, 'span')} of {table!r} in {path}, {report.cut_documents:,} longer than a row"
    tell_done(f"{rows}: {spans}")
    tell(f"  took {report.seconds:.1f} s; the plan is in {report.folder}", style="dim")
