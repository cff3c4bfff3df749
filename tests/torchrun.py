"""Ranks as torchrun starts them, but forked from a process that has imported torch already.

A rank that is started spends 5 s of processor time on imports; one that is forked, none. Everything else is as on the
command line: the environment, a script that runs as `__main__`, and when one rank fails all of them end.
"""

import faulthandler
import multiprocessing
import os
import runpy
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from servers import free_port

__all__ = ["PRELOADED", "Torchrun", "run"]

PRELOADED = ["torch.distributed.checkpoint", "torch.distributed.run", "torch._dynamo", "tokenfeed.torch", "torchrun"]


class Torchrun:
    """Ranks under way. As a context they are killed at its end, unless they have ended before.

    In arguments, {rank} and {port} stand for the rank and for a free port: frameworks may look there alone.
    """

    def __init__(self, world_size, script, *arguments, output, method="forkserver"):
        """`method` is "fork" where this process is such a fork itself, and has no threads."""
        context = multiprocessing.get_context(method)
        context.set_forkserver_preload(PRELOADED)
        self._output = Path(output)
        self._output.write_bytes(b"")
        self._ranks = []
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # ranks share two cores
        port = str(free_port())
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "GROUP_RANK": "0"}
        environment |= {"TORCHELASTIC_RUN_ID": "test"}  # by which frameworks know who has started them
        for rank in range(world_size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            words = [str(word).replace("{rank}", str(rank)).replace("{port}", port) for word in (script, *arguments)]
            self._ranks.append(context.Process(target=_work, args=(words, str(output), environment | place)))
            self._ranks[-1].start()

    def poll(self):
        """The exit status: that of the first rank that failed, 0 once all have ended well, and None before."""
        statuses = [rank.exitcode for rank in self._ranks]
        if failed := [status for status in statuses if status]:
            return failed[0]
        return None if None in statuses else 0

    def wait(self, seconds):
        """The exit status; None if it has not ended by then, and what every rank was doing is in the output."""
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if status is None:
            for rank in self._ranks:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGUSR1)
            time.sleep(1)
        return status

    def output(self):
        return self._output.read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self._ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)  # with what it has started
            rank.kill()  # alone, if it had no group yet
        for rank in self._ranks:
            rank.join()


def run(world_size, script, *arguments, output, method="forkserver"):
    """What the ranks of a script printed, once they have ended well."""
    with Torchrun(world_size, script, *arguments, output=output, method=method) as launched:
        assert launched.wait(120) == 0, launched.output()[-5000:]
        return launched.output()


def _work(words, output, environment):
    os.environ.clear()  # of the fork server, which was started for another test
    os.environ.update(environment)
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # lines of different ranks are not mixed
    faulthandler.register(signal.SIGUSR1)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
