"""Output that the commands share: errors, JSON, progress bars, sizes."""

import contextlib
import errno
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from tokenfeed import errors

__all__ = ["console", "print_json", "progress_bar", "show_bytes", "show_count", "show_error", "show_unexpected"]

console = Console()
_errors = Console(stderr=True)

# A command that tells more than the message, for some kinds of error.
_SUGGESTIONS: tuple[tuple[type[errors.TokenfeedError], str], ...] = (
    (errors.CorruptionError, "`tokenfeed verify PATH` names every damaged file."),
    (errors.PlanMismatchError, "`tokenfeed diff RUN RUN` shows where two runs diverge."),
    (errors.DownloadError, "Run the same command again: it continues where it stopped."),
    (errors.WorkerError, "`tokenfeed doctor` shows what this machine has and lacks."),
)
_SECRET = re.compile(r"(?<=://)[^/\s@'\"]*@|(?<=\?)[^\s'\"<>]*=[^\s'\"<>]*")


def show_error(error: Exception) -> None:
    """Print an error raised on purpose as one block: its message and a suggestion."""
    _show_block(str(error), type(error).__name__, _suggest(error))


def show_unexpected(error: BaseException) -> None:
    """Print an unexpected error as one block, without anything that looks like a secret in an address."""
    message = _SECRET.sub("…", str(error)).strip() or "(no message)"
    _show_block(message, f"Unexpected {type(error).__name__}", _suggest(error))


def _suggest(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return "Too many files are open: `ulimit -n 8192` allows more."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "The disk is full: free some space and run the command again."
    if isinstance(error, MemoryError):
        return "There is not enough memory: use smaller batches or fewer workers."
    if isinstance(error, ImportError):
        return "`tokenfeed doctor` shows which packages are missing and how to install them."
    for kind, suggestion in _SUGGESTIONS:
        if isinstance(error, kind):
            return suggestion
    if isinstance(error, errors.TokenfeedError):
        return ""
    return "Run it again with --debug, and report the traceback together with the output of `tokenfeed doctor`."


def _show_block(message: str, title: str, suggestion: str) -> None:
    parts = [Text(message)]
    if suggestion:
        parts.append(Text(suggestion, style="dim"))
    _errors.print(Panel(Group(*parts), title=Text(title), title_align="left", border_style="red"))


def print_json(value: Any) -> None:
    """Print JSON for programs; objects it does not know, such as paths, become text."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))


@contextlib.contextmanager
def progress_bar(title: str, *columns: ProgressColumn, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar that vanishes at the end. Yields the function to call with (done, total)."""
    shown = TextColumn(title), BarColumn(), *columns, TimeRemainingColumn()
    with Progress(*shown, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_bytes(count: float) -> str:
    """`"1.5 GB"` for 1,500,000,000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} PB"


def show_count(count: float) -> str:
    """`"1.5 M"` for 1,500,000."""
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:,.1f} T"
