"""`tokenfeed trace RUN`: what a step was trained on, or where a document was seen."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tokenfeed.cli.console import console
from tokenfeed.cli.options import Json
from tokenfeed.errors import ArgumentError
from tokenfeed.runs.run import Run
from tokenfeed.runs.tracing import RowTrace, Seen

__all__ = ["RunPath", "trace"]

_MOST_ROWS = 1000

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run file.")]


def trace(
    path: RunPath,
    step: Annotated[int | None, typer.Option(help="Show what this step was trained on.")] = None,
    rank: Annotated[int | None, typer.Option(help="Show only the rows of this rank; with --step.")] = None,
    document: Annotated[int | None, typer.Option(help="Find the steps that saw the document of this number.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Find documents by a field of their payload."),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Source of the document; required in a mixture.")] = None,
    epochs: Annotated[str, typer.Option(metavar="START:STOP", help="Epochs in which to look for a document.")] = "0:1",
    store: Annotated[
        list[str] | None, typer.Option(metavar="[SOURCE=]PATH", help="Where the data is now, if it was moved.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a step of a run was trained on, or in which steps a document is seen."""
    run = Run(path)
    stores = dict(_parse_store(text, run) for text in store or ())
    if (step is None) == (document is None and where is None):
        raise ArgumentError("give either --step, or a document by --document or --where")
    if step is not None:
        rows = run.trace(step, rank=rank, stores=stores)
        described = [_describe(row) for row in rows]
        if as_json:
            print(json.dumps({"run": str(path), "step": step, "rows": described}, default=str, ensure_ascii=False))
        else:
            _show_step(step, described)
        return
    if rank is not None:
        raise ArgumentError("--rank goes with --step; a document may be seen by any rank")
    fields = None if where is None else _Fields(where)
    seen = run.find(document, source=source, epochs=_parse_range(epochs), where=fields, stores=stores)
    if as_json:
        print(json.dumps({"run": str(path), "epochs": epochs, "rows": [asdict(each) for each in seen]}))
    else:
        _show_seen(seen, epochs)


class _Fields:
    """Whether a payload has these fields; a value is compared as text, and as the JSON that it may be."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = [_split_field(field) for field in fields]

    def __call__(self, payload: Any) -> bool:
        if not isinstance(payload, dict):
            return False
        return all(name in payload and payload[name] in values for name, values in self._fields)


def _split_field(field: str) -> tuple[str, list[Any]]:
    name, equals, value = field.partition("=")
    if not equals:
        raise ArgumentError(f"--where is {field!r}; expected FIELD=VALUE, such as url=https://…")
    try:
        return name, [value, json.loads(value)]
    except ValueError:
        return name, [value]


def _parse_store(text: str, run: Run) -> tuple[str, str]:
    """(name of the source, path). The part before `=` is a name only if there is such a source."""
    names = {source.name for start in run.starts for source in start.plan.sources}
    name, _, path = text.partition("=")
    if name in names and path:
        return name, path
    if names > {""} or "" not in names:
        raise ArgumentError(f"--store is {text!r}; of which source? Expected NAME=PATH with {', '.join(sorted(names))}")
    return "", text


def _parse_range(text: str) -> range:
    start, colon, stop = text.partition(":")
    try:
        epochs = range(int(start), int(stop)) if colon else range(int(start), int(start) + 1)
    except ValueError:
        epochs = range(0)
    if not epochs or epochs[0] < 0:
        raise ArgumentError(f"--epochs is {text!r}; expected START:STOP with 0 <= START < STOP, or one epoch")
    return epochs


def _describe(row: RowTrace) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "row": row.row,
        "sample": row.sample,
        "source": row.source,
        "epoch": row.epoch,
        "index": row.index,
        "locations": [location._asdict() for location in row.locations],
        "documents": [
            {"number": span.number, "start": span.start, "stop": span.stop, "payload": span.payload}
            for span in row.documents
        ],
    }


def _show_step(step: int, rows: Sequence[dict[str, Any]]) -> None:
    told = ["rank", "row", "sample", *(["source"] if any(row["source"] for row in rows) else []), "epoch", "index"]
    table = Table(*told, "items", "documents", title=f"Step {step:,}", title_justify="left", title_style="bold")
    for row in rows:
        places = [f"{place['shard']} [{place['start']:,}, {place['stop']:,})" for place in row["locations"]]
        cells = [str(row[name]) for name in told]
        table.add_row(*cells, Text("\n".join(_some(places))), Text("\n".join(_some(list(_tell_documents(row))))))
    console.print(table)


def _tell_documents(row: dict[str, Any]) -> Iterator[str]:
    for document in row["documents"]:
        payload = "" if document["payload"] is None else f"  {document['payload']!r}"
        text = f"{document['number']} at [{document['start']:,}, {document['stop']:,}){payload}"
        yield text if len(text) <= 100 else f"{text[:100]}…"


def _some(lines: Sequence[str]) -> list[str]:
    return list(lines) if len(lines) <= 8 else [*lines[:7], f"and {len(lines) - 7:,} more"]


def _show_seen(seen: Sequence[Seen], epochs: str) -> None:
    if not seen:
        console.print(Text(f"No row of epochs {epochs} has it."))
        return
    told = ["document", *(["source"] if seen[0].source else []), "epoch", "index", "sample", "step", "rank", "row"]
    table = Table(*told)
    for each in seen[:_MOST_ROWS]:
        fields = asdict(each)
        table.add_row(*(str(fields[name]) for name in told))
    console.print(table)
    if len(seen) > _MOST_ROWS:
        console.print(Text(f"and {len(seen) - _MOST_ROWS:,} rows more; --json shows all", style="dim"))
