"""A process of the pool: takes its setup, then one task after the other, and ends when the run does."""

import os
import queue
import threading
from multiprocessing.connection import Connection
from typing import Any

from tokenfeed.preparation.engines.failure import Failure
from tokenfeed.preparation.slices import SliceMaker, Task, WorkerSetup

__all__ = ["READY", "work"]

READY = "ready"


def work(descriptor: int) -> None:
    """Serve the process at the other end: READY, then Counts as work goes on, and a Record or a Failure a task."""
    os.dup2(2, 1)  # prints of a map function must not get between the lines of a report
    connection: Connection[Any, Any] = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    connection.send(READY)
    setup: WorkerSetup = inbox.get()
    try:
        maker = SliceMaker(setup)
    except Exception as error:  # noqa: BLE001 (whatever it is, the run raises it)
        connection.send(Failure.of(error))
        return
    while (task := inbox.get()) is not None:
        connection.send(_make(maker, task, connection))
    os._exit(0)  # all is written and sent; shutting the interpreter down takes longer than some slices


def _make(maker: SliceMaker, task: Task, connection: Any) -> Any:
    try:
        return maker.make(task, connection.send)
    except Exception as error:  # noqa: BLE001
        return Failure.of(error)


def _listen(connection: Any, inbox: "queue.SimpleQueue[Any]") -> None:
    """Hand over messages. When the other end is gone, so is the run: exit at once, in the middle of any work."""
    try:
        while (message := connection.recv()) is not None:
            inbox.put(message)
    except (EOFError, OSError):
        os._exit(1)
    inbox.put(None)
