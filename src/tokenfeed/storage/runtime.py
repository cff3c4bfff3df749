"""What a process needs to talk to servers: obstore, its clients, and an event loop in a thread. Made on first use.

obstore's threads do not survive a fork: a child would wait for ever for its parent's, so it gets a ForkError.
"""

import asyncio
import atexit
import importlib
import os
import threading
import time
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, Self, TypeVar

from tokenfeed.errors import DependencyError, ForkError

__all__ = ["LoopThread", "Runtime", "check_not_forked", "result_of", "runtime"]

Result = TypeVar("Result")

_PIECE_SECONDS = 0.25
_LAST_SECONDS = 30.0


def result_of(future: Future[Result]) -> Result:
    """The result of a future, once it is there.

    The wait is in pieces. A signal that the system gives to a thread of obstore does not wake this one, and Python
    would raise KeyboardInterrupt only when the wait is over.
    """
    while not wait([future], _PIECE_SECONDS).done:
        pass
    return future.result()


class _Loop(asyncio.SelectorEventLoop):
    """Knows which of its futures are in use. One of obstore's threads holds the future of every request until it will
    not call Python again; if the interpreter ended before that, the process would abort."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()

    def create_future(self) -> "asyncio.Future[Any]":
        future = super().create_future()
        self.futures.add(future)
        return future


class LoopThread:
    """An event loop that runs in a daemon thread, for requests by obstore."""

    def __init__(self, name: str) -> None:
        self.loop = _Loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and wait for its result. An interrupt ends both."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return result_of(future)
        finally:
            future.cancel()

    def stop(self) -> None:
        """Cancel everything that runs, and wait until it has ended, in obstore's threads too."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_LAST_SECONDS + 5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(_cancel_others())
        last = time.monotonic() + _LAST_SECONDS
        while self.loop.futures and time.monotonic() < last:
            importlib.import_module("obstore").store.MemoryStore()  # any call frees what its threads let go of
            self.loop.run_until_complete(asyncio.sleep(0.002))
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Runtime(LoopThread):
    """obstore and the loop of this process. Threads may share it."""

    def __init__(self) -> None:
        try:
            self.obstore: Any = importlib.import_module("obstore")
        except ImportError as error:
            raise DependencyError(f"remote data needs pip install 'tokenfeed[remote]' ({error})") from error
        self.process = os.getpid()
        self.kept: dict[Any, Any] = {}
        """Everything else a process has once: clients, the fetcher."""
        super().__init__("tokenfeed-storage")
        atexit.register(self.stop)


_runtime: Runtime | None = None
_lock = threading.Lock()


def runtime() -> Runtime:
    """The runtime of this process. ForkError if the process was forked from one that had a runtime."""
    global _runtime
    if _runtime is None:
        with _lock:
            if _runtime is None:
                _runtime = Runtime()
    check_not_forked(_runtime.process)
    return _runtime


def check_not_forked(process: int) -> None:
    """Raise a ForkError unless this is the process of that number."""
    if os.getpid() != process:
        raise ForkError(
            f"remote data cannot be read in process {os.getpid()}: it was forked from process {process}, which had "
            "opened remote data before, and the client's threads do not survive a fork. Start processes by spawn "
            '(multiprocessing.get_context("spawn"), DataLoader(…, multiprocessing_context="spawn")), or open remote '
            "data only after the fork, in the children alone."
        )
