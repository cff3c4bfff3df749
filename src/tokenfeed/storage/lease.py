"""`Lease`: the sole right of a live process to a name in an object store, kept by a small object that it renews."""

import contextlib
import os
import secrets
import socket
import threading
import weakref

from tokenfeed.errors import ArgumentError, NotFoundError, TokenfeedError, WriteError
from tokenfeed.storage import objects
from tokenfeed.storage.folder import RemoteFolder

__all__ = ["LEASE_SECONDS", "Lease"]

LEASE_SECONDS = 60.0
_RENEWALS = 6
_LEASES = ".writers"


class Lease:
    """Objects `.writers/<name>/<number>`: whoever made the one with the largest number has the name.

    A lease that was not renewed for a minute is dead, and taken over by making the next number, which a server lets
    only one process do. Ages are differences between two times of the server, so that the clocks of hosts do not count.
    A process that was stopped for longer than that finds out by `check` before it writes.
    """

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        """Take it. An ArgumentError if another live process has it. Three or four requests."""
        self._folder, self._place = folder, f"{_LEASES}/{name}"
        self._owner = f"process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(8)}".encode()
        self._number = self._take(name)
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set)
        arguments = self._stop, folder, self._place, self._number, self._owner
        self._thread = threading.Thread(target=_renew, args=arguments, name="tokenfeed lease", daemon=True)
        self._thread.start()

    def _take(self, name: str) -> int:
        while True:
            last = _last(self._folder, self._place)
            with contextlib.suppress(NotFoundError):  # released meanwhile
                if last >= 0 and not self._is_dead(last):
                    owner = self._folder.read(f"{self._place}/{last}").decode(errors="replace").partition(",")[0]
                    raise ArgumentError(
                        f"another writer named {name!r} is at work on {self._folder}: {owner}. Give each writer its "
                        f"own name. If that one was killed, its name is free {LEASE_SECONDS:.0f} seconds after"
                    )
            if self._folder.create(f"{self._place}/{last + 1}", self._owner):
                if last >= 0:
                    self._folder.remove(f"{self._place}/{last}")
                return last + 1

    def _is_dead(self, number: int) -> bool:
        renewed = objects.last_change(self._folder.path(f"{self._place}/{number}"))
        probe = self._folder.path(f"{self._place}/now-{secrets.token_hex(8)}")
        objects.write(probe, b"")
        try:
            return objects.last_change(probe) - renewed > LEASE_SECONDS
        finally:
            objects.delete(probe)

    def check(self) -> None:
        """Raise a WriteError if another process has taken it over. One request."""
        if _last(self._folder, self._place) != self._number:
            path = self._folder.path(self._place)
            raise WriteError(
                f"{path} was taken over by another writer of the same name, because this one did not renew it for "
                f"{LEASE_SECONDS:.0f} seconds. Nothing more is written. Give each writer its own name",
                filename=path,
            )

    def release(self) -> None:
        self._stop.set()
        self._thread.join(LEASE_SECONDS / _RENEWALS)  # so that a renewal under way does not come after the removal
        with contextlib.suppress(TokenfeedError):
            self._folder.remove(f"{self._place}/{self._number}")


def _last(folder: RemoteFolder, place: str) -> int:
    """The largest number; −1 where there is none."""
    return max((int(name) for name in folder.files(place) if name.isdigit()), default=-1)


def _renew(stop: threading.Event, folder: RemoteFolder, place: str, number: int, owner: bytes) -> None:
    """In a thread of its own, which must not keep the lease alive."""
    while not stop.wait(LEASE_SECONDS / _RENEWALS):
        with contextlib.suppress(TokenfeedError):
            if _last(folder, place) != number:
                return
            folder.replace(f"{place}/{number}", owner)
