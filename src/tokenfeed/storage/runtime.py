"""What a process has for talking to servers: obstore, its clients, an event loop in a thread. Made on first use.

obstore's own threads do not survive a fork, and a child that used the library of its parent would wait for ever. A
child process therefore has a runtime of its own, with a second copy of the library.
"""

import asyncio
import atexit
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tokenfeed.errors import ArgumentError

__all__ = ["Runtime", "runtime"]

Result = TypeVar("Result")

_runtimes: dict[int, "Runtime"] = {}
"""By process number. Those of ancestors stay, untouched: what they hold is shared with processes that still use it."""


def runtime() -> "Runtime":
    """That of this process."""
    found = _runtimes.get(os.getpid())
    return found if found is not None else _runtimes.setdefault(os.getpid(), Runtime())


class Runtime:
    """Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._obstore: ModuleType | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.kept: dict[Any, Any] = {}
        """Whatever else is one per process: clients, the fetcher."""

    @property
    def obstore(self) -> Any:
        """The library, in a copy that this process may use."""
        if self._obstore is None:
            with self._lock:
                if self._obstore is None:
                    inherited = any(other._obstore is not None for other in list(_runtimes.values()))
                    self._obstore = _load_again() if inherited else _load()
        return self._obstore

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that runs in a daemon thread."""
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    self._loop = _start_loop()
        return self._loop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Have the loop do it, and wait. An interrupt ends both."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        finally:
            future.cancel()


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=work, name="tokenfeed-storage", daemon=True)
    thread.start()

    def stop() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(1.0)
            time.sleep(0.05)  # obstore's threads let go of what they hold: one that finds no interpreter aborts

    atexit.register(stop)
    return loop


def _load() -> ModuleType:
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise ArgumentError(f"addresses with :// need the package obstore: pip install obstore ({error})") from error


def _load_again() -> ModuleType:
    """The library anew, from a copy of its file: the system's loader would give the same file a second time."""
    original = sys.modules["obstore._obstore"].__file__
    assert original is not None
    with tempfile.TemporaryDirectory(prefix="tokenfeed-") as folder:
        copy = shutil.copy(original, Path(folder) / Path(original).name)
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        finder = _CopyFinder(str(copy))
        sys.meta_path.insert(0, finder)
        try:
            library = importlib.import_module("obstore")
        finally:
            sys.meta_path.remove(finder)
    sys.modules["obstore._obstore"].__file__ = original  # for a child of this child; the copy is gone
    return library


class _CopyFinder(importlib.abc.MetaPathFinder):
    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "obstore._obstore":
            return None
        loader = importlib.machinery.ExtensionFileLoader(name, self._path)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)
