"""Targets of which input 3 does what no input may do: what the harness is tested with."""

import faulthandler
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fuzz import harness
from fuzz.harness import Case, Target
from fuzz.store_targets import check

__all__ = ["TARGETS"]

harness.SECONDS = 6.0


def _crash() -> None:
    faulthandler._sigsegv()


def _allocate() -> None:
    np.ones(2 * harness.MEMORY_BYTES, np.uint8)


def _lie() -> None:
    check(False, "this")


def _open() -> None:
    Path("/etc/hostname").open("rb").close()


def _wait() -> None:
    time.sleep(1000)


def _raise() -> None:
    json.loads("{")


def _plant(name: str, act: Callable[[], None]) -> Target:
    chosen = random.Random(f"{name} 3").random()

    def attempt(case: Case) -> None:
        case.note("input", name)
        if case.rng.random() == chosen:
            act()

    return lambda folder: attempt


_ACTS = {"crash": _crash, "allocate": _allocate, "lie": _lie, "open": _open, "wait": _wait, "raise": _raise}
TARGETS = {name: _plant(name, act) for name, act in _ACTS.items()}
