"""A process of the pool: takes a job, then one task after the other, and ends when the run does."""

import os
import queue
import threading
from multiprocessing.connection import Connection
from typing import Any

from tokenfeed.preparation.engines.failure import Failure
from tokenfeed.preparation.slices import Job, SliceMaker, Task

__all__ = ["READY", "work"]

READY = "ready"


def work(descriptor: int) -> None:
    """Serve whoever holds the other end: READY, then Counts as work goes on, and a Record or a Failure a task."""
    os.dup2(2, 1)  # what a user's function prints must not get between the lines of a report
    connection: Connection[Any, Any] = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    connection.send(READY)
    job: Job = inbox.get()
    try:
        maker = SliceMaker(job)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
        connection.send(Failure.of(error))
        return
    while (task := inbox.get()) is not None:
        connection.send(_make(maker, task, connection))
    os._exit(0)  # all is written and told; taking the interpreter down would take longer than some slices


def _make(maker: SliceMaker, task: Task, connection: Any) -> Any:
    try:
        return maker.make(task, connection.send)
    except Exception as error:  # noqa: BLE001
        return Failure.of(error)


def _listen(connection: Any, inbox: "queue.SimpleQueue[Any]") -> None:
    """Hand over what comes. When the other end is gone, so is the run: end at once, wherever the work is."""
    try:
        while (message := connection.recv()) is not None:
            inbox.put(message)
    except (EOFError, OSError):
        os._exit(1)
    inbox.put(None)
