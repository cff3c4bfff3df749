"""`tokenfeed prepare INPUT… -o STORE --tokenizer T`: text to a store."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from tokenfeed.cli.console import console, show_bytes
from tokenfeed.cli.options import Json
from tokenfeed.errors import ArgumentError, quantity

if TYPE_CHECKING:
    from tokenfeed.preparation.report import Report

__all__ = ["prepare_command"]

_LINE_SECONDS = 5.0
_SOURCES = 20


def prepare_command(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Parquet, JSONL or text: files, folders, patterns, addresses."),
    ],
    out: Annotated[str, typer.Option("-o", "--out", metavar="STORE", help="The folder of the store.")],
    tokenizer: Annotated[str | None, typer.Option(help="A saved tokenizer: its folder, or its tokenizer.json.")] = None,
    text_column: Annotated[str, typer.Option(help="The column, or key, that holds the text.")] = "text",
    tokens_column: Annotated[
        str | None, typer.Option(help="A column of lists of token ids, for data that is tokenised already.")
    ] = None,
    keep: Annotated[list[str] | None, typer.Option(help="A column to keep with every document; repeatable.")] = None,
    bos: Annotated[
        str | None, typer.Option(help="The special token before every document. Default: the tokenizer's BOS.")
    ] = None,
    eos: Annotated[
        str | None, typer.Option(help="The special token after every document. Default: its EOS, where it has no BOS.")
    ] = None,
    no_separator: Annotated[
        bool, typer.Option("--no-separator", help="Put nothing between documents: they run into each other.")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="Default: uint16 for up to 65,536 tokens, else uint32.")] = None,
    val: Annotated[
        list[str] | None,
        typer.Option(
            help="Held out for validation: a share of the documents, by a hash of their text; 'last' for the last "
            "file; a file or pattern, repeatable; 'none' makes no splits. Default: 0.001."
        ),
    ] = None,
    map_: Annotated[
        str | None, typer.Option("--map", help="A function of your own: file.py:function or module:function.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("-w", "--workers", help="Processes. Default: one a core; 0: this process.", min=0)
    ] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    on_error: Annotated[
        str, typer.Option(help="fail: the first malformed line is an error. skip: leave them out and count.")
    ] = "fail",
    part: Annotated[str | None, typer.Option(metavar="I/N", help="Make only the slices I, I + N, I + 2N, …")] = None,
    replace_changed: Annotated[bool, typer.Option("--replace-changed", help="Redo the inputs that changed.")] = False,
    slice_mb: Annotated[
        int | None, typer.Option(help="MiB of input in one task. Default: 8 to 256, by the size of the inputs.", min=1)
    ] = None,
    shard_mb: Annotated[int, typer.Option(help="MiB after which a shard is closed.", min=1)] = 1024,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what there is to do.")] = False,
    as_json: Json = False,
) -> None:
    """Tokenise text files into a store. Run it again after a crash, or with more files: it does what is missing."""
    # Imported here: it takes a while, and other commands do not need it.
    from tokenfeed.preparation.prepare import prepare

    if on_error not in ("fail", "skip"):
        raise ArgumentError(f"--on-error is {on_error!r}; it must be fail or skip")
    show = _nothing if as_json or dry_run else _bars
    try:
        with show() as progress:
            report = prepare(
                inputs,
                out,
                tokenizer=tokenizer,
                text_column=text_column,
                tokens_column=tokens_column,
                keep=keep or (),
                bos=bos,
                eos=eos,
                separator=None if no_separator else "auto",
                dtype=dtype,
                val=_parse_val(val or ["0.001"]),
                map=map_,
                workers=workers,
                engine=engine,
                on_error="skip" if on_error == "skip" else "fail",
                part=_parse_part(part),
                replace_changed=replace_changed,
                dry_run=dry_run,
                slice_bytes=None if slice_mb is None else slice_mb << 20,
                shard_bytes=shard_mb << 20,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("Interrupted. Run the same command again: it goes on where it stopped.", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps({**report.to_json(), "dry_run": dry_run}, indent=2))
    elif dry_run:
        _show_plan(report)
    else:
        _show(report)


def _parse_val(given: list[str]) -> float | str | list[str] | None:
    if len(given) > 1:
        return given
    try:
        return float(given[0])
    except ValueError:
        return None if given[0] == "none" else given[0]


def _parse_part(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    number, slash, count = text.partition("/")
    if not slash or not number.isdigit() or not count.isdigit():
        raise ArgumentError(f"--part is {text!r}; expected 0/8 for the first of 8 parts, 7/8 for the last")
    return int(number), int(count)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield None


@contextlib.contextmanager
def _bars() -> Iterator[Callable[["Report"], None]]:
    """A bar on standard error, or a line now and then where that is not a terminal."""
    there = Console(stderr=True)
    if not there.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("preparing"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Bars(*columns, console=there, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def tell(report: "Report") -> None:
            bars.update(task, completed=report.total.input_bytes, total=report.num_bytes, description=_describe(report))

        yield tell


def _lines() -> Callable[["Report"], None]:
    told = time.monotonic()

    def tell(report: "Report") -> None:
        nonlocal told
        if time.monotonic() - told >= _LINE_SECONDS:
            told = time.monotonic()
            share = report.total.input_bytes / max(1, report.num_bytes)
            print(f"{share:.1%}  {_describe(report)}", file=sys.stderr, flush=True)

    return tell


def _describe(report: "Report") -> str:
    total, speed = report.total, show_bytes(report.bytes_per_second)
    return (
        f"{report.files:,}/{report.num_files:,} files  {total.documents:,} documents  "
        f"{total.tokens / 1e6:,.1f} M tokens  {speed}/s"
    )


def _show_plan(report: "Report") -> None:
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("store", report.path),
        ("files", f"{report.num_files:,}, {show_bytes(report.num_bytes)}"),
        ("slices", f"{report.num_slices:,}"),
        (
            "done before",
            f"{quantity(report.slices, 'slice')}, {quantity(report.total.documents, 'document')}, "
            f"{quantity(report.total.tokens, 'token')}",
        ),
        ("to do", quantity(report.num_slices - report.slices, "slice")),
    ):
        facts.add_row(Text(name, style="dim"), Text(value))
    console.print(facts)


def _show(report: "Report") -> None:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    names = ("source", "files", "documents", "tokens", "bytes", "val tokens", "left out")
    for name in names:
        table.add_column(name, justify="left" if name == "source" else "right")
    rows = [(source.name, source.files, source.counts) for source in report.sources]
    if len(rows) > 1:
        rows = [*rows[:_SOURCES], ("all", report.num_files, report.total)]
    for name, files, counts in rows:
        left_out = counts.malformed + counts.null + counts.dropped
        numbers = (f"{files:,}", f"{counts.documents:,}", f"{counts.tokens:,}", show_bytes(counts.input_bytes))
        table.add_row(Text(name), *numbers, f"{counts.val_tokens:,}", f"{left_out:,}")
    console.print(table)
    if len(report.sources) > _SOURCES:
        console.print(Text(f"  and {len(report.sources) - _SOURCES:,} sources more; --json has all", style="dim"))
    for problem in report.problems:
        console.print(Text.assemble(("· ", "dim"), f"left out: {problem}"))
    total = report.total
    if report.left_out > len(report.problems):
        kinds = f"{total.malformed:,} malformed, {total.null:,} null, {total.dropped:,} by the map function"
        console.print(Text(f"  left out in all: {kinds}", style="dim"))
    speed = f"{report.tokens_per_second / 1e6:,.2f} M tokens/s, {show_bytes(report.bytes_per_second)}/s"
    did = f"{report.made:,} of {quantity(report.num_slices, 'slice')} in {report.seconds:.1f} s: {speed}"
    if report.retries:
        did += f"; {report.retries:,} begun again because a worker died"
    if report.is_complete:
        shards = quantity(report.shards, "shard")
        console.print(Text.assemble(("✓ ", "green"), f"{report.path} is complete and sealed, {shards}"))
    else:
        left = quantity(report.num_slices - report.slices, "slice")
        console.print(Text(f"{report.path} is not complete: {left} of other parts still to do"))
    nothing = "nothing was missing" if report.is_complete else "there was nothing to do"
    console.print(Text(f"  {did if report.made else nothing}", style="dim"))
