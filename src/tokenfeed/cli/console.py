"""How the commands print."""

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

__all__ = ["console", "show_bytes", "show_error"]

console = Console()
_errors = Console(stderr=True)


def show_error(error: Exception) -> None:
    """An error as one readable block."""
    _errors.print(Panel(Text(str(error)), title=type(error).__name__, title_align="left", border_style="red"))


def show_bytes(count: float) -> str:
    """`"1.5 GB"` for 1,500,000,000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} PB"
