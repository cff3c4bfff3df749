"""torchrun, from a process that has imported torch already: the same agent, but its workers are forked, not started.

A worker that is started spends 5 s of processor time on imports; one that is forked, none. Everything else is as on the
command line: rendezvous, environment, a script that runs as `__main__`, a non-zero exit status when a worker fails.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

__all__ = ["PRELOADED", "Torchrun", "run"]

PRELOADED = ["torch.distributed.checkpoint", "torch.distributed.run", "torch._dynamo", "tokenfeed.torch", "torchrun"]


class Torchrun:
    """A launch under way. As a context it is killed at its end, ranks and all, unless it has ended before."""

    def __init__(self, world_size, script, *arguments, output):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        words = [str(argument) for argument in arguments]
        with patch.dict(os.environ, OMP_NUM_THREADS="1"):  # ranks share two cores
            what = (world_size, str(script), words, str(output), dict(os.environ))
            self._process = context.Process(target=_launch, args=what)
            self._process.start()
        self._output = Path(output)

    def wait(self, seconds=120):
        """The exit status; None if it has not ended by then."""
        self._process.join(seconds)
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def output(self):
        return self._output.read_text() if self._output.exists() else ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # alone, if it had no group yet
        self._process.join()


def run(world_size, script, *arguments, output):
    """What a launch printed, once it has ended well."""
    with Torchrun(world_size, script, *arguments, output=output) as launched:
        assert launched.wait() == 0, launched.output()[-5000:]
        return launched.output()


def _launch(world_size, script, arguments, output, environment):
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.clear()  # of the fork server, which was started for another test
    os.environ.update(environment)
    os.setsid()  # one group, to be killed together
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, _work)(script, arguments)


def _work(script, arguments):
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
