from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tokenfeed.cli.console import console, make_table, print_json, tell
from tokenfeed.cli.options import Json, RunPath, Stores, parse_field, parse_stores
from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.plan.masks import find_documents
from tokenfeed.runs.find import Seen, Sightings
from tokenfeed.runs.run import Run
from tokenfeed.store.store import open_store

_MOST_ROWS = 1000


def command(
    path: RunPath,
    document: Annotated[int | None, typer.Option(help="Number of the document in its store.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="A field of its payload; repeatable.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Source of the document; required in a mixture.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the numbers of the documents that --where finds to this .npy, for mask=.")
    ] = None,
    epochs: Annotated[
        str | None,
        typer.Option(metavar="START:STOP", help="Epochs to look at; by default all up to the present one."),
    ] = None,
    store: Stores = None,
    as_json: Json = False,
) -> None:
    """Show in which steps of a run a document was seen, or is planned to be. With --out, PATH may also be a store."""
    if (document is None) == (where is None):
        raise ArgumentError("which document? Give its number by --document, or fields of its payload by --where")
    fields = None
    if where is not None:
        given = (parse_field(field, "--where", "FIELD=VALUE, such as url=https://…") for field in where)
        fields = _Fields({name: values for name, *values in given})
    if out is not None:
        _write(Path(path), fields, out, source, store)
        return
    asked = None if epochs is None else _parse_range(epochs)
    run = Run(path, stores=parse_stores(store, Run(path)))
    seen = run.find(document, source=source, epochs=asked, where=fields)
    if as_json:
        print_json({"run": path, **seen.to_json()})
        return
    if seen:
        _show(seen)
    else:
        tell(f"No row has it: {seen.why}.")
    if seen.not_looked_at:
        tell(f"Did not look at {'; '.join(seen.not_looked_at)}.")


class _Fields(dict[str, list[Any]]):
    """Fields that a payload must have; a value is compared as text, and as the JSON that it may be."""

    def __call__(self, payload: Any) -> bool:
        return isinstance(payload, dict) and all(name in payload and payload[name] in self[name] for name in self)


def _write(path: Path, fields: _Fields | None, out: Path, source: str | None, stores: Stores) -> None:
    """Write the numbers of the documents of a store, or of a source of a run, that have these fields."""
    if fields is None or out.suffix != ".npy":
        raise ArgumentError("--out writes what --where FIELD=VALUE finds to a .npy: --out masked.npy")
    if path.is_file():
        plan = Run(path, stores=parse_stores(stores, Run(path))).plan()
        view = plan.views[plan.source_number(source)]
    else:
        view = open_store(path).documents()
    numbers = find_documents(view, fields)
    if not numbers:
        raise ArgumentError(f"no document of {path} has such a payload: nothing is written")
    with out.open("wb") as file:
        np.save(file, np.array(numbers, np.int64))
    tell(f"{quantity(len(numbers), 'document')} of {len(view.span_table or ()):,} written to {out}")


def _parse_range(text: str) -> range:
    start, colon, stop = text.partition(":")
    try:
        epochs = range(int(start), int(stop) if colon else int(start) + 1)
    except ValueError:
        epochs = range(0)
    if not epochs or epochs[0] < 0:
        raise ArgumentError(f"--epochs is {text!r}; expected START:STOP with 0 <= START < STOP, or one epoch")
    return epochs


def _show(seen: Sightings) -> None:
    told = ["document", *(["source"] if seen[0].source else []), "epoch", "index", "sample", "step", "rank", "row"]
    rows = [[_tell_state(each), *(getattr(each, name) for name in told)] for each in seen[:_MOST_ROWS]]
    console.print(make_table(["", *told], rows))
    if len(seen) > _MOST_ROWS:
        tell(f"and {quantity(len(seen) - _MOST_ROWS, 'row')} more; --json shows all", style="dim")


def _tell_state(each: Seen) -> str:
    state = "planned" if each.planned else "rolled back" if each.rolled_back else "seen"
    return f"{state}, masked" if each.masked else state
