"""`tokenfeed bench PATH`: how fast your store can be read on your machine."""

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tokenfeed.cli.console import console, show_bytes, show_count
from tokenfeed.cli.options import Dtype, Eos, Json, Split, StorePath

if TYPE_CHECKING:
    from tokenfeed.observe.measuring import Measurement

__all__ = ["bench"]

_WAYS = {"pread": "view.read, positional", "mmap": "view.read, mapped", "loader": "Loader"}


def bench(
    path: StorePath,
    length: Annotated[int, typer.Option(help="Items of a window.", min=1)] = 2048,
    batch_size: Annotated[int, typer.Option("-b", "--batch-size", "--batch", help="Windows of a batch.", min=1)] = 32,
    seconds: Annotated[float, typer.Option(help="How long to measure, in all.", min=0.1)] = 9.0,
    threads: Annotated[int, typer.Option(help="Of the loader.", min=1)] = 2,
    split: Split = None,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Measure shuffled windows of a store: read positionally, mapped, and by a loader; and the time to a batch."""
    from tokenfeed.observe.measuring import measure_store
    from tokenfeed.store.store import open_store

    opened = partial(open_store, path, split=split, dtype=dtype, eos=eos)
    ways = measure_store(opened, length=length, batch_size=batch_size, seconds=seconds, threads=threads)
    if as_json:
        measured = list(ways)
    else:
        with console.status("measuring"):
            measured = list(ways)
    if as_json:
        rates = [{**asdict(way), **_rates(way)} for way in measured]
        print(json.dumps({"path": path, "length": length, "batch_size": batch_size, "ways": rates}, indent=2))
    else:
        _show(path, length, batch_size, measured)


def _rates(way: "Measurement") -> dict[str, float]:
    names = ("windows_per_second", "items_per_second", "bytes_per_second")
    return {name: round(getattr(way, name), 1) for name in names}


def _show(path: str, length: int, batch_size: int, measured: "list[Measurement]") -> None:
    table = Table("way", title=f"{path}: {batch_size} windows of {length:,} + 1 items, shuffled", title_justify="left")
    for name in ("windows/s", "tokens/s", "bytes/s", "a batch", "first batch"):
        table.add_column(name, justify="right")
    for way in measured:
        table.add_row(
            _WAYS[way.name],
            f"{way.windows_per_second:,.0f}",
            show_count(way.items_per_second),
            show_bytes(way.bytes_per_second),
            f"{1e3 * way.seconds / max(1, way.batches):,.3f} ms",
            f"{1e3 * way.seconds_to_first:,.1f} ms",
        )
    console.print(table)
    told = (
        "The first batch of the loader is that of a new process: open, load kernels, read. A batch of the loader is the"
    )
    console.print(Text(f"{told} time that a loop doing nothing else waits for it.", style="dim"))
