import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokenfeed.cli.console import console, make_table, print_json, show_bytes, tell, tell_done, tell_facts, to_stderr
from tokenfeed.cli.options import Inputs, Json, TextOption, Val, parse_field, parse_val
from tokenfeed.errors import ArgumentError, quantity

if TYPE_CHECKING:
    from tokenfeed.preparation.report import Report
    from tokenfeed.text.chat.rendering import Chat

_LINE_SECONDS = 5.0
_SOURCES = 20
_LAYOUTS = "messages", "conversations", "prompt-completion", "instruction", "pairs", "chosen"


def command(
    inputs: Inputs,
    out: Annotated[str, typer.Option("-o", "--out", metavar="STORE", help="The folder of the store.")],
    tokenizer: Annotated[str | None, typer.Option(help="A saved tokenizer: its folder, or its tokenizer.json.")] = None,
    text_column: TextOption = "text",
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
    val: Val = None,
    map_: Annotated[
        str | None, typer.Option("--map", help="A function of your own: file.py:function or module:function.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Conversations, written by the chat template, with a loss mask.")
    ] = False,
    template: Annotated[
        str | None, typer.Option(help="A model's folder or a .jinja file; nanochat. Default: beside the tokenizer.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help=f"{', '.join(_LAYOUTS)}. Default: that of the first record.")
    ] = None,
    train_on: Annotated[
        str, typer.Option(help="Learned messages: a role, roles with commas between them, last, or all.")
    ] = "assistant",
    variables: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable of the template; repeatable.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("-w", "--workers", help="Processes. Default: one a core; 0: this process.", min=0)
    ] = None,
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
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

    if not chat and (template or layout or variables or train_on != "assistant"):
        raise ArgumentError("--template, --layout, --train-on and --set are for conversations: add --chat")
    if on_error not in ("fail", "skip"):
        raise ArgumentError(f"--on-error is {on_error!r}; it must be fail or skip")
    progressing = contextlib.nullcontext() if as_json or dry_run else _show_progress()
    try:
        with progressing as progress:
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
                val=parse_val(val),
                map=map_,
                chat=chat and _make_chat(template, layout, train_on, _parse_variables(variables)),
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
        print_json({**report.to_json(), "dry_run": dry_run})
    elif dry_run:
        _show_plan(report)
    else:
        _show(report)


def _make_chat(template: str | None, layout: str | None, train_on: str, variables: dict[str, Any]) -> "Chat":
    from tokenfeed.text.chat.rendering import Chat

    roles: Any = train_on.split(",") if "," in train_on else train_on
    return Chat(template, layout, roles, variables)


def _parse_variables(given: list[str] | None) -> dict[str, Any]:
    expected = "enable_thinking=false, or date_string='26 Jul 2024'"
    fields = (parse_field(each, "--set", expected, str.isidentifier) for each in given or ())
    return {name: value for name, _, value in fields}


def _parse_part(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    number, slash, count = text.partition("/")
    if not slash or not number.isdigit() or not count.isdigit():
        raise ArgumentError(f"--part is {text!r}; expected 0/8 for the first of 8 parts, 7/8 for the last")
    return int(number), int(count)


@contextlib.contextmanager
def _show_progress() -> Iterator[Callable[["Report"], None]]:
    """A bar on standard error, or a line now and then where that is not a terminal."""
    columns = (TextColumn("preparing"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=to_stderr, transient=True, disable=not to_stderr.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        told = time.monotonic()

        def show(report: "Report") -> None:
            nonlocal told
            done, total = report.total, report.num_bytes
            text = (
                f"{report.files:,}/{quantity(report.num_files, 'file')}  {quantity(done.documents, 'document')}  "
                f"{done.tokens / 1e6:,.1f} M tokens  {show_bytes(report.bytes_per_second)}/s"
            )
            bar.update(task, completed=done.input_bytes, total=total, description=text)
            if bar.disable and time.monotonic() - told >= _LINE_SECONDS:
                told = time.monotonic()
                print(f"{done.input_bytes / max(1, total):.1%}  {text}", file=sys.stderr, flush=True)

        yield show


def _show_plan(report: "Report") -> None:
    counts = quantity(report.total.documents, "document"), quantity(report.total.tokens, "token")
    tell_facts(
        {
            "store": report.path,
            "files": f"{report.num_files:,}, {show_bytes(report.num_bytes)}",
            **({"splits": report.held_out} if report.held_out else {}),
            "slices": f"{report.num_slices:,}",
            "done before": ", ".join((quantity(report.slices, "slice"), *counts)),
            "to do": quantity(report.num_slices - report.slices, "slice"),
        }
    )


def _show(report: "Report") -> None:
    tell_done(str(report)) if report.is_complete else tell(str(report))
    if len(report.sources) > 1:
        numbers = ("files", "documents", "tokens", "bytes", "val tokens")
        rows = [
            (source.name, source.files, of.documents, of.tokens, of.input_bytes, of.val_tokens)
            for source in report.sources[:_SOURCES]
            for of in [source.counts]
        ]
        shown = [(name, *(f"{number:,}" for number in row)) for name, *row in rows]
        console.print(make_table(("source", *numbers), shown, right=numbers, bare=True))
    if len(report.sources) > _SOURCES:
        tell(f"  and {quantity(len(report.sources) - _SOURCES, 'source')} more; --json has all", style="dim")
    for problem in report.problems:
        tell(("· ", "dim"), f"left out: {problem}")
    if report.retries:
        tell(f"  {quantity(report.retries, 'slice')} begun again because a worker died", style="dim")
