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
from tokenfeed.errors import ArgumentError

if TYPE_CHECKING:
    from tokenfeed.preparation.report import Progress, Report

__all__ = ["prepare_command"]

_LINE_SECONDS = 5.0
_SOURCES = 20


def prepare_command(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="Parquet, JSONL or text: files, folders, patterns.")
    ],
    out: Annotated[str, typer.Option("-o", "--out", metavar="STORE", help="The folder of the store.")],
    tokenizer: Annotated[str, typer.Option(help="A saved tokenizer: its folder, or its tokenizer.json.")],
    text_column: Annotated[str, typer.Option(help="The column, or key, that holds the text.")] = "text",
    keep: Annotated[list[str] | None, typer.Option(help="A column to keep with every document; repeatable.")] = None,
    bos: Annotated[str | None, typer.Option(help="The special token before every document.")] = None,
    no_bos: Annotated[bool, typer.Option("--no-bos", help="None, even if the tokenizer has one.")] = False,
    eos: Annotated[str | None, typer.Option(help="The special token behind every document.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: uint16 for up to 65,536 tokens, else uint32.")] = None,
    val_fraction: Annotated[float, typer.Option(help="Share of documents for val, chosen by their text.")] = 0.001,
    val_file: Annotated[
        list[str] | None, typer.Option(help="A file for val instead, or a pattern; 'last' is the last one; repeatable.")
    ] = None,
    no_split: Annotated[bool, typer.Option("--no-split", help="Make no splits.")] = False,
    map_: Annotated[str | None, typer.Option("--map", help="file.py:function or module:function of yours.")] = None,
    workers: Annotated[
        int | None, typer.Option("-w", "--workers", help="Slices at a time. Default: cores; 0: one process.", min=0)
    ] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    on_error: Annotated[str, typer.Option(help="What becomes of malformed lines: fail or skip.")] = "fail",
    part: Annotated[str | None, typer.Option(metavar="I/N", help="Only slices I, I + N, I + 2N, …")] = None,
    replace_changed: Annotated[
        bool, typer.Option("--replace-changed", help="Make anew what is of inputs that changed.")
    ] = False,
    slice_mb: Annotated[
        int | None, typer.Option(help="MiB of input that are one task. Default: 8 to 256, by what there is.", min=1)
    ] = None,
    shard_mb: Annotated[int, typer.Option(help="MiB after which a shard is closed.", min=1)] = 1024,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to do.")] = False,
    as_json: Json = False,
) -> None:
    """Tokenise text files into a store. Run it again after a crash, or with more files: it does what is missing."""
    # Imported here: it takes long enough for other commands not to wait for it.
    from tokenfeed.preparation.prepare import prepare

    if on_error not in ("fail", "skip"):
        raise ArgumentError(f"--on-error is {on_error!r}; it must be fail or skip")
    if no_bos and bos is not None:
        raise ArgumentError("--bos and --no-bos contradict each other")
    files = val_file or []
    show = _nothing if as_json or dry_run else _bars
    try:
        with show() as progress:
            report = prepare(
                inputs,
                out,
                tokenizer=tokenizer,
                text_column=text_column,
                keep=keep or (),
                bos=bos if bos is not None else not no_bos,
                eos=eos,
                dtype=dtype,
                split=None if no_split else "file" if files else "hash",
                val_fraction=val_fraction,
                val_files=() if files == ["last"] else files,
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
def _bars() -> Iterator[Callable[["Progress"], None]]:
    """A bar on standard error, or a line now and then where that is not a terminal."""
    there = Console(stderr=True)
    if not there.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("preparing"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Bars(*columns, console=there, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def tell(progress: "Progress") -> None:
            bars.update(task, completed=progress.input_bytes, total=progress.num_bytes, description=_describe(progress))

        yield tell


def _lines() -> Callable[["Progress"], None]:
    told = time.monotonic()

    def tell(progress: "Progress") -> None:
        nonlocal told
        if time.monotonic() - told >= _LINE_SECONDS:
            told = time.monotonic()
            share = progress.input_bytes / max(1, progress.num_bytes)
            print(f"{share:.1%}  {_describe(progress)}", file=sys.stderr, flush=True)

    return tell


def _describe(progress: "Progress") -> str:
    speed = show_bytes(progress.new_bytes / max(progress.seconds, 1e-9))
    return (
        f"{progress.files:,}/{progress.num_files:,} files  {progress.documents:,} documents  "
        f"{progress.tokens / 1e6:,.1f} M tokens  {speed}/s"
    )


def _show_plan(report: "Report") -> None:
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("store", report.path),
        ("files", f"{sum(source.files for source in report.sources):,}, {show_bytes(report.num_bytes)}"),
        ("slices", f"{report.num_slices:,}"),
        (
            "done before",
            f"{report.slices:,} slices, {report.total.documents:,} documents, {report.total.tokens:,} tokens",
        ),
        ("to do", f"{report.num_slices - report.slices:,} slices"),
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
        rows = [*rows[:_SOURCES], ("all", sum(source.files for source in report.sources), report.total)]
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
        kinds = f"{total.malformed:,} malformed, {total.null:,} without text, {total.dropped:,} by the map function"
        console.print(Text(f"  left out in all: {kinds}", style="dim"))
    speed = f"{report.tokens_per_second / 1e6:,.2f} M tokens/s, {show_bytes(report.bytes_per_second)}/s"
    did = f"{report.made:,} of {report.num_slices:,} slices in {report.seconds:.1f} s: {speed}"
    if report.retries:
        did += f"; {report.retries:,} begun again because a worker died"
    if report.is_complete:
        console.print(Text.assemble(("✓ ", "green"), f"{report.path} is complete and sealed, {report.shards:,} shards"))
    else:
        left = report.num_slices - report.slices
        console.print(Text(f"{report.path} is not complete: {left:,} slices of other parts are missing"))
    nothing = "nothing was missing" if report.is_complete else "there was nothing to do"
    console.print(Text(f"  {did if report.made else nothing}", style="dim"))
