"""Background threads that keep a queue filled, in order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Feed"]

Job = TypeVar("Job")
Result = TypeVar("Result")

_PATIENCE_SECONDS = 5
_PIECE_SECONDS = 0.25


class Feed(Iterator[Result], Generic[Job, Result]):
    """Results of `work(job)` for one job after another, computed ahead of time by threads.

    A job gives about `per_job` results; at most `depth` of them wait or are under way. The threads refer to this object
    only, so its owner can be collected, and must then call `close`.
    """

    def __init__(
        self, jobs: Iterator[Job], work: Callable[[Job], list[Result]], *, depth: int, per_job: int, threads: int
    ) -> None:
        self._jobs = jobs
        self._work = work
        self._per_job = per_job
        self._full = max(0, depth - per_job)
        """Largest number of results, waiting or under way, at which another job is begun."""
        self._idle = 0
        """Number of threads that wait, or are about to wait, for room."""
        self._changed = threading.Condition()
        self._in_turn = threading.Lock()
        """Held while a job is taken: that may take a while, and must not hold up `__next__`."""
        self._ready: deque[Result] = deque()
        self._done: dict[int, list[Result] | BaseException] = {}
        """Outcomes that came before their turn: results, or an error; StopIteration for the end."""
        self._taken = 0
        self._delivered = 0
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name="tokenfeed", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def queued(self) -> int:
        """Number of results that are ready."""
        return len(self._ready)

    def __next__(self) -> Result:
        """The next result. Raises StopIteration after the last one, and an error of `work` in its turn."""
        try:
            result = self._ready.popleft()  # no lock: only this side takes, and others may add meanwhile
        except IndexError:
            return self._wait()
        if self._idle and len(self._ready) <= self._full:
            with self._changed:
                self._changed.notify_all()
        return result

    def _wait(self) -> Result:
        with self._changed:
            while not self._ready:
                if isinstance(error := self._done.get(self._delivered), BaseException):
                    self._closed = True
                    self._changed.notify_all()
                    raise error
                if self._idle:
                    self._changed.notify_all()
                # In pieces: a signal that another thread gets does not wake this one, and Ctrl-C would wait for it.
                self._changed.wait(_PIECE_SECONDS)
            result = self._ready.popleft()
            self._changed.notify_all()  # there is room now, and threads may have gone to sleep before this one woke
            return result

    def _run(self) -> None:
        while True:
            outcome: list[Result] | BaseException = StopIteration()
            with self._in_turn:
                with self._changed:
                    self._idle += 1  # before looking for room: `__next__` takes without the lock, then looks at this
                    while not self._closed and not self._has_room():
                        self._changed.wait()
                    self._idle -= 1
                    if self._closed:
                        return
                    number = self._taken
                    self._taken += 1
                try:
                    job = next(self._jobs, None)
                except BaseException as error:  # noqa: BLE001 — it is the consumer's, whatever it is
                    job, outcome = None, error
            if job is not None:
                try:
                    outcome = self._work(job)
                except BaseException as error:  # noqa: BLE001
                    outcome = error
            with self._changed:
                self._done[number] = outcome
                while isinstance(results := self._done.get(self._delivered), list):
                    self._ready.extend(results)
                    del self._done[self._delivered]
                    self._delivered += 1
                self._changed.notify_all()
            if not isinstance(outcome, list):
                return

    def _has_room(self) -> bool:
        under_way = (self._taken - self._delivered) * self._per_job
        return len(self._ready) + under_way <= self._full

    def close(self) -> None:
        """Stop the threads. A thread that is stuck is not waited for: it does no harm, and ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
