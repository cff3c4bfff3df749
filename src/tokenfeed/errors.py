"""Every error tokenfeed raises on purpose. Each is also the built-in a caller would expect.

TokenfeedError
├── ArgumentError      ValueError    an argument that cannot be meant
├── MissingError       KeyError      no such column, span table, split
├── SampleIndexError   IndexError    a sample number outside the view
├── FitError           ValueError    a value that the column's dtype cannot hold
├── TooLargeError      MemoryError   samples that do not fit this machine's memory
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
├── StateError         ValueError    a checkpoint, plan or run file that cannot be understood; an unfinished store
├── PlanMismatchError  ValueError    a checkpoint of another run
├── WorkerError        RuntimeError  a worker process or task that failed repeatedly
├── ForkError          RuntimeError  remote data in a forked process whose parent had opened some
├── InterpreterError   ImportError   imported where kernels cannot be compiled
└── PlatformError      ImportError   imported on a system that tokenfeed does not run on
"""

import errno
import operator
import os
import re
import sys
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
    "PlatformError",
    "ReadError",
    "SampleIndexError",
    "StateError",
    "TokenfeedError",
    "TooLargeError",
    "TruncatedError",
    "WorkerError",
    "WriteError",
]

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class TokenfeedError(Exception):
    """The root of every error raised on purpose."""

    def __str__(self) -> str:  # KeyError would show the message in quotes, OSError with a number before it
        return str(self.args[0]) if self.args else ""


class ArgumentError(TokenfeedError, ValueError): ...


class MissingError(TokenfeedError, KeyError): ...


class SampleIndexError(TokenfeedError, IndexError): ...


class FitError(TokenfeedError, ValueError): ...


class TooLargeError(TokenfeedError, MemoryError): ...


class DependencyError(TokenfeedError, ImportError): ...


class AddressInUseError(TokenfeedError, OSError): ...


class FormatError(TokenfeedError, ValueError): ...


class CorruptionError(FormatError): ...


class _FileError(TokenfeedError, OSError):
    """The operating system would not do it; `errno` and `filename` say what and where, also in another process."""

    def __init__(self, message: str, *, filename: str | None = None, errno: int | None = None) -> None:
        super().__init__(message)
        self.filename = filename
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), filename=self.filename, errno=self.errno), self.args


class NotFoundError(_FileError, FileNotFoundError): ...


class NotAStoreError(NotFoundError): ...


class ReadError(_FileError): ...


class TruncatedError(ReadError): ...


class WriteError(_FileError): ...


class DownloadError(TokenfeedError, OSError): ...


class StateError(TokenfeedError, ValueError): ...


class PlanMismatchError(TokenfeedError, ValueError): ...


class WorkerError(TokenfeedError, RuntimeError): ...


class ForkError(TokenfeedError, RuntimeError): ...


class InterpreterError(TokenfeedError, ImportError): ...


class PlatformError(TokenfeedError, ImportError): ...


if sys.platform == "win32":  # positional reads, forks and locks of files are those of POSIX
    raise PlatformError(
        "tokenfeed does not run on Windows itself. Use WSL, the Windows Subsystem for Linux: run `wsl --install` in a "
        "terminal, and in the Linux that it starts, pip install tokenfeed"
    )


def describe_errno(number: int) -> str:
    """`"Input/output error (EIO)"` for 5."""
    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"


def quantity(number: int, noun: str, plural: str = "") -> str:
    """`"1 shard"` or `"2,000 shards"`; `plural` for nouns that do not just add an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def whole(name: str, value: Any, least: int = 0, bits: int = 63, kind: type[TokenfeedError] = ArgumentError) -> int:
    """The value as an int, if it is a whole number from `least` to 2**bits."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not least <= number < 1 << bits:
        most = f" and below 2**{bits}" if number > 0 or bits < 63 else ""
        raise kind(
            f"{name} is {str(value)[:80] if kind is StateError else repr(value)}; it must be a whole number of "
            f"at least {least}{most}"
        )
    return number


def printable(text: str) -> str:
    """Text of others as a terminal may get it: control and direction characters and half surrogates as `\\u001b`."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
