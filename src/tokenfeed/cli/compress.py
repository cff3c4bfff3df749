from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import TaskProgressColumn

from tokenfeed.cli.console import print_json, progress_bar, show_bytes, tell, tell_done
from tokenfeed.cli.options import Dtype, Eos, Json, NewStore, StorePath
from tokenfeed.errors import quantity
from tokenfeed.store.compress import compress


def command(
    path: StorePath,
    out: NewStore,
    plain: Annotated[bool, typer.Option("--plain", help="Undo it: make plain arrays, which np.load reads.")] = False,
    dtype: Dtype = None,
    eos: Eos = None,
    as_json: Json = False,
) -> None:
    """Copy a store with its integers in as few bits as they need: 17 instead of 32 for 128k tokens."""
    with progress_bar("compressing", TaskProgressColumn(), hidden=as_json) as progress:
        report = compress(path, out, bits={} if plain else None, dtype=dtype, eos=eos, progress=progress)
    if as_json:
        print_json({"path": path, "out": out, **asdict(report)})
        return
    sizes = f"{show_bytes(report.bytes_after)} instead of {show_bytes(report.bytes_before)}"
    tell_done(f"{quantity(report.num_items, 'item')} in {out}: {sizes}")
    for column, widths in report.bits.items():
        tell(f"  {column}: {', '.join(map(str, widths))} bits", style="dim")
