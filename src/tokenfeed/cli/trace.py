from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from tokenfeed.cli.console import print_json, tell
from tokenfeed.cli.options import Decoder, Json, RunPath, Stores, TokenizerPath, load_decoder, parse_stores
from tokenfeed.errors import quantity
from tokenfeed.runs.run import Run
from tokenfeed.runs.trace import RowTrace

_MOST_LINES = 8
_LONGEST = 200


def command(
    path: RunPath,
    step: Annotated[int, typer.Option(help="The step to show.")],
    rank: Annotated[int | None, typer.Option(help="Show only the rows of this rank.")] = None,
    store: Stores = None,
    tokenizer: TokenizerPath = None,
    as_json: Json = False,
) -> None:
    """Show what a step of a run was trained on, or is planned to be."""
    run = Run(path, stores=parse_stores(store, Run(path)))
    decode = load_decoder(tokenizer, "the data of the run")
    traced = [row for back in (False, True) for row in run.trace(step, rank=rank, rolled_back=back)]
    rows = [_describe(row, decode) for row in traced]
    if as_json:
        print_json({"run": path, "step": step, "rows": rows})
    else:
        _show(step, rows)


def _describe(row: RowTrace, decode: Decoder | None) -> dict[str, Any]:
    return row.to_json() if decode is None else {**row.to_json(), "text": decode(row.content.tokens, row.tokenizer)}


def _show(step: int, rows: Sequence[dict[str, Any]]) -> None:
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
