"""Errors that travel from one process to another."""

import pickle
import traceback
from dataclasses import dataclass

from tokenfeed import errors
from tokenfeed.errors import ReadError, TokenfeedError, WorkerError, WriteError

__all__ = ["Failure"]


@dataclass(frozen=True)
class Failure:
    """An error as plain values: some errors cannot be pickled, and some not unpickled."""

    kind: str
    message: str
    filename: str | None
    errno: int | None
    traceback: str
    pickled: bytes | None = None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        try:
            pickled = None if isinstance(error, TokenfeedError) else pickle.dumps(error)
        except Exception:  # noqa: BLE001 (a user's error may be anything)
            pickled = None
        filename, number = (error.filename, error.errno) if isinstance(error, OSError) else (None, None)
        return cls(
            type(error).__name__,
            str(error),
            None if filename is None else str(filename),
            number,
            "".join(traceback.format_exception(error)),
            pickled,
        )

    def rebuild(self) -> BaseException:
        """The error, with the traceback that it had in the worker as a note."""
        kind = vars(errors).get(self.kind)
        error: BaseException
        if isinstance(kind, type) and issubclass(kind, TokenfeedError):
            if issubclass(kind, ReadError | WriteError):
                error = kind(self.message, filename=self.filename or "", errno=self.errno)
            else:
                error = kind(self.message)
        else:
            error = self._unpickled() or WorkerError(f"a worker failed with {self.kind}: {self.message}")
        error.add_note(f"In the worker:\n{self.traceback}")
        return error

    def _unpickled(self) -> BaseException | None:
        if self.pickled is None:
            return None
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # noqa: BLE001 (a class that is known there alone, or takes other arguments)
            return None
        return error if isinstance(error, BaseException) else None
