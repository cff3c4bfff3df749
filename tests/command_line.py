"""`tokenfeed …` as a user types it: in this process, which saves the second that a new one takes to import everything.

Commands are also started as processes, each of them somewhere, for what an interpreter, a signal or a terminal does.
"""

import contextlib
import io
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tokenfeed.cli import console as printing
from tokenfeed.cli import main

__all__ = ["COMMAND", "Done", "run", "run_process"]

COMMAND = Path(sys.executable).parent / "tokenfeed"
WIDTH = 200


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, cwd: Path | None = None, width: int = WIDTH, **environment: str) -> Done:
    """What a command says and how it ends, in a terminal of so many columns."""
    stdout, stderr, status = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(cwd or "."),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        mock.patch.dict(os.environ, {"COLUMNS": str(width), **environment}),
        mock.patch.object(sys, "argv", ["tokenfeed", *map(str, arguments)]),
        mock.patch.object(printing.console, "_width", width),  # COLUMNS is looked at when a console is made
        mock.patch.object(printing.to_stderr, "_width", width),
    ):
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else bool(ended.code)
        except Exception:  # noqa: BLE001 — as the interpreter does
            traceback.print_exc()
            status = 1
    return Done(status, stdout.getvalue(), stderr.getvalue())


def run_process(*arguments: object, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The same by a process of its own."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        env={**os.environ, "COLUMNS": str(WIDTH), **environment},
    )
