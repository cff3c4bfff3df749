"""The queue that threads keep filled."""

import itertools
import threading
import time

import pytest

from tokenfeed.loader.feed import Feed


def test_taking_while_a_thread_goes_to_sleep_wakes_it(monkeypatch):
    """Between a thread's look for room and its sleep, a result is taken: the queue fills up all the same."""
    has_room, looked, taken = Feed._has_room, threading.Event(), threading.Event()

    def look(feed: Feed) -> bool:
        room = has_room(feed)
        if not room and not looked.is_set():
            looked.set()
            taken.wait(0.2)
        return room

    monkeypatch.setattr(Feed, "_has_room", look)
    feed = Feed(itertools.count(), lambda job: [job], depth=2, per_job=1, threads=1)
    assert looked.wait(10)
    assert next(feed) == 0
    taken.set()
    deadline = time.monotonic() + 10
    while feed.queued < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert feed.queued == 2
    feed.close()


def test_an_error_of_the_jobs_comes_in_its_turn():
    """It ended the thread that took the job, and the consumer waited for ever."""

    def jobs():
        yield from range(3)
        raise ValueError("no more")

    feed = Feed(jobs(), lambda job: [job], depth=8, per_job=1, threads=2)
    assert [next(feed) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no more"):
        next(feed)
    feed.close()
