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
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from tokenfeed.errors import WorkerError
from tokenfeed.preparation.engines import MAX_ATTEMPTS, TellTask
from tokenfeed.preparation.engines.failure import Failure
from tokenfeed.preparation.engines.worker import READY
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.preparation.slices import Task, WorkerSetup

__all__ = ["Pool"]

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from tokenfeed.preparation.engines.worker import work; work(int(sys.argv[1]))"
)
_ONE_THREAD = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # workers are as many as cores already
_WAIT_SECONDS = 0.2
_END_SECONDS = 5.0


class Pool:
    """A number of processes, each with a tokenizer of its own, which it makes once."""

    def __init__(self, workers: int) -> None:
        self._num_workers = workers

    def run(self, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask) -> Generator[Record, None, None]:
        waiting = deque(tasks)
        attempts = dict.fromkeys(tasks, 0)
        pickled = pickle.dumps(setup)
        workers = [_Worker(pickled) for _ in range(min(self._num_workers, len(tasks)))]
        try:
            while waiting or any(worker.task for worker in workers):
                for worker in workers:
                    if worker.task is None and waiting:
                        worker.give(waiting.popleft())
                for connection in wait([worker.connection for worker in workers], _WAIT_SECONDS):
                    worker = next(worker for worker in workers if worker.connection is connection)
                    message = worker.receive()
                    if isinstance(message, Record):
                        worker.task = None
                        yield message
                    elif isinstance(message, Counts):
                        if worker.task is not None:
                            tell(worker.task, message)
                    elif isinstance(message, Failure):
                        raise message.rebuild()
                    elif message == READY:
                        worker.start()
                    else:
                        workers.remove(worker)
                        ended = worker.how_it_ended()
                        if worker.task is not None:  # else nothing is left to do, and it is not missed
                            self._begin_again(worker.task, attempts, ended)
                            tell(worker.task, None)
                            waiting.appendleft(worker.task)
                            workers.append(_Worker(pickled))
            for worker in workers:
                worker.dismiss()
            for worker in workers:
                worker.wait()
        finally:
            for worker in workers:
                worker.kill()

    def _begin_again(self, task: Task, attempts: dict[Task, int], ended: str) -> None:
        """Count the attempt; an error where there were too many."""
        attempts[task] += 1
        if attempts[task] >= MAX_ATTEMPTS:
            raise WorkerError(
                f"{task.name} was given up after {MAX_ATTEMPTS} attempts: each time its worker process ended "
                f"({ended}). If memory ran out, take fewer workers. What was done is kept: run it again to go on."
            )


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
            self._send(self.task)

    def give(self, task: Task) -> None:
        self.task = task
        if self._is_ready:
            self._send(task)

    def receive(self) -> Any:
        """Its next message; None when it is gone."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def dismiss(self) -> None:
        """Let it exit: there is nothing left to do."""
        self._send(None)

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

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone, which `receive` will find
            self.connection.send(message)
