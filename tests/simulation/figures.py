"""What a simulation has done, and how it says that something is wrong."""

from dataclasses import dataclass
from typing import Any


class Violation(AssertionError):  # noqa: N818 — what it is called in model checking
    """What was delivered is not what must be."""


def demand(condition: Any, *told: Any) -> None:
    if not condition:
        raise Violation(" ".join(str(each) for each in told))


@dataclass
class Figures:
    """What was done; sums over histories, and the largest."""

    histories: int = 0
    events: int = 0
    starts: int = 0
    steps: int = 0
    samples: int = 0
    traced: int = 0
    found: int = 0
    accepted: int = 0
    refused: int = 0
    impossible: int = 0
    evaluations: int = 0
    amended: int = 0
    resized: int = 0
    largest_world: int = 0
    largest_items: int = 0
    largest_sample: int = 0

    def add(self, other: "Figures") -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name.startswith("largest") else mine + value)
