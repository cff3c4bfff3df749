"""Slices made by processes on this machine.

Not `multiprocessing.Pool`: that hangs when a process is killed, and runs the caller's script again in each. Here every
process has a socket of its own. When it closes, the process is gone (killed, or out of memory), and a new one begins
its slice again; when this end closes, however this process ends, the other one exits.
"""

import contextlib
import json
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Generator, Sequence
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from typing import Any

from tokenfeed.errors import WorkerError
from tokenfeed.preparation.documents import SliceMaker, Task, WorkerSetup
from tokenfeed.preparation.engines import MAX_ATTEMPTS, Failure, TellTask, attempt
from tokenfeed.preparation.records import Counts, Record

__all__ = ["run_pool", "work"]

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from tokenfeed.preparation.engines.pool import work; work(int(sys.argv[1]))"
)
_ONE_THREAD = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # workers are as many as cores already
_READY = "ready"
_WAIT_SECONDS = 0.2
_END_SECONDS = 5.0


def run_pool(
    num_workers: int, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask
) -> Generator[Record, None, None]:
    """Processes, each with a tokenizer of its own, which it makes once."""
    waiting = deque(tasks)
    attempts: Counter[Task] = Counter()
    pickled = pickle.dumps(setup)
    workers = [_Worker(pickled) for _ in range(min(num_workers, len(tasks)))]
    try:
        while waiting or any(worker.task for worker in workers):
            for worker in workers:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            for connection in wait([worker.connection for worker in workers], _WAIT_SECONDS):
                worker = next(worker for worker in workers if worker.connection is connection)
                message, task = worker.receive(), worker.task
                if isinstance(message, Record):
                    worker.task = None
                    yield message
                elif isinstance(message, Counts):
                    if task is not None:
                        tell(task, message)
                elif isinstance(message, Failure):
                    raise message.rebuild()
                elif message == _READY:
                    worker.start()
                else:
                    workers.remove(worker)
                    ended = worker.how_it_ended()
                    if task is None:  # nothing is left to do, and it is not missed
                        continue
                    attempts[task] += 1
                    if attempts[task] >= MAX_ATTEMPTS:
                        raise WorkerError(
                            f"{task.name} was given up after {MAX_ATTEMPTS} attempts: each time its worker process "
                            f"ended ({ended}). If memory ran out, take fewer workers. What was done is kept: run it "
                            "again to go on."
                        )
                    tell(task, None)
                    waiting.appendleft(task)
                    workers.append(_Worker(pickled))
        for worker in workers:
            worker.send(None)
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """A process and the socket to it. It gets no Ctrl-C: this process handles that."""

    def __init__(self, setup: bytes) -> None:
        self.task: Task | None = None
        self._setup = setup
        self._is_ready = False
        here, there = multiprocessing.Pipe()
        self.connection: Connection[Any, Any] = here
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(there.fileno()), json.dumps(sys.path)],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
                process_group=0,
            )

    def start(self) -> None:
        """Send the setup, now that it listens: megabytes in the socket would block this process before."""
        self._is_ready = True
        with contextlib.suppress(OSError):
            self.connection.send_bytes(self._setup)
        if self.task is not None:
            self.send(self.task)

    def give(self, task: Task) -> None:
        self.task = task
        if self._is_ready:
            self.send(task)

    def send(self, message: Task | None) -> None:
        """A task; or None, which lets it exit."""
        with contextlib.suppress(OSError):  # it is gone, which `receive` will find
            self.connection.send(message)

    def receive(self) -> Any:
        """Its next message; None when it is gone."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def how_it_ended(self) -> str:
        """In words, after its socket was closed."""
        self.wait()
        code = self._process.returncode
        self.kill()
        if code is not None and code < 0:
            return f"killed by signal {-code}, {signal.Signals(-code).name}"
        return f"exit status {code}"

    def kill(self) -> None:
        """Make sure that it is gone. Its unfinished files are removed when the slice is made."""
        self.connection.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def work(descriptor: int) -> None:
    """In the process: _READY, then Counts as work goes on, and a Record or a Failure for every task."""
    os.dup2(2, 1)  # prints of a map function must not get between the lines of a report
    connection: Connection[Any, Any] = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    connection.send(_READY)
    get_maker = cache(partial(SliceMaker, inbox.get()))
    while (task := inbox.get()) is not None:
        connection.send(attempt(get_maker, task, connection.send))
    os._exit(0)  # all is written and sent; shutting the interpreter down takes longer than some slices


def _listen(connection: Any, inbox: "queue.SimpleQueue[Any]") -> None:
    """Hand over messages. When the other end is gone, so is the run: exit at once, in the middle of any work."""
    try:
        while (message := connection.recv()) is not None:
            inbox.put(message)
    except (EOFError, OSError):
        os._exit(1)
    inbox.put(None)
