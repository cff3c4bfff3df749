"""Every error tokenfeed raises on purpose. Each is also the built-in a caller would expect.

TokenfeedError
├── ArgumentError      ValueError    an argument that cannot be meant
├── MissingError       KeyError      no such column, span table, split
├── SampleIndexError   IndexError    a sample number outside the view
├── FitError           ValueError    a value that the column's dtype cannot hold
├── NotFoundError      FileNotFoundError  no file, folder or object at this path
│   └── NotAStoreError               nothing at this path that tokenfeed can open
├── DependencyError    ImportError   an optional package that is not installed
├── AddressInUseError  OSError       a port that another process listens on
├── FormatError        ValueError    a file that is not what its name or version promises
│   └── CorruptionError              a file that contradicts its manifest, its header or itself
├── ReadError          OSError       the operating system would not read
│   └── TruncatedError               a file that ended early, while it was being read
├── WriteError         OSError       the operating system would not write
├── DownloadError      OSError       a server that would not give what was asked
├── StateError         ValueError    a checkpoint, plan or run file that cannot be understood
├── PlanMismatchError  ValueError    a checkpoint of another run
├── WorkerError        RuntimeError  a worker process or task that failed repeatedly
├── ForkError          RuntimeError  remote data in a forked process whose parent had opened some
└── InterpreterError   ImportError   imported where kernels cannot be compiled
"""

import os
from functools import partial
from typing import Any

__all__ = [
    "AddressInUseError",
    "ArgumentError",
    "CorruptionError",
    "DependencyError",
    "DownloadError",
    "FitError",
    "ForkError",
    "FormatError",
    "InterpreterError",
    "MissingError",
    "NotAStoreError",
    "NotFoundError",
    "PlanMismatchError",
    "ReadError",
    "SampleIndexError",
    "StateError",
    "TokenfeedError",
    "TruncatedError",
    "WorkerError",
    "WriteError",
]


class TokenfeedError(Exception):
    """The root of every error raised on purpose."""

    def __str__(self) -> str:  # KeyError would show the message in quotes, OSError with a number before it
        return str(self.args[0]) if self.args else ""


class ArgumentError(TokenfeedError, ValueError):
    """An argument that cannot be meant."""


class MissingError(TokenfeedError, KeyError):
    """A column, span table or split that the store does not have."""


class SampleIndexError(TokenfeedError, IndexError):
    """A sample number outside the view."""


class FitError(TokenfeedError, ValueError):
    """A value that the column's dtype cannot hold."""


class NotFoundError(TokenfeedError, FileNotFoundError):
    """No file, folder or object at this path."""


class NotAStoreError(NotFoundError):
    """Nothing at this path that tokenfeed can open."""


class DependencyError(TokenfeedError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class AddressInUseError(TokenfeedError, OSError):
    """Another process listens on this port."""


class FormatError(TokenfeedError, ValueError):
    """A file that is not what its name or version promises."""


class CorruptionError(FormatError):
    """A file that contradicts its manifest, its header or itself."""


class _FileError(TokenfeedError, OSError):
    """`errno` and `filename` say what and where, also in another process."""

    def __init__(self, message: str, *, filename: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.filename = filename
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), filename=self.filename, errno=self.errno), self.args


class ReadError(_FileError):
    """The operating system would not read."""


class TruncatedError(ReadError):
    """A file that ended before the bytes it was opened for."""


class WriteError(_FileError):
    """The operating system would not write."""


class DownloadError(TokenfeedError, OSError):
    """A server that would not give what was asked, however often it was asked."""


class StateError(TokenfeedError, ValueError):
    """A checkpoint, plan or run file that cannot be understood."""


class PlanMismatchError(TokenfeedError, ValueError):
    """A checkpoint of a run that delivered other samples than this plan would have."""


class WorkerError(TokenfeedError, RuntimeError):
    """A worker process or task that failed repeatedly, or failed with an error that was not expected."""


class ForkError(TokenfeedError, RuntimeError):
    """Remote data read in a forked process, where the client's threads are missing; the message names the way out."""


class InterpreterError(TokenfeedError, ImportError):
    """Imported where kernels cannot be compiled: in a subinterpreter."""


def describe_errno(number: int) -> str:
    """`"Input/output error (EIO)"` for 5."""
    import errno

    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"


def quantity(number: int, noun: str, plural: str = "") -> str:
    """`"1 shard"` or `"2,000 shards"`; `plural` for nouns that do not just add an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
