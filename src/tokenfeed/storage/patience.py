"""How long to wait for a server, and how long to pause between two tries."""

import math
import os
import random
from dataclasses import dataclass

from tokenfeed.errors import ArgumentError

__all__ = ["Patience"]


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits in seconds. `TOKENFEED_TIMEOUT` in the environment sets `total`, and the others follow."""

    total: float = 120.0
    """Limit of a request, all its tries together. For a download, the limit without progress. Time in a queue does not
    count."""
    connect: float = 10.0
    """Limit for making a connection. A server whose name is unknown has failed after this."""
    stall: float = 30.0
    """Limit without a byte; then the request is tried again. A server that nobody can reach has failed after this."""
    first_pause: float = 0.1
    """Longest pause before the second try. It doubles with every try, up to `longest_pause`."""
    longest_pause: float = 10.0

    @classmethod
    def of(cls, total: float, *, name: str = "timeout") -> "Patience":
        """The limits that go with a total; `name` is what the user calls it."""
        if not 0 < total < math.inf:
            raise ArgumentError(f"{name} is {total:g}; it must be a number of seconds above 0")
        return cls(total, connect=min(10.0, total / 4), stall=min(30.0, total / 4))

    @classmethod
    def from_environment(cls) -> "Patience":
        given = os.environ.get("TOKENFEED_TIMEOUT")
        if not given:
            return _DEFAULT
        try:
            return cls.of(float(given), name="TOKENFEED_TIMEOUT")
        except ValueError:
            raise ArgumentError(f"TOKENFEED_TIMEOUT is {given!r}; it must be a number of seconds above 0") from None

    def pause(self, tries: int, *, at_least: float = 0.0) -> float:
        """Seconds to wait after so many tries. Half of it is random, so that many clients do not come back at once."""
        longest = min(self.longest_pause, self.first_pause * 2.0 ** min(tries - 1, 30))
        return max(at_least, longest) * random.uniform(0.5, 1.0)


_DEFAULT = Patience()
