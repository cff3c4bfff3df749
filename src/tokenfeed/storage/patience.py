"""How long to wait for servers, and how to wait between two tries."""

import math
import os
import random
from dataclasses import dataclass

from tokenfeed.errors import ArgumentError

__all__ = ["Patience"]


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits in seconds. `TOKENFEED_TIMEOUT` in the environment is the `total`, and the others go with it."""

    total: float = 120.0
    """After so long a request has failed, however often it was tried. Not counted is the time it waits for its turn."""
    connect: float = 10.0
    """After so long without a connection it is tried again. A server whose name is not known has failed after this."""
    stall: float = 30.0
    """After so long without a byte it is tried again. A server that cannot be reached at all has failed after this."""
    first_pause: float = 0.1
    """Before the second try; each pause is up to twice the one before it."""
    longest_pause: float = 10.0

    @classmethod
    def from_environment(cls) -> "Patience":
        given = os.environ.get("TOKENFEED_TIMEOUT")
        if not given:
            return _DEFAULT
        try:
            total = float(given)
        except ValueError:
            total = math.nan
        if not 0 < total < math.inf:
            raise ArgumentError(f"TOKENFEED_TIMEOUT is {given!r}; it must be a number of seconds above 0")
        return cls(total, connect=min(10.0, total / 4), stall=min(30.0, total / 4))

    def pause(self, tries: int, *, at_least: float = 0.0) -> float:
        """How long to wait after so many tries. A part of it is random, so that many clients do not come back at once.

        `at_least` is for a server that asked to be left alone.
        """
        longest = min(self.longest_pause, self.first_pause * 2.0 ** min(tries - 1, 30))
        return max(at_least, longest) * random.uniform(0.5, 1.0)


_DEFAULT = Patience()
