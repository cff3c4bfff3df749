"""Children that run one adapter each, seen from outside: what they answer, and what they cost."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Child", "Contender", "PeerError"]

HERE = Path(__file__).parent


class PeerError(Exception):
    """A contender did not do what it was asked. The message is what it said last."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An adapter, and the environment it runs in."""

    adapter: str
    title: str
    python: Path

    def start(self, **environment: str) -> "Child":
        return Child(self, environment)


class Child:
    """A process of a contender's. Killed, with all it started, when it does not answer in time."""

    def __init__(self, contender: Contender, environment: Mapping[str, str], *, timeout: float = 120) -> None:
        self.contender = contender
        logs = HERE.parent / ".data" / "peers" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = (logs / f"{contender.adapter}.log").open("a")
        self._process = subprocess.Popen(
            [str(contender.python), str(HERE / "child.py"), contender.adapter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **environment, "PEERS_STARTED": repr(time.time()), "PYTHONWARNINGS": "ignore"},
        )
        try:
            self.about = self._answer("import", timeout)
        except PeerError:
            self.kill()
            raise

    def ask(self, do: str, *, timeout: float = 120, **arguments: Any) -> Any:
        self.send(do, **arguments)
        return self.answer(timeout=timeout)

    def send(self, do: str, **arguments: Any) -> None:
        """Ask without waiting; `answer` gets it."""
        self._asked = do
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{do}: the process had ended") from None

    def answer(self, *, timeout: float = 120) -> Any:
        return self._answer(self._asked, timeout)

    def _answer(self, what: str, timeout: float) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            self.kill()
            raise PeerError(f"{what}: no answer within {timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{what}: the process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            self._log.write(answer["error"])
            self._log.flush()
            raise PeerError(f"{what}: {_last_words(answer['error'])}")
        return answer["ok"]

    def processes(self) -> list[psutil.Process]:
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def processor_seconds(self) -> float:
        """Of the process and all it started, also of those that have ended."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def memory(self) -> dict[str, float]:
        """MB by proportional share, of the process and all it started: everything, and what no file backs."""
        total = private = 0
        for process in self.processes():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
                kilobytes = {line.split()[0]: int(line.split()[1]) for line in lines}
                total += kilobytes["Pss:"]
                private += kilobytes["Pss_Anon:"] + kilobytes["Pss_Shmem:"]
        return {"pss": total * 1024 / 1e6, "private": private * 1024 / 1e6, "processes": len(self.processes())}

    def stop(self) -> None:
        """Let it end by itself, for a while."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self.kill()

    def kill(self) -> None:
        """End the process and its group: its own session, so nobody else's."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()
        else:
            self.kill()


def _last_words(trace: str) -> str:
    """The line of a traceback that names the exception: the last that is not indented and has a colon."""
    lines = [line for line in trace.splitlines() if line[:1].strip() and ":" in line]
    return (lines or [trace])[-1][:300]
