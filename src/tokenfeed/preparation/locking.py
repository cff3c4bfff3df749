"""Who works on a store. The locks are the kernel's: they go with the process that holds them, however it ends."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tokenfeed.errors import StateError
from tokenfeed.storage.local import writing

__all__ = ["Hold", "hold"]

_PATIENCE_SECONDS = 10.0
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def hold(path: Path | None, *, exclusive: bool) -> Iterator["Hold"]:
    """Hold a lock file: alone, as one run does until it lets its workers in, or together with others who share it.

    Waits for the workers of a killed run to end. Without a path nothing is held.
    """
    if path is None:
        yield Hold(None, -1)
        return
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        held = Hold(path, descriptor)
        held.take(exclusive=exclusive)
        yield held
    finally:
        with contextlib.suppress(OSError):  # nothing was written to it
            os.close(descriptor)


class Hold:
    """An open lock file; or none, which holds nothing."""

    def __init__(self, path: Path | None, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def is_alone(self) -> bool:
        """Whether nobody else holds it; if so, nobody else can from now on."""
        import fcntl

        if self._path is None:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def take(self, *, exclusive: bool) -> None:
        """Hold it alone, or let others in."""
        import fcntl

        if self._path is None:
            return
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StateError(
                        f"another run is preparing {self._path.parents[1]} (it holds {self._path}). Wait for it, or "
                        "stop it: what it has done is kept."
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    with writing(self._path):
                        raise
                return  # a file system without locks
