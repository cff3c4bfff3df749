"""`tokenfeed inspect PATH`: shows the contents of a store."""

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tokenfeed.cli.console import console, print_json, show_bytes
from tokenfeed.cli.options import Dtype, Eos, Json, Split, StorePath
from tokenfeed.store.describe import describe
from tokenfeed.store.store import open_store

__all__ = ["inspect"]


def inspect(
    path: StorePath,
    split: Split = None,
    dtype: Dtype = None,
    eos: Eos = None,
    sample: Annotated[int, typer.Option(help="Number of the window and document to show.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Show the contents of a store: shards, columns, spans, sizes, and a decoded sample."""
    description = describe(open_store(path, split=split, dtype=dtype, eos=eos), sample=sample)
    if as_json:
        print_json({"path": path, **description})
    else:
        _show(path, description)


def _show(path: str, described: dict[str, Any]) -> None:
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("path", path),
        ("items", f"{described['num_items']:,}"),
        ("shards", f"{described['num_shards']:,}"),
        ("splits", ", ".join(described["splits"]) or "none"),
        ("size", show_bytes(described["num_bytes"])),
        ("tokenizer", described["tokenizer"] or "not recorded"),
        ("identity", described["identity"]),
    ):
        facts.add_row(Text(name, style="dim"), Text(value))
    console.print(facts)

    columns = Table("column", "dtype", "size", title="Columns", title_justify="left", title_style="bold")
    for column in described["columns"]:
        columns.add_row(column["name"], column["dtype"], show_bytes(column["bytes"]))
    console.print(columns)

    if described["spans"]:
        spans = Table("table", "codec", "spans", "mean items", title="Spans", title_justify="left", title_style="bold")
        for table in described["spans"]:
            codec = table["codec"] or "no payloads"
            spans.add_row(table["name"], codec, f"{table['spans']:,}", f"{table['mean_items']:,.1f}")
        console.print(spans)
    for title, lines in described["samples"].items():
        console.print(Text(title, style="bold"))
        for name, value in lines.items():
            console.print(Text.assemble((f"  {name}  ", "dim"), _clip(value)))


def _clip(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 400 else f"{text[:400]}…"
