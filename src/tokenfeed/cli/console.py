"""How the commands print."""

import errno
import re

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from tokenfeed import errors

__all__ = ["console", "show_bytes", "show_count", "show_error", "show_unexpected"]

console = Console()
_errors = Console(stderr=True)

# Beyond what the message says: a command that tells more, where there is one.
_SUGGESTIONS: tuple[tuple[type[errors.TokenfeedError], str], ...] = (
    (errors.CorruptionError, "`tokenfeed verify PATH` names every file that is damaged."),
    (errors.PlanMismatchError, "`tokenfeed diff RUN RUN` tells where two runs part."),
    (errors.DownloadError, "Run the same command again: it goes on where it stopped."),
    (errors.WorkerError, "`tokenfeed doctor` shows what this machine has and lacks."),
)
_SECRET = re.compile(r"(?<=://)[^/\s@'\"]*@|(?<=\?)[^\s'\"<>]*=[^\s'\"<>]*")


def show_error(error: Exception) -> None:
    """An error that was raised on purpose, as one readable block: what it says, and a suggestion."""
    _show_block(str(error), type(error).__name__, _suggest(error))


def show_unexpected(error: BaseException) -> None:
    """An error that nobody foresaw, as one readable block. What looks like a secret in an address is left out."""
    message = _SECRET.sub("…", str(error)).strip() or "no message came with it"
    _show_block(message, f"{type(error).__name__}, which tokenfeed did not expect", _suggest(error))


def _suggest(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return "Too many files are open: `ulimit -n 8192` allows more."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "The disk is full: make room and run the command again."
    if isinstance(error, MemoryError):
        return "There is not enough memory: smaller batches, or fewer workers, need less."
    if isinstance(error, ImportError):
        return "`tokenfeed doctor` shows which packages are missing, and how to install them."
    for kind, suggestion in _SUGGESTIONS:
        if isinstance(error, kind):
            return suggestion
    if isinstance(error, errors.TokenfeedError):
        return ""
    return "Run it again with --debug for the traceback, and report both; `tokenfeed doctor` shows the machine."


def _show_block(message: str, title: str, suggestion: str) -> None:
    parts = [Text(message)]
    if suggestion:
        parts.append(Text(suggestion, style="dim"))
    _errors.print(Panel(Group(*parts), title=Text(title), title_align="left", border_style="red"))


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
