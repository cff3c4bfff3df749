from typing import Annotated, Any

import numpy as np
import typer

from tokenfeed.cli.console import console, make_table, print_json, show_bytes, tell, tell_facts
from tokenfeed.cli.options import Dtype, Eos, Json, Split, StorePath, TokenizerPath, load_decoder
from tokenfeed.errors import quantity
from tokenfeed.store.describe import describe
from tokenfeed.store.store import open_unfinished

_LONGEST = 400


def command(
    path: StorePath,
    split: Split = None,
    version: Annotated[int | None, typer.Option(help="Version of the store, by default the newest.")] = None,
    dtype: Dtype = None,
    eos: Eos = None,
    sample: Annotated[int, typer.Option(help="Number of the window and document to show.", min=0)] = 0,
    tokenizer: TokenizerPath = None,
    as_json: Json = False,
) -> None:
    """Show the contents of a store: shards, columns, spans, sizes, and a decoded sample.

    In JSON, `sample` has these items of each column and this span of each table, and their text by --tokenizer.
    """
    store, unfinished = open_unfinished(path, split=split, version=version, dtype=dtype, eos=eos)
    decoder = load_decoder(tokenizer, path)
    decode = None if decoder is None else lambda tokens: decoder(tokens, store.tokenizer)
    description = {
        **describe(store, sample=sample, decode=decode),
        "unfinished": unfinished,
    }
    if as_json:
        print_json({"path": path, **description})
    else:
        _show(path, description)


def _show(path: str, described: dict[str, Any]) -> None:
    if described["unfinished"]:
        tell(("✗ ", "red"), described["unfinished"])
    splits = [
        f"{size['name'] or 'no split'}: {quantity(size['items'], 'item')}, {quantity(size['shards'], 'shard')}"
        for size in described["splits"]
    ]
    tell_facts(
        {
            "path": path,
            "items": f"{described['num_items']:,}",
            "shards": f"{described['num_shards']:,}",
            "splits": "; ".join(splits) or "none",
            **({"shown here": f"split {described['split']!r}; --split shows another, or all"} if splits else {}),
            "size": show_bytes(described["num_bytes"]),
            "tokenizer": described["tokenizer"] or "not recorded",
            "identity": described["identity"],
            "version": "none: it is not sealed" if described["version"] is None else str(described["version"]),
        }
    )
    if len(described["versions"]) > 1:
        versions = [
            (
                str(one["number"]),
                f"{one['shards']:,}",
                f"{one['items']:,}",
                one["identity"] or "lost: its shards changed",
            )
            for one in described["versions"]
        ]
        console.print(make_table(("version", "shards", "items", "identity"), versions, title="Versions"))
    columns = [(column["name"], column["dtype"], show_bytes(column["bytes"])) for column in described["columns"]]
    console.print(make_table(("column", "dtype", "size"), columns, title="Columns"))
    if described["spans"]:
        spans = [
            (table["name"], table["codec"] or "no payloads", f"{table['spans']:,}", f"{table['mean_items']:,.1f}")
            for table in described["spans"]
        ]
        console.print(make_table(("table", "codec", "spans", "mean items"), spans, title="Spans"))
    _show_sample(**described["sample"])


def _show_sample(number: int, items: dict[str, Any] | None, spans: list[dict[str, Any]]) -> None:
    if items is not None:
        tell(f"Items {items['start']:,} to {items['stop']:,}", style="bold")
        for column in items["columns"]:
            _show_value(column["name"], np.array2string(np.array(column["values"]), threshold=16, max_line_width=100))
        _show_value("text", items.get("text"))
    for span in spans:
        tell(f"Span {number:,} of {span['table']}", style="bold")
        _show_value("items", f"[{span['start']:,}, {span['stop']:,})")
        _show_value("payload", "none" if span["payload"] is None else span["payload"])
        _show_value("text", span.get("text"))


def _show_value(name: str, value: Any) -> None:
    if value is not None:
        text = value if isinstance(value, str) else repr(value)
        tell((f"  {name}  ", "dim"), text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
