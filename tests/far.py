"""A store on a server that tests control, how it is opened and read, and children that must not hang.

A floor that changes how far data is opened or read changes it here.
"""

import os
import select
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

import tokenfeed
from flaky_server import Exchange, FlakyServer, behave

LENGTH = 2048
SECONDS = 3
"""How long a child may be silent once it has printed "ready". What must hold is "at once"; this tells a hang from
a busy machine, and keeps the fast tier fast while the tests fail: 30 where no mark is left."""


def open_far(url, *, headers=None, **how):
    """A store on a server. `how` is `memory_bytes` or `cache`."""
    given = how if headers is None else {"headers": headers, **how}
    return tokenfeed.open(url, remote=tokenfeed.Remote(**given))


def read_windows(store, first, count=1, length=LENGTH):
    """The tokens of so many windows, by one call."""
    return store.windows(length).read(np.arange(first, first + count)).inputs.reshape(-1)


def expected_tokens(first, count=1, length=LENGTH):
    return np.arange(first * length, (first + count) * length, dtype=np.uint32).astype(np.uint16)


def write_store(folder: Path, windows: int, *, length: int = LENGTH) -> Path:
    """A store of one shard, in which token i is i modulo 2**16."""
    tokens = np.arange(windows * length + 1, dtype=np.uint32).astype(np.uint16)
    with tokenfeed.Writer(folder, columns={"tokens": "uint16"}, name="a", sync=False) as writer:
        writer.append({"tokens": tokens})
    return folder


class FarStore(FlakyServer):
    """A server with a store under /store, whose answers to requests for tokens can be held back."""

    def __init__(self, folder: Path, windows: int) -> None:
        super().__init__()
        self.answers = threading.Event()
        """Requests for tokens are answered once this is set."""
        self.answers.set()
        self.held = threading.Semaphore(0)
        """Released whenever such a request has come and waits."""
        write_store(folder, windows)
        for path in folder.rglob("*.*"):
            name = f"/store/{path.relative_to(folder)}"
            is_data = path.name == "tokens.npy"
            self.put(name, path.read_bytes(), *((self._hold, ...) if is_data else ()))
            if is_data:
                self.data = name
        self.store = self.url("/store")

    def _hold(self, exchange: Exchange) -> None:
        if not self.answers.is_set():
            self.held.release()
            while not self.answers.wait(0.05) and not self.stopping.is_set():
                pass
        behave(exchange)

    def bytes_of_tokens(self) -> int:
        return self.bytes_sent(self.data)


def run_child(code: str, *arguments: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own. Once it has printed "ready", it may not be silent for longer than that: a
    TimeoutExpired."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors) as process:
            said, more, patience = b"", b"-", 60
            try:
                while more:
                    if not select.select([process.stdout], [], [], patience)[0]:
                        raise subprocess.TimeoutExpired(command[:2], patience, said)
                    more = os.read(process.stdout.fileno(), 1 << 16)
                    said += more
                    patience = seconds if said.startswith(b"ready\n") else 60
                process.wait(seconds)
            finally:
                process.kill()
        errors.seek(0)
        return subprocess.CompletedProcess(
            command, process.returncode, said.decode().removeprefix("ready\n"), errors.read()
        )
