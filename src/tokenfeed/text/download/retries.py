"""When an attempt is repeated, how often, and how long nothing may happen.

Connecting takes at most `timeout`, and so does every wait for bytes; an answer whose body brings less than 1 kB a
second over `timeout` counts as broken off, which is noticed within twice `timeout`. Between two attempts lie at most
60 s, whatever a server's Retry-After says. A file that makes no progress is therefore given up after
`(retries + 1) × (4 × timeout + 60 s)` at the latest, by default 18 minutes, and usually within seconds. Every redirect
can add two timeouts; only a server that sends its headers byte by byte can take longer.
"""

import contextlib
import threading
from typing import Any, Self

import urllib3
from urllib3.exceptions import InvalidHeader, MaxRetryError

from tokenfeed.errors import DownloadError

__all__ = ["TRANSIENT", "Attempts", "Interrupted", "Policy", "Stopped"]

TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses that may pass."""

_LONGEST_WAIT = 60.0


class Stopped(Exception):  # noqa: N818
    """The whole download is being given up: somebody pressed Ctrl-C, or the disk is full."""


class Interrupted(Exception):  # noqa: N818
    """An attempt that failed in a way that may pass."""

    def __init__(self, reason: str, *, anew: bool = False, response: urllib3.BaseHTTPResponse | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.anew = anew
        """Whether the bytes that came so far are of no use."""
        self.response = response


class Policy(urllib3.Retry):
    """urllib3's retries, with waits that are capped and that end as soon as the download is given up."""

    stopping: threading.Event

    @classmethod
    def make(cls, retries: int, backoff: float, stopping: threading.Event) -> Self:
        """Waits of 0, then 2, 4, 8 … times `backoff` seconds, each with up to `backoff` seconds more by chance."""
        policy = cls(
            total=retries,
            status_forcelist=TRANSIENT,
            backoff_factor=backoff,
            backoff_jitter=backoff,
            backoff_max=_LONGEST_WAIT,
        )
        policy.stopping = stopping
        return policy

    def new(self, **changes: Any) -> Self:
        policy = super().new(**changes)
        policy.stopping = self.stopping
        return policy

    def sleep(self, response: urllib3.BaseHTTPResponse | None = None) -> None:
        asked = None
        if response is not None:
            with contextlib.suppress(InvalidHeader):
                asked = self.get_retry_after(response)
        if self.stopping.wait(min(asked or self.get_backoff_time(), _LONGEST_WAIT)):
            raise Stopped


class Attempts:
    """The retries that one address has left."""

    def __init__(self, policy: Policy, what: str) -> None:
        self._policy = self._left = policy
        self._what = what

    def refill(self) -> None:
        """All retries are there again."""
        self._left = self._policy

    def again(self, interrupted: Interrupted) -> None:
        """Wait until the next attempt is due. Raises DownloadError if there is none left."""
        try:
            self._left = self._left.increment("GET", self._what, response=interrupted.response, error=interrupted)
        except MaxRetryError:
            attempts = len(self._left.history) + 1
            raise DownloadError(
                f"{self._what}: {interrupted.reason} (attempt {attempts} of {attempts}). "
                "Run the same download again to go on."
            ) from None
        self._left.sleep(interrupted.response)
