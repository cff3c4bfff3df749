"""Everything the commands print. Text of others is escaped here, and nowhere is text read as Rich markup."""

import contextlib
import errno
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tokenfeed import errors
from tokenfeed.errors import printable

console = Console()
to_stderr = Console(stderr=True)

# A command that tells more than the message, for some kinds of error.
_SUGGESTIONS: tuple[tuple[type[Exception], str], ...] = (
    (errors.PlanMismatchError, "`tokenfeed diff RUN RUN` shows where two runs diverge."),
    (errors.DownloadError, "Run the same command again: it continues where it stopped."),
    (errors.WorkerError, "`tokenfeed doctor` shows what this machine has and lacks."),
    (MemoryError, "There is not enough memory: use smaller batches or fewer workers."),
    (ImportError, "`tokenfeed doctor` shows which packages are missing and how to install them."),
    (errors.TokenfeedError, ""),
    (Exception, "Run it again with --debug, and report the traceback together with the output of `tokenfeed doctor`."),
)
_SYSTEM_SUGGESTIONS = {
    errno.EMFILE: "Too many files are open: `ulimit -n 8192` allows more.",
    errno.ENOSPC: "The disk is full: free some space and run the command again.",
}
_LONGEST_MESSAGE = 4_000
_SECRET = re.compile(r"(?<=://)[^/\s@'\"]*@|(?<=\?)[^\s'\"<>=?]*=[^\s'\"<>]*")


def show_error(error: Exception, flags: Mapping[str, str]) -> None:
    """Print an error, its message and a suggestion: in a box on a terminal. What looks like a secret is cut out of
    unexpected ones.

    `flags` are the options of the command by their names in Python, in which messages speak.
    """
    message, title = _in_flags(str(error), flags), type(error).__name__
    is_expected = isinstance(error, errors.TokenfeedError)
    if not is_expected or isinstance(error, errors.WorkerError):
        message = _SECRET.sub("…", message[:_LONGEST_MESSAGE]).strip() or "(no message)"
    title = title if is_expected else f"Unexpected {title}"
    suggestion = next(told for kind, told in _SUGGESTIONS if isinstance(error, kind))
    if isinstance(error, OSError):
        suggestion = _SYSTEM_SUGGESTIONS.get(error.errno or 0, suggestion)
    advice = [styled(suggestion, style="dim")] if suggestion else []
    if to_stderr.is_terminal:
        box = Panel(Group(styled(message), *advice), title=Text(title), title_align="left", border_style="red")
        to_stderr.print(box)
    else:
        to_stderr.print(styled(f"{title}: {message}"), *advice, sep="\n", soft_wrap=True)


def _in_flags(message: str, flags: Mapping[str, str]) -> str:
    """`--text-column body` for `text_column='body'`, and `--length is 0` for `length is 0`.

    `--store web=PATH` for `stores={'web': 'PATH'}`.
    """

    def write(found: re.Match[str]) -> str:
        flag, value = flags[found[1]], found[2].strip("'\"")
        if pair := re.fullmatch(r"\{(['\"])(.*)\1: '(.*)'\}", value):
            value = f"{shlex.quote(pair[2])}={pair[3]}"
        if found[1] == "val":
            value = {"None": "none", "()": "all-data"}.get(value, value)
        if value == "None":
            return flag if found[1] == "separator" else found[0]
        values = re.findall("'([^']*)'", value) if value.startswith("[") else [value]
        quoted = [f"'{each}'" if "*" in each else each for each in values]
        return flag if value in ("", "True") else " ".join(f"{flag} {each}" for each in quoted)

    if not flags:
        return message
    names = "|".join(map(re.escape, flags))
    text = r"'[^']*'|\"[^\"]*\""
    value = rf"\{{(?:{text}): '[^']*'\}}|(?!\{{)(?:{text}|\(\)|\[[^\]]*\]|[\w.…/*-]*)"
    message = re.sub(rf"(?<![\w.?&/-])({names})=({value})(?: \(--[\w-]+\))?", write, message)
    return re.sub(rf"\A({names})(?= is (?:[-\d'\"]|None|True|False|missing))", lambda found: flags[found[1]], message)


def styled(*parts: str | tuple[str, str], style: str = "") -> Text:
    """Text for the terminal; a part may be (text, style)."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((printable(text), of_part) for text, of_part in pairs), style=style)


def tell(*parts: str | tuple[str, str], style: str = "") -> None:
    console.print(styled(*parts, style=style))


def tell_done(text: str) -> None:
    tell(("✓ ", "green"), text)


def tell_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one pair per line."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(styled(name, style="dim"), styled(str(value)))
    console.print(table)


def make_table(
    names: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: Collection[str] = (),
    bare: bool = False,
) -> Table:
    """A table with columns `names`, those in `right` aligned right. Cells are wrapped, never cut. `bare`: no lines."""
    heading = styled(title, style="bold") if title else None
    table = Table(title=heading, title_justify="left", header_style="dim" if bare else "bold")
    if bare:
        table.box, table.padding = None, (0, 1)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else styled(str(cell)) for cell in row))
    return table


def print_json(value: Any) -> None:
    """Print JSON for programs; objects it does not know, such as paths, become text."""
    print(printable(json.dumps(value, indent=2, default=str, ensure_ascii=False)))


@contextlib.contextmanager
def progress_bar(title: str, *columns: ProgressColumn, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar that vanishes at the end. Yields the function to call with (done, total)."""
    shown = TextColumn(title), BarColumn(), *columns, TimeRemainingColumn()
    with Progress(*shown, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_bytes(count: float) -> str:
    """`"1.5 GB"` for 1,500,000,000."""
    return _scale(count, (" B", " kB", " MB", " GB", " TB", " PB"))


def show_count(count: float) -> str:
    """`"1.5 M"` for 1,500,000."""
    return _scale(count, ("", " k", " M", " G", " T"))


def _scale(count: float, units: Sequence[str]) -> str:
    power = 0
    while count >= 1000 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:,.{min(power, 1)}f}{units[power]}"
