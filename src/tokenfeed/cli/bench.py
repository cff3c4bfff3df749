from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tokenfeed.cli.console import console, make_table, print_json, show_bytes, show_count, tell
from tokenfeed.cli.options import Dtype, Eos, Json, Split, StorePath
from tokenfeed.errors import quantity

if TYPE_CHECKING:
    from tokenfeed.observe.measuring import Measurement

_WAYS = {"pread": "view.read, positional", "mmap": "view.read, mapped", "loader": "Loader"}
_RATES = ("windows/s", "tokens/s", "bytes/s", "per batch", "first batch")


def command(
    path: StorePath,
    length: Annotated[int, typer.Option(help="Items per window.", min=1)] = 2048,
    batch_size: Annotated[int, typer.Option("-b", "--batch-size", "--batch", help="Windows per batch.", min=1)] = 32,
    seconds: Annotated[float, typer.Option(help="Measuring time in all.", min=0.1)] = 9.0,
    threads: Annotated[int, typer.Option(help="Threads of the loader.", min=1)] = 2,
    split: Split = None,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Measure how fast shuffled windows are read: by positional reads, from mapped files, and by a loader."""
    from tokenfeed.observe.measuring import measure_store
    from tokenfeed.store.store import open_store

    opened = partial(open_store, path, split=split, dtype=dtype, eos=eos)
    ways = measure_store(opened, length=length, batch_size=batch_size, seconds=seconds, threads=threads)
    if as_json:
        rates = [asdict(way) | {name: round(rate, 1) for name, rate in way.rates().items()} for way in ways]
        print_json({"path": path, "length": length, "batch_size": batch_size, "ways": rates})
        return
    with console.status("measuring"):
        rows = [_describe(way) for way in ways]
    title = f"{path}: shuffled batches of {quantity(batch_size, 'window')} of {length:,} + 1 items"
    console.print(make_table(["way", *_RATES], rows, title=title, right=_RATES))
    first = "The loader's first batch includes opening the store and loading the kernels in a new process."
    tell(f"{first} Its time per batch is what a loop that does nothing else waits.", style="dim")


def _describe(way: "Measurement") -> tuple[str, ...]:
    rates = way.rates()
    return (
        _WAYS[way.name],
        f"{rates['windows_per_second']:,.0f}",
        show_count(rates["items_per_second"]),
        show_bytes(rates["bytes_per_second"]),
        f"{1e3 * way.seconds / max(1, way.batches):,.3f} ms",
        f"{1e3 * way.seconds_to_first:,.1f} ms",
    )
