"""What a download tells while it goes on."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Arrival"]


@dataclass(frozen=True)
class Arrival:
    """How far one file has come."""

    name: str
    state: Literal["arriving", "arrived", "there", "failed"]
    """`there`: it was there before."""
    num_bytes: int
    total: int | None
    """How many bytes it will have, where that is known."""
    num_files: int
    """How many files the whole download has."""
