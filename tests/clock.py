"""A clock that a test controls, in place of those of `time`; and how to see that a thread is blocked."""

import sys
import threading
import time
from types import SimpleNamespace

__all__ = ["Clock", "is_blocked"]

_WAITS = {"wait", "join", "_wait_for_tstate_lock"}


def is_blocked(thread: threading.Thread) -> bool:
    """Whether a thread waits for another one: for a condition, an event, a future, or its end."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name in _WAITS


class Clock:
    """Seconds that pass only when a test says so.

    The thread that makes the clock is the training loop. Threads that work for it let time pass while it waits for
    them, so that how busy the machine is changes nothing.
    """

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 0.0
        self.looks = 0
        """How often the clock was looked at; `tick` seconds pass each time."""
        self._tick = tick
        self._loop = threading.current_thread()
        self._lock = threading.Lock()
        self._stopped = False

    def __call__(self) -> float:
        self.advance(self._tick)
        self.looks += 1
        return self.now

    def module(self, name: str) -> SimpleNamespace:
        """The module `time` with this clock for one of its functions, to put into the module that is tested.

        The module `time` itself must not be changed: event loops in other threads of the tests look at it too.
        """
        return SimpleNamespace(**{**vars(time), name: self})

    def advance(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds

    def work(self, seconds: float) -> None:
        """Take so long for something that the loop waits for: blocks until it does."""
        while threading.current_thread() is not self._loop and not is_blocked(self._loop) and not self._stopped:
            time.sleep(0.0005)
        self.advance(seconds)

    def stop(self) -> None:
        """Let threads go that still wait for the loop."""
        self._stopped = True
