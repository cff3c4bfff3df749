import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tokenfeed.cli.console import console, make_table, print_json, tell
from tokenfeed.cli.options import Decoder, Json, RunPath, TokenizerPath, load_decoder
from tokenfeed.errors import ArgumentError, quantity
from tokenfeed.runs.run import Run
from tokenfeed.runs.tracing import RowTrace, Seen

_MOST_ROWS = 1000
_MOST_LINES = 8
_LONGEST = 200


def command(
    path: RunPath,
    step: Annotated[int | None, typer.Option(help="Show what this step was trained on.")] = None,
    rank: Annotated[int | None, typer.Option(help="Show only the rows of this rank; with --step.")] = None,
    document: Annotated[int | None, typer.Option(help="Find the steps that saw the document of this number.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="Find documents by a field of their payload.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Source of the document; required in a mixture.")] = None,
    epochs: Annotated[str, typer.Option(metavar="START:STOP", help="Epochs in which to look for a document.")] = "0:1",
    store: Annotated[
        list[str] | None, typer.Option(metavar="[SOURCE=]PATH", help="Where the data is now, if it was moved.")
    ] = None,
    tokenizer: TokenizerPath = None,
    as_json: Json = False,
) -> None:
    """Show what a step of a run was trained on, or in which steps a document is seen, or is planned to be."""
    run = Run(path)
    stores = dict(_parse_store(text, run) for text in store or ())
    if (step is None) == (document is None and where is None):
        raise ArgumentError("give either --step, or a document by --document or --where")
    if step is not None:
        decode = load_decoder(tokenizer, "the data of the run")
        traced = [
            *run.trace(step, rank=rank, stores=stores),
            *run.trace(step, rank=rank, stores=stores, rolled_back=True),
        ]
        rows = [_describe(row, decode) for row in traced]
        if as_json:
            print_json({"run": path, "step": step, "rows": rows})
        else:
            _show_step(step, rows)
        return
    if rank is not None:
        raise ArgumentError("--rank goes with --step; a document may be seen by any rank")
    fields = None if where is None else _Fields(map(_split_field, where))
    seen = run.find(document, source=source, epochs=_parse_range(epochs), where=fields, stores=stores)
    if as_json:
        print_json({"run": path, "epochs": epochs, "rows": [asdict(each) for each in seen]})
    elif seen:
        _show_seen(seen)
    else:
        tell(f"No row of epochs {epochs} has it: {seen.why}.")


class _Fields(dict[str, list[Any]]):
    """Fields that a payload must have; a value is compared as text, and as the JSON that it may be."""

    def __call__(self, payload: Any) -> bool:
        return isinstance(payload, dict) and all(name in payload and payload[name] in self[name] for name in self)


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
        epochs = range(int(start), int(stop) if colon else int(start) + 1)
    except ValueError:
        epochs = range(0)
    if not epochs or epochs[0] < 0:
        raise ArgumentError(f"--epochs is {text!r}; expected START:STOP with 0 <= START < STOP, or one epoch")
    return epochs


def _describe(row: RowTrace, decode: Decoder | None) -> dict[str, Any]:
    masked = set(row.masked)
    documents = [(each.number, each.start, each.stop, each.number in masked, each.payload) for each in row.documents]
    told = ("rank", "row", "sample", "source", "epoch", "index", "planned", "rolled_back")
    return {
        **{name: getattr(row, name) for name in told},
        **({} if decode is None else {"text": decode(row.content.tokens, row.tokenizer)}),
        "locations": [location._asdict() for location in row.locations],
        "documents": [
            dict(zip(("number", "start", "stop", "masked", "payload"), each, strict=True)) for each in documents
        ],
    }


def _show_step(step: int, rows: Sequence[dict[str, Any]]) -> None:
    """Each row in a few lines, because a table of all this is wider than most terminals."""
    last = [row for row in rows if not row["rolled_back"]]
    is_planned = any(row["planned"] for row in last)
    _show_rows(step, last, "planned: the run is not known to have got there" if is_planned else "seen")
    if len(last) < len(rows):
        again = [row for row in rows if row["rolled_back"]]
        _show_rows(step, again, "seen and rolled back: then the run went back to an earlier checkpoint")


def _show_rows(step: int, rows: Sequence[dict[str, Any]], what: str) -> None:
    tell(f"Step {step:,}: {quantity(len(rows), 'row')}, {what}", style="bold")
    for row in rows:
        source = f"source {row['source']}, " if row["source"] else ""
        place = f"{source}epoch {row['epoch']}, index {row['index']:,}"
        tell(f"rank {row['rank']}, row {row['row']}: sample {row['sample']:,} ({place})")
        _tell_some(f"{each['shard']} [{each['start']:,}, {each['stop']:,})" for each in row["locations"])
        _tell_some(
            f"document {each['number']:,} at [{each['start']:,}, {each['stop']:,})"
            + (", masked: not in the loss" if each["masked"] else "")
            + ("" if each["payload"] is None else f"  {_clip(repr(each['payload']))}")
            for each in row["documents"]
        )
        if "text" in row:
            tell("  ", _clip(repr(row["text"])))


def _tell_some(lines: Iterable[str]) -> None:
    listed = list(lines)
    if len(listed) > _MOST_LINES:
        listed[_MOST_LINES - 1 :] = [f"and {len(listed) - _MOST_LINES + 1:,} more"]
    for line in listed:
        tell(f"  {line}", style="dim")


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _show_seen(seen: Sequence[Seen]) -> None:
    told = ["document", *(["source"] if seen[0].source else []), "epoch", "index", "sample", "step", "rank", "row"]
    rows = [[_tell_state(each), *(getattr(each, name) for name in told)] for each in seen[:_MOST_ROWS]]
    console.print(make_table(["", *told], rows))
    if len(seen) > _MOST_ROWS:
        tell(f"and {quantity(len(seen) - _MOST_ROWS, 'row')} more; --json shows all", style="dim")


def _tell_state(each: Seen) -> str:
    state = "planned" if each.planned else "rolled back" if each.rolled_back else "seen"
    return f"{state}, masked" if each.masked else state
