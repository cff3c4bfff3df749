"""Progress of a download: what it reports, and bars that show it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Arrival", "bars"]


@dataclass(frozen=True)
class Arrival:
    """How far one file has come."""

    name: str
    state: Literal["arriving", "arrived", "there", "failed"]
    """State of the file; `there` means that it was there before."""
    num_bytes: int
    total: int | None
    """Size of the file, if it is known."""
    num_files: int
    """Number of files of the whole download."""


@contextlib.contextmanager
def bars() -> Iterator[Callable[[Arrival], None]]:
    """Shows one bar for all files and one for each under way, on standard error, if that is a terminal. Thread-safe.

    The bytes of all files together are mostly unknown before the last one begins. Until then the bar for all files goes
    by the mean size of those that are known.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    overall = progress.add_task("files", total=None)
    tasks: dict[str, TaskID] = {}
    arriving: dict[str, Arrival] = {}
    lock = threading.Lock()
    num_bytes = known = num_known = finished = skipped = 0

    def tell(arrival: Arrival) -> None:
        nonlocal num_bytes, known, num_known, finished, skipped
        with lock:
            name = arrival.name
            before = arriving.pop(name, Arrival(name, "arriving", 0, None, 0))
            if arrival.state in ("arriving", "arrived"):
                num_bytes += arrival.num_bytes - before.num_bytes
                known += (arrival.total or 0) - (before.total or 0)
                num_known += (arrival.total is not None) - (before.total is not None)
            if arrival.state == "arriving":
                arriving[name] = arrival
                if name not in tasks:
                    tasks[name] = progress.add_task(name, total=arrival.total)
                progress.update(tasks[name], completed=arrival.num_bytes, total=arrival.total)
            else:
                finished += 1
                skipped += arrival.state != "arrived"
                if name in tasks:
                    progress.remove_task(tasks.pop(name))
            total = known / num_known * (arrival.num_files - skipped) if num_known else None
            description = f"{finished:,} of {arrival.num_files:,} files"
            progress.update(overall, completed=num_bytes, total=total, description=description)

    with progress:
        yield tell
